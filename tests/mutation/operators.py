"""The faults: every way in which one function is made wrong, one at a time.

Words are left alone: what a person is told is tested by reading it. So nothing inside a text with
places in it, an annotation, a docstring or the arguments of an error is touched.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
Step: TypeAlias = tuple[str, int | None]
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

_COMPARED: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
}
_COUNTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
_NAMED = {"any": "all", "all": "any", "min": "max", "max": "min"}
_NARROWS = frozenset({"filter", "exclude", "get", "update", "create", "order_by"})
"""Calls of which each argument matters on its own."""


@dataclass(frozen=True)
class Mutation:
    """One fault of one function: what stands where, and what stands there instead."""

    path: tuple[Step, ...]
    instead: ast.AST
    line: int
    before: str
    after: str

    def applied(self, function: Function) -> Function:
        """A copy of the function with the fault in it."""
        mutant = copy.deepcopy(function)
        place: object = mutant
        for field, index in self.path[:-1]:
            place = getattr(place, field)
            place = place[index] if index is not None else place  # type: ignore[index]
        field, index = self.path[-1]
        new = ast.copy_location(copy.deepcopy(self.instead), function)
        if index is None:
            setattr(place, field, new)
        else:
            getattr(place, field)[index] = new
        return ast.fix_missing_locations(mutant)


def functions(tree: ast.Module) -> Iterator[tuple[str, Function]]:
    """Every function of a module and of its classes, by its qualified name."""

    def inside(body: Sequence[ast.stmt], prefix: str) -> Iterator[tuple[str, Function]]:
        for node in body:
            if isinstance(node, FUNCTIONS):
                yield f"{prefix}{node.name}", node
            elif isinstance(node, ast.ClassDef):
                yield from inside(node.body, f"{prefix}{node.name}.")

    yield from inside(tree.body, "")


def mutations(function: Function) -> Iterator[Mutation]:
    """Every fault of this function."""
    truth = isinstance(function.returns, ast.Name) and function.returns.id == "bool"
    for at, statement in enumerate(function.body):
        words = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if not words:
            yield from _statement(statement, (("body", at),), truth)


def _mutation(path: tuple[Step, ...], node: ast.AST, instead: ast.AST) -> Mutation:
    line = int(getattr(node, "lineno", 0))
    return Mutation(path, instead, line, _short(node), _short(instead))


def _short(node: ast.AST) -> str:
    text = " ".join(ast.unparse(ast.fix_missing_locations(copy.deepcopy(node))).split())
    return text if len(text) <= 90 else f"{text[:60]}…{text[-29:]}"


def _statement(node: ast.stmt, path: tuple[Step, ...], truth: bool) -> Iterator[Mutation]:
    if isinstance(node, ast.Expr | ast.Raise | ast.AugAssign | ast.Continue | ast.Break):
        yield _mutation(path, node, ast.Pass())
    elif isinstance(node, ast.Assign):
        if not all(isinstance(each, ast.Name) for each in node.targets):
            yield _mutation(path, node, ast.Pass())
    elif isinstance(node, ast.Return):
        yield from _returned(node, path, truth)
    if isinstance(node, ast.Raise):
        return
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "decorator_list", "returns", "type_params"):
            continue
        yield from _inside(node, field, value, path, truth)
    if isinstance(node, ast.If | ast.While):
        turned = ast.UnaryOp(ast.Not(), node.test)
        yield _mutation((*path, ("test", None)), node.test, turned)


def _returned(node: ast.Return, path: tuple[Step, ...], truth: bool) -> Iterator[Mutation]:
    others: tuple[bool | None, ...] = (True, False) if truth else (None,)
    for other in others:
        known = isinstance(node.value, ast.Constant) and node.value.value is other
        if node.value is not None and not known:
            yield _mutation(path, node, ast.Return(ast.Constant(other)))


def _inside(
    node: ast.AST, field: str, value: object, path: tuple[Step, ...], truth: bool
) -> Iterator[Mutation]:
    each: list[tuple[Step, object]]
    if isinstance(value, list):
        each = [((field, at), one) for at, one in enumerate(value)]
    else:
        each = [((field, None), value)]
    for step, one in each:
        if isinstance(one, ast.stmt):
            yield from _statement(one, (*path, step), truth)
        elif isinstance(one, ast.expr):
            yield from _expression(one, (*path, step))
        elif isinstance(one, ast.AST):
            for name, deeper in ast.iter_fields(one):
                if isinstance(one, ast.arg | ast.arguments):
                    continue
                yield from _inside(one, name, deeper, (*path, step), truth)
            if isinstance(one, ast.comprehension):
                for at, condition in enumerate(one.ifs):
                    place = (*path, step, ("ifs", at))
                    yield _mutation(place, condition, ast.UnaryOp(ast.Not(), condition))
                    yield _mutation(place, condition, ast.Constant(True))


def _expression(node: ast.expr, path: tuple[Step, ...]) -> Iterator[Mutation]:
    if isinstance(node, ast.JoinedStr):
        return
    for instead in _instead(node):
        yield _mutation(path, node, instead)
    for field, value in ast.iter_fields(node):
        if field not in ("ctx", "op", "ops", "slice" if _annotates(node) else ""):
            yield from _inside(node, field, value, path, False)


def _annotates(node: ast.expr) -> bool:
    return isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name)


def _instead(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        for other in _COMPARED[type(node.ops[0])]:
            yield ast.Compare(node.left, [other()], node.comparators)
    elif isinstance(node, ast.Compare):
        for at, op in enumerate(node.ops):
            for other in _COMPARED[type(op)]:
                yield ast.Compare(
                    node.left, [*node.ops[:at], other(), *node.ops[at + 1 :]], node.comparators
                )
    elif isinstance(node, ast.BoolOp):
        turned = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield ast.BoolOp(turned, node.values)
        for at in range(len(node.values)):
            rest = [*node.values[:at], *node.values[at + 1 :]]
            yield rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.Invert):
        yield node.operand
    elif isinstance(node, ast.BinOp) and type(node.op) in _COUNTED:
        yield ast.BinOp(node.left, _COUNTED[type(node.op)](), node.right)
    elif isinstance(node, ast.IfExp):
        yield node.body
        yield node.orelse
    elif isinstance(node, ast.Constant):
        yield from _constants(node)
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in _NAMED:
        yield ast.Name(_NAMED[node.id], ast.Load())
    elif isinstance(node, ast.Call):
        yield from _calls(node)
    elif isinstance(node, ast.Dict):
        for at in range(len(node.keys)):
            keys, values = [*node.keys], [*node.values]
            del keys[at], values[at]
            yield ast.Dict(keys, values)
    elif isinstance(node, ast.List | ast.Set) and not isinstance(
        getattr(node, "ctx", None), ast.Store
    ):
        for at in range(len(node.elts)):
            left = [*node.elts[:at], *node.elts[at + 1 :]]
            empty = ast.Call(ast.Name("set", ast.Load()), [], [])
            yield (
                (ast.Set(left) if left else empty)
                if isinstance(node, ast.Set)
                else ast.List(left, ast.Load())
            )


def _constants(node: ast.Constant) -> Iterator[ast.expr]:
    if isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    elif isinstance(node.value, int):
        yield ast.Constant(node.value + 1)
        yield ast.Constant(node.value - 1)


def _calls(node: ast.Call) -> Iterator[ast.expr]:
    if not (isinstance(node.func, ast.Attribute) and node.func.attr in _NARROWS):
        return
    for at in range(len(node.args)):
        yield ast.Call(node.func, [*node.args[:at], *node.args[at + 1 :]], node.keywords)
    for at in range(len(node.keywords)):
        yield ast.Call(node.func, node.args, [*node.keywords[:at], *node.keywords[at + 1 :]])
