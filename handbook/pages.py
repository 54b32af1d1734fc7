"""All generated pages, by their place among the pages in docs/."""

from collections.abc import Mapping
from functools import cache

from handbook.code import Code
from handbook.column_types import types_page
from handbook.commands import commands_page
from handbook.environment import environment_page
from handbook.errors import errors_page
from handbook.messages import messages_page
from handbook.metrics import metrics_page
from handbook.pipeline_keys import keys_page


@cache
def generated_pages() -> Mapping[str, str]:
    """The Markdown of each page."""
    code = Code()
    return {
        "reference/commands.md": commands_page(),
        "reference/pipeline-file.md": keys_page(),
        "reference/types.md": types_page(),
        "reference/errors.md": errors_page(code),
        "reference/messages.md": messages_page(code),
        "reference/metrics.md": metrics_page(),
        "reference/environment.md": environment_page(),
    }
