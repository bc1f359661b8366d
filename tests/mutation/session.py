"""One session of pytest that stays warm: nothing runs in it but its forks.

The session sets its database up by running one test. Then every test runs once in a fork that
notes which lines of which module it passes through and how long it takes, and each mutant in a
fork of its own. A fork ends without tidying up: what it used was its own.
"""

from __future__ import annotations

import contextlib
import faulthandler
import hashlib
import math
import os
import pickle
import resource
import signal
import sqlite3
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Literal

import pytest
from _pytest.runner import runtestprotocol
from django.db import connections

from tests.mutation.place import Mutant

Fate = Literal["killed", "timeout", "survived", "uncovered"]
NOT_HERE = ("bubblewrap", "docker", "browser", "postgres", "package_index")
"""Marks of tests that need more than this process: processes of their own would have no fault."""

PATIENCE = 6.0
"""A mutant may take so many times what its tests take without it, and `Session.least` more.

That is time of the processor: a busy machine makes no test slower.
"""
LONGER = 20
"""So many times as long it may wait, for others that use the processor or for what never comes."""

ENOUGH = 200
"""Calls of one function by one test whose lines are looked at."""

SAID = os.dup(2)
"""Where forks, whose output goes nowhere, say how far they are."""


@dataclass
class Covered:
    """What one test passes through: lines by file, and its seconds."""

    lines: Mapping[str, frozenset[int]]
    seconds: float


@dataclass
class Told:
    """What became of one mutant."""

    mutant: Mutant
    fate: Fate
    by: str = ""
    tests: int = 0
    words: str = ""


@dataclass
class Session:
    """The pytest plugin that runs mutants in the place of tests."""

    mutants: Sequence[Mutant]
    files: Mapping[str, str]
    kept: Path | None = None
    budget: float = 60.0
    least: float = 20.0
    told: list[Told] = field(default_factory=list)
    report: Callable[[Told], None] = lambda told: None
    _items: dict[str, pytest.Item] = field(default_factory=dict)
    _killers: list[str] = field(default_factory=list)
    _proven: set[str] = field(default_factory=set)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = [
            item
            for item in session.items
            if not any(item.get_closest_marker(mark) for mark in NOT_HERE)
            and not _on_postgres(item)
        ]
        if session.testsfailed or not items:
            raise pytest.UsageError("There is no test to run mutants with.")
        self._items = {item.nodeid: item for item in items}
        self._warm(items)
        covered = self._covered(items)
        for mutant in self.mutants:
            told = self._tried(mutant, covered)
            self.told.append(told)
            self.report(told)
        return True

    # --- The ground

    def _warm(self, items: Sequence[pytest.Item]) -> None:
        """Make what all tests share, by running one of them that needs the most."""
        wants = [each for each in items if "transactional_db" in getattr(each, "fixturenames", ())]
        first = (wants or items)[0]
        # Somebody comes after it, or what is shared would go again.
        reports = runtestprotocol(first, log=False, nextitem=items[-1])
        if any(report.failed for report in reports):
            raise pytest.UsageError(f"{first.nodeid} fails without a fault.")
        _leave_databases()
        assert threading.active_count() == 1, threading.enumerate()

    def _covered(self, items: Sequence[pytest.Item]) -> dict[str, Covered]:
        """Every test's lines; tests that fail without a fault are left out, and said."""
        # Of the code as it is now: somebody may write it while this takes its time.
        sources = self._sources()
        found = self._known(items, sources)
        unknown = [item for item in items if item.nodeid not in found]
        if unknown:
            found |= _forked(lambda: list(self._traced(unknown)), 3_600)
        if self.kept is not None:
            tests = {item.nodeid: _text_digest(item.path) for item in items}
            self.kept.write_bytes(pickle.dumps((sources, tests, found)))
        return found

    def _known(self, items: Sequence[pytest.Item], now: Mapping[str, str]) -> dict[str, Covered]:
        """What the kept map still says truly: of the same code, by tests of the same text."""
        if self.kept is None or not self.kept.exists():
            return {}
        sources, tests, found = pickle.loads(self.kept.read_bytes())
        if sources != now:
            return {}
        return {
            item.nodeid: found[item.nodeid]
            for item in items
            if item.nodeid in found and tests[item.nodeid] == _text_digest(item.path)
        }

    def _sources(self) -> dict[str, str]:
        return {module: _text_digest(Path(name)) for name, module in self.files.items()}

    def _traced(self, items: Sequence[pytest.Item]) -> Iterator[tuple[str, Covered]]:
        passed: dict[str, set[int]] = {}
        often: Counter[CodeType] = Counter()

        def lines(frame: FrameType, event: str, _: Any) -> Any:
            if event == "line":
                passed[frame.f_code.co_filename].add(frame.f_lineno)
            return lines

        def calls(frame: FrameType, event: str, _: Any) -> Any:
            name = frame.f_code.co_filename
            if name not in self.files:
                return None
            passed.setdefault(name, set()).add(frame.f_lineno)
            # A property tried a thousand times passes through the same lines soon.
            often[frame.f_code] += 1
            return lines if often[frame.f_code] <= ENOUGH else None

        for at, (item, after) in enumerate(zip(items, [*items[1:], items[0]], strict=True)):
            if at % 50 == 0:
                os.write(SAID, f"lines of {at} of {len(items)} tests\n".encode())
            passed.clear()
            often.clear()
            began = time.process_time()
            threading.settrace(calls)
            sys.settrace(calls)
            try:
                reports = runtestprotocol(item, log=False, nextitem=after)
            finally:
                sys.settrace(None)
                threading.settrace(None)
            if any(report.failed for report in reports):
                if at == 0:
                    raise pytest.UsageError(f"{item.nodeid} fails in a fork without a fault.")
                os.write(SAID, f"left out, it fails without a fault: {item.nodeid}\n".encode())
                continue
            took = time.process_time() - began
            own = {self.files[name]: frozenset(each) for name, each in passed.items()}
            yield item.nodeid, Covered(own, took)

    # --- One mutant

    def _tried(self, mutant: Mutant, covered: dict[str, Covered]) -> Told:
        through = {
            name: each.seconds
            for name, each in covered.items()
            if mutant.line in each.lines.get(mutant.module, ())
        }
        if not through:
            return Told(mutant, "uncovered")
        # Whoever noticed a fault lately notices the next one too, and the quick come first.
        late = {name: at for at, name in enumerate(self._killers[-12:])}
        order = sorted(through, key=lambda name: (-late.get(name, -1), through[name]))
        order, seconds = _within(order, through, self.budget)
        failed = _forked_until(
            lambda: self._failing(mutant, order), self.least + PATIENCE * seconds
        )
        if failed is None:
            return Told(mutant, "timeout", tests=len(order))
        killer, words = failed
        if not killer:
            return Told(mutant, "survived", tests=len(order))
        if killer not in self._proven:
            # It may fail after those before it, or by itself in a fork, whatever the fault.
            before = order[: order.index(killer) + 1]
            patience = self.least + PATIENCE * sum(through[each] for each in before)
            anyway = _forked_until(lambda: self._failing(None, before), patience)
            if anyway is None or anyway[0]:
                unfit, why = anyway or (killer, "it does not end")
                os.write(SAID, f"left out, it fails without a fault: {unfit}: {why}\n".encode())
                del covered[unfit]
                return self._tried(mutant, covered)
            self._proven.add(killer)
        if killer in self._killers:
            self._killers.remove(killer)
        self._killers.append(killer)
        return Told(mutant, "killed", killer, len(order), words)

    def _failing(self, mutant: Mutant | None, order: Sequence[str]) -> tuple[str, str]:
        """The first test that fails with the fault, and in which words; or nothing."""
        if mutant is not None:
            mutant.install()
        items = [self._items[name] for name in order]
        for item, after in zip(items, [*items[1:], items[0]], strict=True):
            for report in runtestprotocol(item, log=False, nextitem=after):
                if report.failed:
                    crash = getattr(report.longrepr, "reprcrash", None)
                    words = str(crash.message if crash else report.longrepr)
                    return item.nodeid, " ".join(words.split())[:200]
        return "", ""


