"""The page of all messages that are not errors, by where they appear."""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from handbook.code import Code, Scope, named
from handbook.markdown import in_markdown, page
from handbook.texts import filled_in, texts_of, words_in


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of message: what it means, and the calls that make it."""

    title: str
    meaning: str
    #: For each function or class that is called, the position and the name of the argument with the text.
    made_by: Mapping[str, tuple[int, str]]
    #: Only calls in these packages count.
    below: str = ""


KINDS = (
    Kind(
        title="Files that are left out, or not loaded completely",
        meaning="`plan`, `load`, `verify` and `why` print these behind the name of a file. Rows of the file that are "
        "loaded stay loaded, and all other files are loaded. `onceload why FILE NAME` explains one file, and says what "
        "the next load does with it. If a file needs a person, `load` ends with exit code 4.",
        made_by={"Note": (1, "reason"), "of_nothing_to_load": (1, "found")},
    ),
    Kind(
        title="Errors in a pipeline file",
        meaning="A command prints these behind the path, the line and the key, and ends with exit code 2. Nothing was "
        "started. Fix the line, and check the file with `onceload validate FILE`.",
        made_by={"Contradiction": (1, "sentence"), "refuse": (1, "message"), "refuse_line": (1, "message")},
        below="onceload.",
    ),
    Kind(
        title="Reasons of quarantined records",
        meaning="The record is not loaded, and is kept in quarantine with its bytes. All other records of the file are "
        "loaded. See them with `onceload quarantine list`, fix the source or the pipeline file, and run "
        "`onceload quarantine retry`.",
        made_by={
            "ValueRefused": (0, ""),
            "RecordRefused": (0, "reason"),
            "_refused": (2, "why"),
            "QuarantinedRecord": (3, "reason"),
        },
        below="onceload_jobs.formats.",
    ),
    Kind(
        title="Lines on stderr",
        meaning="Commands print these beside their results. None of them is an error.",
        made_by={"words": (0, "text"), "on_terminal": (0, "text")},
        below="onceload.",
    ),
)


def messages_page(code: Code) -> str:
    found = messages_by_kind(code)
    differences = "\n".join(f"- **{kind}**: {in_markdown(meaning)}." for kind, meaning in differences_of(code).items())
    parts = [_PREFACE, f"{_DIFFERENCES}\n\n{differences}"]
    for kind in KINDS:
        listed = "\n".join(f"- {in_markdown(each)}" for each in found[kind.title])
        parts.append(f"## {kind.title}\n\n{kind.meaning}\n\n{listed}")
    return page("Other messages", *parts)


_PREFACE = (
    "Messages that are not errors. Errors have [a page of their own](errors.md). Words in *italics* are filled in when "
    "the message is printed. Search this page for a few words of the message that you have."
)


_DIFFERENCES = (
    "## Differences that verify finds\n\n"
    "`verify` changes nothing. It prints each kind of difference with the number of them, and ends with exit code 4. "
    "How to continue: [Verify](../how-to/verify.md)."
)


def differences_of(code: Code) -> Mapping[str, str]:
    """What each kind of difference means, and what to do."""
    module = code.modules["onceload.commands.verify"]
    table = module.constants["_MEANING"]
    return {kind: filled_in(meaning) for kind, meaning in ast.literal_eval(table).items()}


def messages_by_kind(code: Code) -> Mapping[str, list[str]]:
    found: dict[str, set[str]] = {kind.title: set() for kind in KINDS}
    for name, call, scope in code.calls:
        for kind in KINDS:
            if name in kind.made_by and scope.module.name.startswith(kind.below):
                found[kind.title] |= set(_texts(call, *kind.made_by[name], scope))
    listed = differences_of(code).values()
    found = {title: {text for text in texts if not text.endswith(tuple(listed))} for title, texts in found.items()}
    return {title: sorted(texts, key=str.lower) for title, texts in found.items()}


def _texts(call: ast.Call, position: int, keyword: str, scope: Scope) -> Iterator[str]:
    by_name = named(call).get(keyword)
    for argument in [by_name] if by_name else call.args[position : position + 1]:
        yield from (text for text in texts_of(argument, scope) if words_in(text) > 1)
