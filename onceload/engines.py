"""Where the workers of a command run, from its arguments and the environment."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, TypedDict

from onceload.settings import SPARK, Settings, checked_address
from onceload_core.errors import SettingRefused

#: What runs the workers: `auto` takes a Spark that is named, and else local processes.
EngineName = Literal["auto", "spark", "local"]


class Where(TypedDict, total=False):
    """Where the workers of a call run: the options of `onceload load`."""

    engine: EngineName
    #: The address of a Spark Connect server.
    remote: str | None
    #: The master of a Spark that the call starts, and its settings.
    master: str | None
    spark_options: Mapping[str, str]


#: What the processes of a load call.
OF_LOADS = ("onceload_jobs.work.session", "onceload_jobs.work.read_chunk")
_LOADING = frozenset({"load", "stage"})
#: What runs elsewhere, or sets something that the process must know.
_NOT_EARLY = ("--engine", "--remote", "--master", "--conf", "--log-format", "--help", "-h")


def begin_early(arguments: Sequence[str], environment: Mapping[str, str]) -> None:
    """Let processes of a load import what they call while this one imports the command itself, which takes as long."""
    is_elsewhere = environment.get(SPARK) or any(each.startswith(_NOT_EARLY) for each in arguments)
    if arguments and arguments[0] in _LOADING and not is_elsewhere:
        from onceload_jobs.executor.local import import_early

        # Without it, the command itself says what is wrong.
        with suppress(OSError):
            import_early(*OF_LOADS)


def where_to_work(
    settings: Settings,
    *,
    calls: Sequence[str] = OF_LOADS,
    engine: str = "auto",
    remote: str | None = None,
    master: str | None = None,
    spark_options: Mapping[str, str] = {},
) -> dict[str, Any]:
    """The settings of the engine; the modules whose functions processes call are imported while the command plans."""
    from onceload_jobs.executor.local import import_early

    server = _server(settings, engine=engine, remote=remote, has_own=bool(master or spark_options))
    if calls and engine != "spark" and not master and not server:
        import_early(*calls)
    from onceload_jobs.load.settings import Engine

    if engine not in set(Engine):
        raise SettingRefused("engine", repr(engine), f"one of {', '.join(Engine)}")
    return {"engine": Engine(engine), "master": master, "spark_options": spark_options, **server}


def _server(settings: Settings, *, engine: str, remote: str | None, has_own: bool) -> dict[str, Any]:
    """The Spark Connect server of a command; a Spark that the command starts itself takes precedence."""
    if remote is not None and (has_own or engine == "local"):
        raise SettingRefused("remote", remote.partition(";")[0], "no master, spark_options or engine local beside it")
    address = remote or (None if has_own or engine == "local" else settings.spark)
    if address is None:
        return {}
    from onceload.resident import running

    address = checked_address(address, named="remote")
    there = running(settings.home)
    is_there = there is not None and address.partition(";")[0].removesuffix("/") == there.address
    return {
        "remote": there.remote if there is not None and is_there and ";" not in address else address,
        "remote_named_by": "--remote" if remote else SPARK,
        "remote_ui": there.ui if there is not None and is_there else None if remote else settings.spark_ui,
    }
