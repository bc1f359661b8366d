"""Put a fault in its place: the running function is given other code, whoever imported it."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from tests.mutation.operators import Function, Mutation, functions, mutations

UNGUARDED = "transaction.atomic"


@dataclass(frozen=True)
class Mutant:
    """One function with one fault, or without the transaction around it (`mutation` is None)."""

    module: str
    function: str
    line: int
    text: str
    mutation: Mutation | None

    @property
    def name(self) -> str:
        """The same as long as the function's text is."""
        return f"{self.module}:{self.function}: {self.text}"

    def install(self) -> None:
        """From now on this process has the fault."""
        owner = importlib.import_module(self.module)
        found = _found(owner, self.function)
        if self.mutation is None:
            bare = _bare(None, None).__code__
            while found.__code__.co_freevars != bare.co_freevars:
                found = found.__wrapped__
            found.__code__ = bare
            return
        while not isinstance(found, FunctionType) or _wraps(found):
            found = found.__wrapped__
        found.__code__ = self._code(Path(str(owner.__file__)))

    def _code(self, path: Path) -> CodeType:
        assert self.mutation is not None
        tree = ast.parse(path.read_text(encoding="utf-8"))
        node = dict(functions(tree))[self.function]
        mutant = self.mutation.applied(node)
        mutant.decorator_list = []
        for holder in ast.walk(tree):
            for field in ("body",):
                rows = getattr(holder, field, None)
                if isinstance(rows, list) and node in rows:
                    rows[rows.index(node)] = mutant
        code = compile(ast.fix_missing_locations(tree), str(path), "exec")
        return next(
            each
            for each in _codes(code)
            if each.co_qualname == self.function and each.co_name == node.name
        )


def mutants(module: str, only: frozenset[str] = frozenset()) -> Iterator[Mutant]:
    """All of a module, or of some of its functions."""
    owner = importlib.import_module(module)
    tree = ast.parse(inspect.getsource(owner))
    known = dict(functions(tree))
    if missing := only - set(known):
        raise LookupError(f"{module} has no function {', '.join(sorted(missing))}.")
    for name, node in known.items():
        if only and name not in only:
            continue
        seen: dict[str, int] = {}
        for mutation in mutations(node):
            text = f"{mutation.before} → {mutation.after}"
            seen[text] = seen.get(text, 0) + 1
            again = f" ({seen[text]})" if seen[text] > 1 else ""
            yield Mutant(module, name, mutation.line, f"{text}{again}", mutation)
        if _is_atomic(node):
            # Where it begins, not where it ends: a test of it fails somewhere in between.
            begins = node.body[1 if ast.get_docstring(node) and node.body[1:] else 0]
            yield Mutant(module, name, begins.lineno, f"no {UNGUARDED}", None)


def _is_atomic(node: Function) -> bool:
    return any(UNGUARDED in ast.unparse(each) for each in node.decorator_list)


def _found(owner: ModuleType, name: str) -> Any:
    """The function of that qualified name, as its module has it."""
    place: Any = owner
    *classes, last = name.split(".")
    for each in classes:
        place = getattr(place, each)
    found = inspect.getattr_static(place, last)
    if isinstance(found, property):
        return found.fget
    if isinstance(found, cached_property):
        return found.func
    if isinstance(found, classmethod | staticmethod):
        return found.__func__
    return found


def _wraps(found: Callable[..., Any]) -> bool:
    return hasattr(found, "__wrapped__")


def _bare(func: Any, self: Any) -> Any:
    """What a decorating context makes of a function, without the context.

    Its code takes the place of `contextlib.ContextDecorator`'s, which has the same two free names.
    """

    def inner(*args: Any, **kwds: Any) -> Any:
        with nullcontext(self):
            return func(*args, **kwds)

    return inner


@lru_cache
def _codes(code: CodeType) -> tuple[CodeType, ...]:
    found = [code]
    for each in code.co_consts:
        if isinstance(each, CodeType):
            found += _codes(each)
    return tuple(found)
