"""Commands in messages, complete with their names.

Messages do not know the pipeline file. They write PIPELINE_FILE, and the command line and the console put the name of
the file there.
"""

from shlex import quote

#: Stands for the pipeline file, with the values of its placeholders.
PIPELINE_FILE = "PIPELINE.yaml"


def reload_command(file: str) -> str:
    """Replace the rows of one file; only some pipelines allow it."""
    return f"`onceload load {PIPELINE_FILE} --only {quote(file)} --replace`"
