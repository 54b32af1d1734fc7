"""The node graph of a YAML file, with its bounds checked before it is built.

No object is ever constructed from a file, and aliases are never expanded.
"""

import re

import yaml

FILE_BYTES_MAX = 2**20
#: A pipeline of 1 600 columns has 3 300 nodes.
_NODES_MAX = 20_000
#: PyYAML composes recursively, and a pipeline file is four levels deep.
_DEPTH_MAX = 20
#: The longest value that a message shows.
SHOWN_MAX = 60
# libyaml, which is in every wheel of PyYAML: PyYAML's own scanner is slow, and accepts escapes of invalid characters.
_LOADER = yaml.CSafeLoader


class NotAPipeline(Exception):
    """The file is refused as a whole."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line
        self.message = message


def compose(content: bytes) -> yaml.MappingNode:
    """The graph below the top level of a file, or what keeps the file from being one."""
    written = _decode(content)
    try:
        _check_bounds(written)
        node: yaml.Node | None = yaml.compose(written, Loader=_LOADER)
    except yaml.reader.ReaderError as error:
        line = written.count("\n", 0, error.position) + 1
        raise NotAPipeline(line, f"expected printable text, found {error.reason}; remove it") from None
    except yaml.MarkedYAMLError as error:
        raise _broken(written, error) from None
    if node is None:
        raise NotAPipeline(1, "the file is empty; start with a key, such as `pipeline: <name>`")
    if not isinstance(node, yaml.MappingNode):
        expected = "keys with values, such as `pipeline: events`"
        raise NotAPipeline(line_of(node), f"expected {expected}, found {shown(node)}")
    return node


def _decode(content: bytes) -> str:
    if len(content) > FILE_BYTES_MAX:
        raise NotAPipeline(1, f"the file is larger than {FILE_BYTES_MAX} bytes; a pipeline file is about a page")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        found = f"the byte 0x{content[error.start]:02x}"
        raise NotAPipeline(line, f"expected UTF-8, found {found}; save the file as UTF-8") from None


def _check_bounds(written: str) -> None:
    """Count the events before the graph is built, because parsing events does not recurse."""
    nodes = depth = 0
    for event in yaml.parse(written, Loader=_LOADER):
        nodes += isinstance(event, yaml.NodeEvent)
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEPTH_MAX or nodes > _NODES_MAX:
            expected = f"at most {_NODES_MAX} values in {_DEPTH_MAX} levels"
            raise NotAPipeline(line_of(event), f"expected {expected}, found more")


def _broken(written: str, error: yaml.MarkedYAMLError) -> NotAPipeline:
    """Find the line where a file stops being YAML, and the most likely fix."""
    lines = written.splitlines()
    mark = error.problem_mark
    # An unclosed quote or bracket is noticed at the end of the file, but must be fixed where it began.
    if error.context_mark is not None and (mark is None or mark.line >= len(lines) - 1):
        mark = error.context_mark
    number = 0 if mark is None else mark.line
    problem = error.problem or ""
    line = lines[number] if number < len(lines) else ""
    if "\t" in line[: len(line) - len(line.lstrip())] or "tab character" in problem or r"'\t'" in problem:
        fix = "indent with spaces, not with tabs"
    elif "another document" in problem:
        fix = "a file contains one pipeline; remove the line --- and everything after it"
    else:
        fix = (
            "text that starts with any of * & ! { [ ] } , | > % @ ` or contains a colon needs quotes, and quotes must "
            "be closed"
        )
    return NotAPipeline(number + 1, f"invalid YAML: {f'{error.context}: ' if error.context else ''}{problem}; {fix}")


def shown(node: yaml.Node) -> str:
    """A value as messages show it."""
    if isinstance(node, yaml.ScalarNode):
        value = cut(node.value, at_most=SHOWN_MAX)
        return repr(value) if is_text(node) else value or "nothing"
    if isinstance(node, yaml.MappingNode) and node.flow_style:
        return "a mapping; text that starts with { needs quotes"
    return "a mapping" if isinstance(node, yaml.MappingNode) else "a list"


def is_text(node: yaml.Node) -> bool:
    """Whether a value is text in YAML 1.1 and 1.2: 1e3 is a number in 1.2."""
    if not isinstance(node, yaml.ScalarNode) or tag_of(node) not in _TEXT:
        return False
    # Real numbers are shorter, and many aliases may lead to one long text.
    return bool(node.style) or len(node.value) > SHOWN_MAX or not _NUMBER.fullmatch(node.value)


def is_whole_number(node: yaml.Node) -> bool:
    """Whether a number has only one reading: 010, 1:30 and 1_000 have several."""
    return tag_of(node) == "int" and bool(_DIGITS.fullmatch(node.value))


# A lone = or << is meant as text.
_TEXT = frozenset({"str", "value", "merge"})
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|0o[0-7]+", re.ASCII)
_DIGITS = re.compile(r"-?(?:0|[1-9][0-9]{0,18})", re.ASCII)


def is_nothing(node: yaml.Node) -> bool:
    return tag_of(node) == "null"


def tag_of(node: yaml.Node) -> str:
    """The YAML type of a scalar; explicit tags on lists and mappings are ignored."""
    return node.tag.removeprefix("tag:yaml.org,2002:") if isinstance(node, yaml.ScalarNode) else ""


def line_of(found: yaml.Node | yaml.Event) -> int:
    return 1 if found.start_mark is None else found.start_mark.line + 1


def cut(words: str, *, at_most: int) -> str:
    return words if len(words) <= at_most else words[:at_most] + "…"
