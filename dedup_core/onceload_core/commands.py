"""Commands in messages, complete with their names.

Messages do not know the pipeline file. They write PIPELINE_FILE, and the command line and the console put the name of
the file there.
"""

from glob import escape
from shlex import quote

#: Stands for the pipeline file, with the values of its placeholders.
PIPELINE_FILE = "PIPELINE.yaml"


def reload_command(file: str) -> str:
    """Replace the rows of one file; only some pipelines allow it."""
    return f"`onceload load {PIPELINE_FILE} {only(file)} --replace`"


def only(file: str) -> str:
    """The option for this file alone: it takes patterns, and a name may look like one."""
    return f"--only={quote(escape(file))}"
