"""What the numbers were measured on."""

import os
import platform
from dataclasses import dataclass
from pathlib import Path

import psutil
from sqlalchemy import Engine, text

_SETTINGS = (
    "shared_buffers",
    "work_mem",
    "max_wal_size",
    "checkpoint_timeout",
    "wal_level",
    "fsync",
    "synchronous_commit",
    "full_page_writes",
    "data_checksums",
)


@dataclass(frozen=True, kw_only=True)
class Machine:
    processors: str
    memory: str
    load: str
    system: str
    python: str
    postgres: str
    settings: str


def describe(engine: Engine) -> Machine:
    with engine.connect() as connection:
        version = connection.execute(text("SELECT current_setting('server_version')")).scalar_one()
        settings = [(name, connection.execute(text(f"SHOW {name}")).scalar_one()) for name in _SETTINGS]
    return Machine(
        processors=f"{os.cpu_count()} processors ({_processor()})",
        memory=f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        load=f"{os.getloadavg()[0]:.1f} before the start",
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        postgres=str(version),
        settings=", ".join(f"{name} {value}" for name, value in settings),
    )


def _processor() -> str:
    """Linux has the model in a file; Python asks other systems for it."""
    about = Path("/proc/cpuinfo")
    lines = about.read_text().splitlines() if about.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"
