"""Small faults that can be planted in a source file: which there are, where, and the tree with one.

A mutant is found by walking the syntax tree, never by text, so that messages, docstrings and
annotations stay as they are.
"""

from __future__ import annotations

import ast
import builtins
import copy
import difflib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

__all__ = ["Mutant", "mutant", "places", "planted"]

_COMPARE: dict[type, list[type[ast.cmpop]]] = {
    ast.Lt: [ast.LtE, ast.Gt],
    ast.LtE: [ast.Lt, ast.GtE],
    ast.Gt: [ast.GtE, ast.Lt],
    ast.GtE: [ast.Gt, ast.LtE],
    ast.Eq: [ast.NotEq],
    ast.NotEq: [ast.Eq],
    ast.Is: [ast.IsNot],
    ast.IsNot: [ast.Is],
    ast.In: [ast.NotIn],
    ast.NotIn: [ast.In],
}
_ARITHMETIC: dict[type, list[type[ast.operator]]] = {
    ast.Add: [ast.Sub],
    ast.Sub: [ast.Add],
    ast.Mult: [ast.Div],
    ast.Div: [ast.Mult],
    ast.FloorDiv: [ast.Mult],
    ast.Mod: [ast.FloorDiv],
    ast.Pow: [ast.Mult],
    ast.BitAnd: [ast.BitOr],
    ast.BitOr: [ast.BitAnd],
}
#: Names that are easily mistaken for each other, as functions, methods or keywords.
_PAIRS = [
    ("sum", "mean"),
    ("min", "max"),
    ("amin", "amax"),
    ("minimum", "maximum"),
    ("any", "all"),
    ("zeros", "ones"),
    ("zeros_like", "ones_like"),
    ("new_zeros", "new_ones"),
    ("tril", "triu"),
    ("variance", "precision"),
    ("covariance_matrix", "precision_matrix"),
    ("sqrt", "square"),
    ("exp", "expm1"),
    ("log", "log1p"),
    ("isfinite", "isnan"),
    ("logical_and", "logical_or"),
    ("nansum", "nanmean"),
    ("argmin", "argmax"),
    ("append", "extend"),
]
_MISTAKEN = {**dict(_PAIRS), **{b: a for a, b in _PAIRS}}


@dataclass(frozen=True)
class Mutant:
    """One fault.

    Attributes:
        path: of the file, relative to the repository.
        function: qualified name of the function or class it is in; "" at the top of the module.
        kind: of fault.
        before: the line as it is (as `ast.unparse` writes it).
        after: the line with the fault; "" where it is gone.
        lines: of the file that the changed statement covers; a test that runs none cannot see it.
        number: of the fault in the file.
    """

    path: str
    function: str
    kind: str
    before: str
    after: str
    lines: tuple[int, ...]
    number: int = field(compare=False)

    @property
    def key(self) -> str:
        """What tells it from others though lines move."""
        return f"{self.path} {self.function}: {self.before} -> {self.after}"


def places(source: str) -> list[list[int]]:
    """Numbers of the faults that a file may have, by the statement that each is in."""
    found: dict[tuple[str, tuple[int, ...]], list[int]] = {}
    for number, (place, _, _) in enumerate(_faults(ast.parse(source))):
        found.setdefault((place.function, place.lines), []).append(number)
    return list(found.values())


def mutant(path: str, source: str, number: int) -> Mutant | None:
    """A fault of a file; None where it leaves the byte code as it is.

    Args:
        path: of the file, as the result names it.
        source: its text.
        number: as `places` gives it.
    """
    tree = ast.parse(source)
    place, kind, _ = next(itertools.islice(_faults(tree), number, None))
    changed = planted(source, number)
    if _code(compile(changed, path, "exec")) == _code(compile(tree, path, "exec")):
        return None
    before, after = _difference(ast.unparse(tree).splitlines(), ast.unparse(changed).splitlines())
    return Mutant(path, place.function, kind, before, after, place.lines, number)