def _on_postgres(item: pytest.Item) -> bool:
    return "postgres" in item.nodeid.rpartition("[")[2]


def _text_digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _within(
    order: Sequence[str], seconds: Mapping[str, float], budget: float
) -> tuple[list[str], float]:
    """As many of the tests, in order, as take that long together; at least one."""
    taken: list[str] = []
    total = 0.0
    for name in order:
        if taken and total + seconds[name] > budget:
            break
        taken.append(name)
        total += seconds[name]
    return taken, total


# --- Forks ------------------------------------------------------------------------------


def _leave_databases() -> None:
    for connection in connections.all(initialized_only=True):
        connection.close()
        pool = getattr(connection, "close_pool", None)
        if pool is not None:
            pool()


def _own_database() -> None:
    """A copy of the file, so that whatever this fork leaves in it goes with it."""
    for connection in connections.all():
        name = str(connection.settings_dict["NAME"])
        if connection.vendor != "sqlite" or not Path(name).is_file():
            continue
        own = f"{name}-{os.getpid()}"
        # Not the file alone: what was committed last may still be in the log beside it.
        with (
            contextlib.closing(sqlite3.connect(name)) as shared,
            contextlib.closing(sqlite3.connect(own)) as copy,
        ):
            shared.backup(copy)
        connection.settings_dict["NAME"] = own
        connections.settings[connection.alias]["NAME"] = own


def _forked(work: Callable[[], Any], seconds: float) -> dict[str, Any]:
    answer = _forked_until(lambda: dict(work()), seconds)
    if answer is None:
        raise pytest.UsageError("The tests did not end without a fault.")
    assert isinstance(answer, dict)
    return answer


def _forked_until(work: Callable[[], Any], seconds: float) -> Any:
    """What `work` returns in a fork; None if it takes more time, or the fork dies of the fault."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reading)
            os.setpgid(0, 0)
            limit = math.ceil(seconds)
            resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
            # Nothing of it outlives the process that waits for it.
            signal.alarm(LONGER * limit + 5)
            faulthandler.disable()
            quiet = os.open(os.devnull, os.O_WRONLY)
            os.dup2(quiet, 1)
            os.dup2(quiet, 2)
            _own_database()
            answer = pickle.dumps(work())
            with os.fdopen(writing, "wb") as out:
                out.write(answer)
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    try:
        return _awaited(child, reading, LONGER * seconds)
    finally:
        os.close(reading)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        for own in Path(os.environ["DATA_DIR"]).parent.glob(f"*-{child}*"):
            own.unlink()


def _awaited(child: int, reading: int, seconds: float) -> Any:
    import select

    ends, data = time.monotonic() + seconds, b""
    while (left := ends - time.monotonic()) > 0:
        ready, _, _ = select.select([reading], [], [], left)
        if not ready:
            return None
        part = os.read(reading, 1 << 20)
        if not part:
            return pickle.loads(data) if data else None
        data += part
    return None
