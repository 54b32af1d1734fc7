"""The commands that stop the loads of a pipeline and start them again: pause, resume."""

import argparse
from shlex import quote

from sqlalchemy import Engine

from onceload.commands.arguments import Arguments, Commands, command, on_one_pipeline
from onceload.settings import user_name
from onceload.terminal import show_json, words
from onceload_core.errors import ExitCode
from onceload_core.postgres import pausing


def add(commands: Commands) -> None:
    teaches = "stop all loads of a pipeline, for a repair or an edit, until it is resumed"
    example = "onceload pause events --why 'rows of May are being repaired'"
    pausing_command = command(commands, "pause", on_one_pipeline(pause), teaches, example)
    pause_arguments(pausing_command)
    teaches = "let loads of a paused pipeline run again"
    resuming_command = command(commands, "resume", on_one_pipeline(resume), teaches, "onceload resume events")
    name_argument(resuming_command)


def pause(arguments: Arguments, engine: Engine) -> ExitCode:
    """Stop all loads of a pipeline until it is resumed."""
    name = arguments.pipeline
    paused = pausing.pause(engine, name, by=user_name(), why=arguments.why)
    if arguments.json:
        show_json({"pipeline": name, "pause": paused.pause, "is_earlier": paused.is_earlier})
    until = f"until `onceload resume {quote(name)}`"
    if paused.is_earlier:
        words(f"pipeline {name} was already {paused.pause}. That pause stays in force {until}")
    else:
        words(
            f"pipeline {name} is paused. No load commits anything {until}, and a load that is running ends at its next "
            "commit"
        )
    return ExitCode.DONE


def resume(arguments: Arguments, engine: Engine) -> ExitCode:
    """Let loads of a pipeline run again."""
    name = arguments.pipeline
    ended = pausing.resume(engine, name, by=user_name())
    if arguments.json:
        show_json({"pipeline": name, "ended": ended})
    if ended is None:
        words(f"pipeline {name} is not paused. Nothing was changed")
    else:
        words(f"pipeline {name} is resumed. It was {ended}. The next load continues with the rest")
    return ExitCode.DONE


def name_argument(command: argparse.ArgumentParser) -> None:
    command.add_argument("pipeline", metavar="PIPELINE", help="the name of the pipeline, see `onceload status`")


def pause_arguments(command: argparse.ArgumentParser) -> None:
    name_argument(command)
    command.add_argument(
        "--why", required=True, metavar="TEXT", help="the reason; `onceload status` and each refused load show it"
    )