def planted(source: str, number: int) -> ast.Module:
    """The file's tree with fault `number` in it; lines are those of the file."""
    tree = ast.parse(source)
    place, _, new = next(itertools.islice(_faults(tree), number, None))
    ast.copy_location(new, place.node)
    if place.index is None:
        setattr(place.parent, place.name, new)
    else:
        getattr(place.parent, place.name)[place.index] = new
    return ast.fix_missing_locations(tree)


@dataclass(frozen=True)
class _Place:
    """A node, where it hangs, and what surrounds it."""

    node: ast.AST
    parent: ast.AST
    name: str
    index: int | None
    function: str
    lines: tuple[int, ...]


def _faults(tree: ast.Module) -> Iterator[tuple[_Place, str, ast.AST]]:
    for place in _places(tree, "", ()):
        for kind, new in _changes(place):
            yield place, kind, new


def _places(node: ast.AST, function: str, lines: tuple[int, ...]) -> Iterator[_Place]:
    """Everything below a node that may be changed, in order of the file."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "type_params", "decorator_list", "bases"):
            continue
        several = isinstance(value, list)
        for index, child in enumerate(value if several else [value]):
            if not isinstance(child, ast.AST) or _untouched(child):
                continue
            inner, covered = function, lines
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                inner = f"{function}.{child.name}" if function else child.name
                covered = _body(child) if isinstance(child, ast.FunctionDef) else ()
            elif isinstance(child, ast.stmt) and not (isinstance(node, ast.ClassDef) or not inner):
                covered = _header(child)
            yield _Place(child, node, name, index if several else None, inner, covered)
            yield from _places(child, inner, covered)


def _untouched(node: ast.AST) -> bool:
    if isinstance(node, ast.Import | ast.ImportFrom | ast.JoinedStr | ast.Assert):
        return True
    if isinstance(node, ast.FunctionDef) and node.name == "__repr__":
        return True
    if isinstance(node, ast.Assign | ast.AnnAssign):  # names for export, and of types
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        alias = isinstance(node, ast.AnnAssign) and "TypeAlias" in ast.unparse(node.annotation)
        return alias or (isinstance(target, ast.Name) and target.id == "__all__")
    if isinstance(node, ast.If):
        return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _body(node: ast.FunctionDef) -> tuple[int, ...]:
    """Lines of a function's first statements, for its defaults."""
    first = [one for one in node.body if not _untouched(one)][:1] or node.body[:1]
    return tuple(line for one in first for line in _header(one))


def _header(node: ast.stmt) -> tuple[int, ...]:
    """Lines of a statement without those of the statements inside."""
    last = node.end_lineno or node.lineno
    for name in ("body", "cases"):
        inner = getattr(node, name, None)
        if inner:
            last = max(node.lineno, getattr(inner[0], "lineno", inner[0].lineno) - 1)
    return tuple(range(node.lineno, last + 1))


def _changes(place: _Place) -> Iterator[tuple[str, ast.AST]]:
    """The faults of a node: kind and what stands there instead."""
    node = place.node
    if isinstance(node, ast.stmt):
        yield from _statement(node, place)
    elif isinstance(node, ast.Compare):
        for at, operator in enumerate(node.ops):
            for other in _COMPARE[type(operator)]:
                new = copy.deepcopy(node)
                new.ops[at] = other()
                yield "comparison", new
    elif isinstance(node, ast.BinOp):
        for other in _ARITHMETIC.get(type(node.op), []):
            yield "arithmetic", ast.BinOp(node.left, other(), node.right)
        yield "operand dropped", node.left
        if isinstance(node.op, ast.Sub | ast.Div | ast.Pow):
            yield "operands swapped", ast.BinOp(node.right, node.op, node.left)
        else:
            yield "operand dropped", node.right
    elif isinstance(node, ast.UnaryOp):
        if not isinstance(node.operand, ast.Constant) or isinstance(node.op, ast.Not):
            yield "sign or not dropped", node.operand
    elif isinstance(node, ast.BoolOp):
        other = ast.And() if isinstance(node.op, ast.Or) else ast.Or()
        yield "and/or", ast.BoolOp(other, node.values)
        for at in range(len(node.values)):
            left = [value for i, value in enumerate(node.values) if i != at]
            yield "condition dropped", left[0] if len(left) == 1 else ast.BoolOp(node.op, left)
    elif isinstance(node, ast.IfExp):
        yield "arms swapped", ast.IfExp(node.test, node.orelse, node.body)
    elif isinstance(node, ast.Constant):
        yield from _constant(node)
    elif isinstance(node, ast.Call):
        yield from _call(node)
    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
        if node.attr == "mT":
            yield "transpose dropped", node.value
        elif node.attr in _MISTAKEN:
            yield "name", ast.Attribute(node.value, _MISTAKEN[node.attr], node.ctx)
    elif isinstance(node, ast.Name) and hasattr(builtins, _MISTAKEN.get(node.id, "")):
        yield "name", ast.Name(_MISTAKEN[node.id], node.ctx)


