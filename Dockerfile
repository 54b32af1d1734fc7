# One image for all: Airflow's parts, Spark's master and workers, and the commands of onceload.
# The first stage makes the environment from the lock; the second holds it and Java, and no tool of the tests.

FROM python:3.11.14-slim-bookworm@sha256:65a93d69fa75478d554f4ad27c85c1e69fa184956261b4301ebaf6dbb0a3543d AS build
WORKDIR /opt/onceload
COPY requirements/onceload.txt requirements/
# pyspark is published as source only; what builds it is in the lock as well.
RUN python -m venv .venv \
 && awk 'index($0, "setuptools==") == 1 { found = 1; print; next } /^[^ ]/ { found = 0 } found' requirements/onceload.txt > build.txt \
 && .venv/bin/pip install --no-cache-dir --no-deps --require-hashes -r build.txt \
 && .venv/bin/pip install --no-cache-dir --no-deps --require-hashes --no-build-isolation -r requirements/onceload.txt
COPY . .
RUN .venv/bin/pip install --no-cache-dir --no-deps --no-build-isolation -e .

FROM python:3.11.14-slim-bookworm@sha256:65a93d69fa75478d554f4ad27c85c1e69fa184956261b4301ebaf6dbb0a3543d
RUN apt-get update \
 && apt-get install -y --no-install-recommends openjdk-17-jre-headless procps \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --uid 50001 --create-home --home-dir /var/lib/onceload onceload
COPY --from=build /opt/onceload /opt/onceload
ENV PATH=/opt/onceload/.venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    ONCELOAD_HOME=/var/lib/onceload
WORKDIR /opt/onceload
USER onceload
ENTRYPOINT []
CMD ["onceload", "--help"]
