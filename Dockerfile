# One image for all: Airflow's parts, Spark's master and workers, and the commands of onceload.
# The first stage builds; the second has what it built, and none of its tools. Everything belongs to root: the user that
# runs it can write below its home only.

FROM python:3.11.14-slim-bookworm@sha256:65a93d69fa75478d554f4ad27c85c1e69fa184956261b4301ebaf6dbb0a3543d AS build
# A Java with all that Spark may load, without the compiler and the debugger. Its certificates are a link in Debian.
RUN apt-get update \
 && apt-get install --yes --no-install-recommends binutils openjdk-17-jdk-headless \
 && jlink --output /opt/java --compress 2 --no-header-files --no-man-pages --strip-java-debug-attributes \
    --add-modules java.se,jdk.charsets,jdk.crypto.ec,jdk.incubator.vector,jdk.management,jdk.management.agent,jdk.naming.dns,jdk.net,jdk.security.auth,jdk.security.jgss,jdk.unsupported,jdk.zipfs \
 && cp --dereference /etc/ssl/certs/java/cacerts /opt/java/lib/security/cacerts
WORKDIR /opt/onceload
COPY requirements/build.cfg requirements/build.txt requirements/image.txt requirements/slim requirements/
# pyspark is published as source only, so all packages become wheels here, with the tools of the lock.
RUN python -m venv tools \
 && tools/bin/pip install --no-cache-dir --no-deps --require-hashes -r requirements/build.txt \
 && DIST_EXTRA_CONFIG=/opt/onceload/requirements/build.cfg \
    tools/bin/pip wheel --no-cache-dir --no-deps --require-hashes --no-build-isolation --wheel-dir wheels -r requirements/image.txt
RUN python -m venv --without-pip .venv \
 && tools/bin/pip --python .venv/bin/python install --no-cache-dir --no-index --no-deps wheels/*.whl \
 && bash requirements/slim .venv
COPY . .
RUN tools/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir wheels . \
 && tools/bin/pip --python .venv/bin/python install --no-cache-dir --no-index --no-deps wheels/onceload-*.whl

FROM python:3.11.14-slim-bookworm@sha256:65a93d69fa75478d554f4ad27c85c1e69fa184956261b4301ebaf6dbb0a3543d
# A new volume takes its owner from the folder that it is mounted at, such as `stage`.
RUN apt-get update \
 && apt-get install --yes --no-install-recommends procps \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* \
 && useradd --uid 50001 --create-home --home-dir /var/lib/onceload onceload \
 && install --directory --owner onceload --group onceload --mode 700 /var/lib/onceload/stage
COPY --from=build /opt/java /opt/java
COPY --from=build /opt/onceload/.venv /opt/onceload/.venv
# The packages of this image, of Python and of Debian.
COPY pyproject.toml /opt/onceload/
COPY requirements/sbom.py requirements/image.txt /opt/onceload/requirements/
RUN cd /opt/onceload && python requirements/sbom.py requirements/image.txt --debian > sbom.cdx.json
ENV JAVA_HOME=/opt/java \
    PATH=/opt/onceload/.venv/bin:/opt/java/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    ONCELOAD_HOME=/var/lib/onceload
WORKDIR /opt/onceload
USER onceload
ENTRYPOINT []
CMD ["onceload", "--help"]