def _statement(node: ast.stmt, place: _Place) -> Iterator[tuple[str, ast.AST]]:
    local = isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name | ast.Tuple)
    simple = ast.Expr | ast.Raise | ast.Break | ast.Continue | ast.AugAssign | ast.Assign
    if place.function and isinstance(node, simple) and not local:
        yield "statement removed", ast.Pass()
    if isinstance(node, ast.If | ast.While):
        new = copy.copy(node)
        new.test = ast.UnaryOp(ast.Not(), node.test)
        yield "condition negated", new
    if isinstance(node, ast.AugAssign):
        for other in _ARITHMETIC.get(type(node.op), []):
            yield "arithmetic", ast.AugAssign(node.target, other(), node.value)


def _constant(node: ast.Constant) -> Iterator[tuple[str, ast.AST]]:
    value = node.value
    if isinstance(value, bool):
        yield "constant", ast.Constant(not value)
    elif isinstance(value, int):
        yield "constant", ast.Constant(value + 1)
        yield "constant", ast.Constant(value - 1)
    elif isinstance(value, float):
        yield "constant", ast.Constant(1.0 if value == 0 else 2 * value)
        yield "constant", ast.Constant(value + 1)


def _call(node: ast.Call) -> Iterator[tuple[str, ast.AST]]:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if name not in ("isinstance", "getattr", "hasattr", "max", "min", "zip"):
        for at, (one, two) in enumerate(itertools.pairwise(node.args)):
            if type(one) is type(two) and not isinstance(one, ast.Starred):
                args = [*node.args[:at], two, one, *node.args[at + 2 :]]
                yield "arguments swapped", ast.Call(node.func, args, node.keywords)
    if name == "where" and len(node.args) == 3:
        yield "arms swapped", ast.Call(node.func, [node.args[i] for i in (0, 2, 1)], node.keywords)
    for at, keyword in enumerate(node.keywords):
        others = [one for i, one in enumerate(node.keywords) if i != at]
        yield "argument dropped", ast.Call(node.func, node.args, others)
        if keyword.arg in _MISTAKEN:
            wrong = ast.keyword(_MISTAKEN[keyword.arg], keyword.value)
            yield "name", ast.Call(node.func, node.args, [*others, wrong])
    if isinstance(node.func, ast.Attribute) and not (node.args or node.keywords):
        yield "call dropped", node.func.value


def _code(code: object) -> object:
    """Byte code and constants, without places."""
    if hasattr(code, "co_code"):
        constants = tuple(_code(one) for one in code.co_consts)
        return code.co_code, code.co_names, code.co_varnames, constants
    return type(code), code


def _difference(old: list[str], new: list[str]) -> tuple[str, str]:
    lines = list(difflib.unified_diff(old, new, n=0, lineterm=""))[2:]
    before = " ".join(line[1:].strip() for line in lines if line.startswith("-"))
    after = " ".join(line[1:].strip() for line in lines if line.startswith("+"))
    return before, after
