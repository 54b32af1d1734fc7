"""The source code of the product as syntax trees, read without importing it."""

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("dedup_core/onceload_core", "spark_jobs/onceload_jobs", "onceload", "plugins/onceload_airflow")
#: A value that is passed in from more places than this says nothing about one message.
_CALLS_MAX = 6

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, eq=False)
class Module:
    """One file of source code."""

    name: str
    tree: ast.Module
    code: "Code" = field(repr=False)

    @cached_property
    def constants(self) -> Mapping[str, ast.expr]:
        """The values assigned at the top of the module."""
        return dict(_assigned(self.tree.body))

    @cached_property
    def imported(self) -> Mapping[str, tuple[str, str]]:
        """The module and the name behind each name that is imported."""
        imports = (node for node in ast.walk(self.tree) if isinstance(node, ast.ImportFrom) and node.module)
        return {each.asname or each.name: (str(node.module), each.name) for node in imports for each in node.names}

    @cached_property
    def functions(self) -> Mapping[str, Function]:
        return {node.name: node for node in self.tree.body if isinstance(node, Function)}

    def find_constant(self, name: str) -> tuple["Module", ast.expr] | None:
        if name in self.constants:
            return self, self.constants[name]
        module, original = self.imported.get(name, ("", ""))
        there = self.code.modules.get(module)
        return there.find_constant(original) if there else None

    def find_function(self, name: str) -> tuple["Module", Function] | None:
        if name in self.functions:
            return self, self.functions[name]
        module, original = self.imported.get(name, ("", ""))
        there = self.code.modules.get(module)
        return there.find_function(original) if there else None


@dataclass(frozen=True, eq=False)
class Scope:
    """Where an expression is, which decides what its names mean."""

    module: Module
    function: Function | None

    def values_of(self, name: str, used: ast.expr) -> Sequence[tuple["Scope", ast.expr]]:
        """The expressions that a name may hold: assigned in the function, passed to it, or at the top of a module."""
        if self.function is not None:
            if here := self._assigned_before(name, used):
                return [(self, value) for value in here]
            if name in {each.arg for each in ast.walk(self.function) if isinstance(each, ast.arg)}:
                return self._passed_as(name, self.function)
        found = self.module.find_constant(name)
        return [(Scope(found[0], None), found[1])] if found else []

    def _assigned_before(self, name: str, used: ast.expr) -> list[ast.expr]:
        """The last assignment before a place if it is in the same block, or else those of all branches."""
        statements = [node for node in ast.walk(self.function or self.module.tree) if isinstance(node, ast.stmt)]
        around = [each for each in statements if each.lineno <= used.lineno <= (each.end_lineno or 0)]
        block = max((each.col_offset for each in around), default=0)
        before = sorted((each for each in statements if each.lineno < used.lineno), key=lambda each: each.lineno)
        found = [(each, value) for each in before for target, value in _assigned([each]) if target == name]
        if found and found[-1][0].col_offset == block:
            return [found[-1][1]]
        return [value for _, value in found]

    def _passed_as(self, name: str, function: Function) -> list[tuple["Scope", ast.expr]]:
        """The arguments of all calls of a function for one of its parameters."""
        # A private function is called in its own module only, and other modules may have one of the same name.
        is_private = function.name.startswith("_")
        if not is_private and self.module.functions.get(function.name) is not function:
            return []
        positions = [each.arg for each in function.args.args if each.arg not in ("self", "cls")]
        calls = self.module.code.calls_of.get(function.name, ())
        given = [
            (scope, {**dict(zip(positions, call.args, strict=False)), **named(call)})
            for call, scope in calls
            if scope.module is self.module or not is_private
        ]
        found = [(scope, arguments[name]) for scope, arguments in given if name in arguments]
        return found if len(found) <= _CALLS_MAX else []


class Code:
    """All source files of the product."""

    def __init__(self, root: Path = ROOT) -> None:
        self.modules: dict[str, Module] = {}
        for package in PACKAGES:
            above = (root / package).parent
            for path in sorted((root / package).rglob("*.py")):
                name = ".".join(path.relative_to(above).with_suffix("").parts).removesuffix(".__init__")
                self.modules[name] = Module(name, ast.parse(path.read_text("utf-8")), self)

    @cached_property
    def calls(self) -> list[tuple[str, ast.Call, Scope]]:
        """Every call, with the name of what is called."""
        found = (each for module in self.modules.values() for each in _calls(module.tree, Scope(module, None)))
        return [(name_of(call.func), call, scope) for call, scope in found]

    @cached_property
    def calls_of(self) -> Mapping[str, list[tuple[ast.Call, Scope]]]:
        """The calls of each name."""
        found: dict[str, list[tuple[ast.Call, Scope]]] = {}
        for name, call, scope in self.calls:
            found.setdefault(name, []).append((call, scope))
        return found


def named(call: ast.Call) -> dict[str, ast.expr]:
    """The arguments of a call that are passed by name."""
    return {each.arg: each.value for each in call.keywords if each.arg}


def name_of(node: ast.AST) -> str:
    """The name that says most about a value: a part of a value has the name of the whole."""
    match node:
        case ast.Name(name) | ast.Attribute(_, name):
            return name
        case ast.Call(_, [part, *_]) | ast.Call(ast.Attribute(part)) | ast.Call(part):
            return name_of(part)
        case ast.Subscript(part) | ast.Starred(part) | ast.FormattedValue(part) | ast.BinOp(part):
            return name_of(part)
        case ast.GeneratorExp(_, [first, *_]) | ast.ListComp(_, [first, *_]):
            return name_of(first.iter)
        case _:
            return ""


def _assigned(statements: Iterable[ast.AST]) -> Iterator[tuple[str, ast.expr]]:
    for each in statements:
        match each:
            case ast.Assign([ast.Name(name)], value) | ast.AnnAssign(ast.Name(name), _, ast.expr() as value):
                yield name, value
            case ast.Assign([ast.Tuple(targets)], ast.Tuple(values)):
                pairs = zip(targets, values, strict=False)
                yield from ((target.id, value) for target, value in pairs if isinstance(target, ast.Name))
            case _:
                pass


def _calls(node: ast.AST, scope: Scope) -> Iterator[tuple[ast.Call, Scope]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Call):
            yield child, scope
        yield from _calls(child, Scope(scope.module, child) if isinstance(child, Function) else scope)
