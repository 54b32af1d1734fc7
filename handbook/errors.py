"""The page of all errors: exit code, cause, and the message with each of its variants."""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from handbook.code import Code, Scope, name_of, named
from handbook.markdown import in_markdown, page
from handbook.texts import CLOSE, OPEN, filled_in, in_turn, texts_of, words_in

ROOT_ERROR = "OnceloadError"
#: What a group means, in the words of its docstring, and what to do.
GROUPS = {
    "CallAgain": (1, "retry", "Run the same command again. Airflow retries by itself."),
    "WrongUse": (2, "wrong use", "Change the call, the settings or the installation. A retry would fail again."),
    "AskTheLedger": (3, "outcome unknown", "Run the same command again: it asks the ledger before it writes anything."),
    "NeedsAPerson": (4, "needs a person", "Do what the message asks, and run the command again."),
}


@dataclass(frozen=True, eq=False)
class ErrorClass:
    """An error, as it is written in the code."""

    name: str
    node: ast.ClassDef
    scope: Scope
    base: "ErrorClass | None"

    @property
    def group(self) -> str:
        return self.name if self.base is None or self.base.name == ROOT_ERROR else self.base.group

    @cached_property
    def fields(self) -> tuple[str, ...]:
        """The facts, in the order of the arguments."""
        own = [
            each.target.id
            for each in self.node.body
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
            if "ClassVar" not in ast.unparse(each.annotation)
        ]
        return (*(self.base.fields if self.base else ()), *own)

    @cached_property
    def messages(self) -> list[str]:
        """The texts that `str` may return."""
        for each in self.node.body:
            if isinstance(each, ast.FunctionDef) and each.name == "__str__":
                returned = (node.value for node in ast.walk(each) if isinstance(node, ast.Return) and node.value)
                return [text for value in returned for text in texts_of(value, Scope(self.scope.module, each))]
        return self.base.messages if self.base else []

    @cached_property
    def inserted(self) -> list[str]:
        """Texts of a table that the message takes two or more of at once."""
        names = sorted({node.id for node in ast.walk(self.node) if isinstance(node, ast.Name)})
        tables = [found for name in names if (found := self.scope.module.find_constant(name))]
        rows = [
            (Scope(where, None), row)
            for where, table in tables
            if isinstance(table, ast.Dict)
            for row in table.values
            if isinstance(row, ast.Tuple)
        ]
        return [filled_in(" ".join(texts_of(each, scope)[0] for each in row.elts)) for scope, row in rows]


def find_errors(code: Code) -> Mapping[str, ErrorClass]:
    """Every error of the product, by name."""
    found: dict[str, ErrorClass] = {}
    classes = [
        (node, Scope(module, None))
        for module in code.modules.values()
        for node in module.tree.body
        if isinstance(node, ast.ClassDef)
    ]
    grows = True
    while grows:
        grows = False
        for node, scope in classes:
            base = next((name_of(each) for each in node.bases), "")
            if node.name not in found and (base in found or node.name == ROOT_ERROR):
                found[node.name] = ErrorClass(node.name, node, scope, found.get(base))
                grows = True
    return found


def causes(code: Code) -> Mapping[str, str]:
    """What the drawing of the tree says of each error."""
    drawing = ast.get_docstring(code.modules["onceload_core.errors"].tree) or ""
    return dict(re.findall(r"(?m)── (\w+) +(.*?)(?: +\(exit \d\))?$", drawing))


def raised_as(code: Code, errors: Mapping[str, ErrorClass]) -> Mapping[str, list[str]]:
    """The messages that the places which raise an error give it, as far as their words are in the code."""
    found: dict[str, list[str]] = {name: [] for name in errors}
    for name, call, scope in code.calls:
        if name in errors:
            found[name] += _messages_of(errors[name], call, scope)
    return {name: sorted(set(messages)) for name, messages in found.items()}


def _messages_of(error: ErrorClass, call: ast.Call, scope: Scope) -> Iterator[str]:
    given = {**dict(zip(error.fields, call.args, strict=False)), **named(call)}
    texts = {name: texts_of(value, scope) for name, value in given.items()}
    worded = {name: each for name, each in texts.items() if any(map(words_in, each))}
    if not any(" " in text and words_in(text) > 1 for each in worded.values() for text in each):
        return
    for choice in in_turn(list(worded.values())):
        message = error.messages[0]
        for name, text in zip(worded, choice, strict=True):
            message = message.replace(f"{OPEN}{name.replace('_', ' ')}{CLOSE}", text)
        yield message


def errors_page(code: Code) -> str:
    errors = find_errors(code)
    variants, known = raised_as(code, errors), causes(code)
    parts = [_PREFACE, _exit_codes(code)]
    for group, (exit_code, meaning, _) in GROUPS.items():
        parts.append(f"## Exit code {exit_code}: {meaning}\n\n{_docstring(errors[group])}")
        members = sorted(name for name, each in errors.items() if each.group == group and name != group)
        parts += [_entry(errors[name], known[name], variants[name]) for name in members]
    return page("Errors and exit codes", *parts)


_PREFACE = (
    "Each error that ends a command, with its exit code, its cause and its message. Words in *italics* are filled in "
    "when the message is printed. A message says what happened, what it means for the data, and what to do: "
    "it is more exact than the table below. Search this page for a few words of the message that you have.\n\n"
    "With `--json`, a command prints the name of the error, the message and the exit code as one document. "
    "`ONCELOAD_LOG=debug` also prints the traceback."
)


def _exit_codes(code: Code) -> str:
    errors = find_errors(code)
    rows = [
        f"| {number} | {meaning} | {_docstring(errors[name])} | {fix} |"
        for name, (number, meaning, fix) in GROUPS.items()
    ]
    head = "| exit code | name | meaning for the data | what to do |\n| --- | --- | --- | --- |"
    done = "| 0 | done | The command did what it was asked, or there was nothing to do. | Nothing. |"
    return "\n".join(["## Exit codes", "", head, done, *rows])


def _docstring(error: ErrorClass) -> str:
    return (ast.get_docstring(error.node) or "").split("\n")[0]


def _entry(error: ErrorClass, cause: str, variants: Sequence[str]) -> str:
    lines = [
        f"### {error.name}",
        f"Cause: {in_markdown(cause)}.",
        *(f"> {in_markdown(each)}" for each in error.messages),
    ]
    if error.inserted:
        lines += ["With one of these texts:", "\n".join(f"- {in_markdown(each)}" for each in error.inserted)]
    if variants:
        lines += ["For example:", "\n".join(f"- {in_markdown(each)}" for each in variants)]
    return "\n\n".join(lines)
