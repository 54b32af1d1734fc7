"""The texts that an expression may have, with the names of values where only a running program knows them."""

import ast
import re
from collections.abc import Iterator, Sequence
from itertools import islice

from handbook.code import Scope, name_of

_TEXTS_MAX = 40
_DEPTH_MAX = 12
#: These are around the name of a value.
OPEN, CLOSE = "\u2039", "\u203a"
_TWICE = re.compile(f"({OPEN}[^{CLOSE}]*{CLOSE})\\1+")


def texts_of(node: ast.expr, scope: Scope, depth: int = 0) -> list[str]:
    """All texts that are known, or else the name of the value."""
    found = list(islice(dict.fromkeys(_texts(node, scope, depth + 1)), _TEXTS_MAX)) if depth < _DEPTH_MAX else []
    return found or [placeholder(node)]


def _texts(node: ast.expr, scope: Scope, depth: int) -> Iterator[str]:
    match node:
        case ast.Constant(value):
            yield str(value)
        case ast.JoinedStr(parts):
            yield from _joined(parts, scope, depth)
        case ast.BinOp(left, ast.Add(), right):
            yield from _joined([left, right], scope, depth)
        case ast.FormattedValue(value):
            yield from texts_of(value, scope, depth)
        case ast.IfExp(_, body, orelse):
            yield from (*texts_of(body, scope, depth), *texts_of(orelse, scope, depth))
        case ast.Name(name):
            for where, value in scope.values_of(name, node):
                found = texts_of(value, where, depth)
                yield from found if _is_fixed(value, where) else _worded(found)
        case ast.Subscript(ast.Name() as table):
            yield from _in_table(table, scope, depth)
        case ast.Call():
            yield from _of_call(node, scope, depth)
        case _:
            pass


def _of_call(node: ast.Call, scope: Scope, depth: int) -> Iterator[str]:
    match node:
        case ast.Call(ast.Attribute(ast.Name() as table, "get"), [_, *default]):
            yield from _in_table(table, scope, depth)
            yield from (text for each in default for text in texts_of(each, scope, depth))
        case ast.Call(ast.Attribute(ast.Constant(str(between)), "join"), [ast.Tuple(parts)]):
            for pieces in in_turn([texts_of(part, scope, depth) for part in parts]):
                yield between.join(pieces)
        case ast.Call(ast.Attribute(ast.Constant(str()), "join"), [ast.GeneratorExp(each)]):
            yield from _worded(texts_of(each, scope, depth))
        case ast.Call(ast.Attribute(template, "format"), arguments):
            for text in texts_of(template, scope, depth):
                yield filled_in(text, [placeholder(each) for each in arguments])
        case ast.Call(ast.Name(name)) if found := scope.module.find_function(name):
            inside = Scope(*found)
            returned = (each.value for each in ast.walk(found[1]) if isinstance(each, ast.Return) and each.value)
            yield from (text for value in returned for text in _worded(texts_of(value, inside, depth)))


def _joined(parts: Sequence[ast.expr], scope: Scope, depth: int) -> Iterator[str]:
    for pieces in in_turn([texts_of(part, scope, depth) for part in parts]):
        # A value that is shown in two halves, such as with a capital letter, is one value.
        yield _TWICE.sub(r"\1", "".join(pieces))


def _in_table(table: ast.Name, scope: Scope, depth: int) -> Iterator[str]:
    for where, found in scope.values_of(table.id, table):
        for value in found.values if isinstance(found, ast.Dict) else ():
            yield from _worded(texts_of(value, where, depth))


def in_turn(choices: Sequence[Sequence[str]]) -> Iterator[list[str]]:
    """Each choice at least once: the first ones together, then the second ones, as they usually go together."""
    for at in range(max(map(len, choices), default=0)):
        yield [each[min(at, len(each) - 1)] for each in choices]


def filled_in(template: str, values: Sequence[str] = ()) -> str:
    """A template for `str.format`, with names in place of its fields."""
    left = iter(values)

    def value_of(field: re.Match[str]) -> str:
        if field[1].isdigit() and int(field[1]) < len(values):
            return values[int(field[1])]
        return _quoted(field[1]) if field[1] else next(left, _quoted(""))

    return re.sub(r"\{(\w*)[^{}]*\}", value_of, template)


def words_in(text: str) -> int:
    return len(re.findall(r"[A-Za-z]{2,}", re.sub(f"{OPEN}[^{CLOSE}]*{CLOSE}", "", text)))


def _worded(texts: Sequence[str]) -> Iterator[str]:
    """Texts that have words of their own."""
    return (text for text in texts if words_in(text))


def _is_fixed(value: ast.expr, where: Scope) -> bool:
    """Whether an assigned value stays: a number in a function is only where a count begins."""
    return isinstance(value, ast.Constant) and (where.function is None or isinstance(value.value, str))


def placeholder(node: ast.expr) -> str:
    return _quoted(name_of(node))


def _quoted(name: str) -> str:
    return f"{OPEN}{name.strip('_').replace('_', ' ').lower() or '…'}{CLOSE}"
