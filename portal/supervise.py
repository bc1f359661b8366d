"""Start processes together, keep them up, stop them in order, and leave none behind.

Standard library only: the supervisor lives as long as the installation, so it
must not carry a framework around.

Three things end what it started, each for the case the one before cannot see.
An ordered stop, newest part first. The kernel, which kills each part when the
supervisor dies (PR_SET_PDEATHSIG). And the guard, a shell waiting on a pipe:
when the supervisor is gone it kills the parts' process groups, grandchildren
included.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

_LIBC = ctypes.CDLL(None, use_errno=True)  # loaded now: not between fork and exec
_PR_SET_PDEATHSIG = 1
_STOP_SIGNALS = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
_WATCHED = frozenset({*_STOP_SIGNALS, signal.SIGCHLD})
# A part that ends sooner than this after its start did not work; one that ends
# later was hit by something and is started again.
_SETTLED_AFTER = 10.0
_ATTEMPTS = 3
_LOG_KEPT = 5 << 20


class StopAsked(Exception):
    """Somebody pressed Ctrl-C or sent SIGTERM."""


class PartFailed(Exception):
    """A part would not start, or keeps ending."""

    def __init__(self, part: Part, what: str) -> None:
        super().__init__(f"The {part.name} {what}. Its last lines, from {part.log}:\n{_tail(part)}")


@dataclass(frozen=True)
class Part:
    """One process to keep up."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(repr=False)
    log: Path
    ready: Callable[[], bool] = lambda: True
    ready_within: float = 60.0
    stop_within: float = 8.0
    handed_on: tuple[int, ...] = ()  # file descriptors the part inherits


@dataclass
class _Running:
    part: Part
    process: subprocess.Popen[bytes]
    since: float
    short_lives: int = 0


class Supervisor:
    """Use as a context manager: leaving it, however, stops every part."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._running: list[_Running] = []
        self._guard = _Guard()

    def __enter__(self) -> Supervisor:
        # Signals are taken one at a time in `_pause` instead of interrupting
        # whatever line is being executed.
        signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()
        self._guard.dismiss()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)

    def start(self, *parts: Part) -> None:
        """Start all of them, then wait until all are ready. Raises `PartFailed`."""
        started = [self._launch(part) for part in parts]
        for each in started:
            self._await_ready(each)

    def begin(self, part: Part) -> None:
        """Start it without waiting; `start` or `wait_for` follow."""
        self._launch(part)

    def wait_for(self, part: Part) -> None:
        """Wait until a part given to `begin` is ready. Raises `PartFailed`."""
        self._await_ready(next(each for each in self._running if each.part is part))

    def finish(self, command: tuple[str, ...], environment: Mapping[str, str]) -> tuple[int, str]:
        """Run something to its end and return its exit code and what it printed."""
        with tempfile.TemporaryFile() as printed:
            process = subprocess.Popen(
                command,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=printed,
                start_new_session=True,
                preexec_fn=bound_to_this_process(),
            )
            self._guard.watch([*self._groups(), process.pid])
            try:
                while process.poll() is None:
                    self._pause(1.0)
            except StopAsked:
                _kill_group(process.pid)
                process.wait()
                raise
            printed.seek(0)
            return process.returncode, printed.read().decode()

    def keep_up(self) -> None:
        """Restart what ends until somebody asks to stop. Raises `PartFailed`."""
        try:
            while True:
                self._pause(None)
                for each in self._running:
                    if each.process.poll() is not None:
                        self._revive(each)
        except StopAsked:
            return

    def _launch(self, part: Part) -> _Running:
        running = _Running(part, self._spawn(part), time.monotonic())
        self._running.append(running)
        self._guard.watch(self._groups())
        return running

    def _spawn(self, part: Part) -> subprocess.Popen[bytes]:
        if part.log.exists() and part.log.stat().st_size > _LOG_KEPT:
            part.log.replace(part.log.with_suffix(".log.old"))
        with part.log.open("ab") as log:
            return subprocess.Popen(
                part.command,
                env=dict(part.environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=part.handed_on,
                start_new_session=True,  # Ctrl-C in the terminal is for the supervisor alone
                preexec_fn=bound_to_this_process(),
            )

    def _revive(self, each: _Running) -> None:
        lived = time.monotonic() - each.since
        each.short_lives = each.short_lives + 1 if lived < _SETTLED_AFTER else 1
        code = each.process.returncode
        if each.short_lives > _ATTEMPTS:
            raise PartFailed(each.part, f"keeps ending ({_how(code)})")
        if code != 0:  # in order, it ended because it wanted to (portal.rest)
            self._say(f"The {each.part.name} ended ({_how(code)}) and is started again.")
        _kill_group(each.process.pid)  # what it started and did not take along
        self._pause(0.5 * (each.short_lives - 1) or 0.01)
        each.process, each.since = self._spawn(each.part), time.monotonic()
        self._guard.watch(self._groups())

    def _await_ready(self, each: _Running) -> None:
        asked_first = time.monotonic()
        while not each.part.ready():
            for other in self._running:
                if other.process.poll() is not None:
                    how = _how(other.process.returncode)
                    raise PartFailed(other.part, f"did not start ({how})")
            waited = time.monotonic() - asked_first
            if waited > each.part.ready_within:
                raise PartFailed(each.part, f"was not ready after {each.part.ready_within:.0f} s")
            self._pause(0.02 if waited < 3 else 0.5)

    def _pause(self, seconds: float | None) -> None:
        """Sleep until a signal comes or the time is over. Raises `StopAsked`."""
        # A signal of a child that ended may have been merged with another's, so
        # even the endless pause wakes up now and then.
        caught = signal.sigtimedwait(_WATCHED, 5.0 if seconds is None else seconds)
        if caught is not None and caught.si_signo in _STOP_SIGNALS:
            raise StopAsked

    def _stop(self) -> None:
        """Newest first, so that nothing loses what it stands on. A second Ctrl-C hurries."""
        hurry = False
        while self._running:
            each = self._running[-1]
            each.process.terminate()
            deadline = time.monotonic() + (0 if hurry else each.part.stop_within)
            while each.process.poll() is None and time.monotonic() < deadline:
                try:
                    self._pause(0.1)
                except StopAsked:
                    hurry = True
                    break
            _kill_group(each.process.pid)
            each.process.wait()
            self._running.pop()

    def _groups(self) -> list[int]:
        return [each.process.pid for each in self._running]


class _Guard:
    """A shell that outlives a killed supervisor by the moment it needs to clean up.

    Each line it reads is the whole list of groups; the last one counts. It keeps
    the list in a shell so that it costs some hundred kilobytes, not an interpreter.
    """

    _SCRIPT = (
        'trap "" INT TERM HUP; groups=; while read -r line; do groups=$line; done; '
        '[ -z "$groups" ] || kill -s KILL -- $groups 2>/dev/null'
    )

    def __init__(self) -> None:
        listening, self._line = os.pipe()
        self._process = subprocess.Popen(
            ("/bin/sh", "-c", self._SCRIPT),
            stdin=listening,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(listening)

    def watch(self, groups: list[int]) -> None:
        """From now on these are the ones to kill."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._line, " ".join(f"-{group}" for group in groups).encode() + b"\n")

    def dismiss(self) -> None:
        """Everything was stopped; there is nothing left to kill."""
        self.watch([])
        os.close(self._line)
        self._process.wait()


def bound_to_this_process() -> Callable[[], None]:
    """What a child does between fork and exec: die with us, and hear signals again."""
    parent = os.getpid()

    def bind() -> None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        # If the parent died before the line above, nothing would ever kill this one.
        if os.getppid() != parent:
            os._exit(1)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)

    return bind


def _kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _how(code: int | None) -> str:
    if code is not None and code < 0:
        return f"signal {signal.Signals(-code).name}"
    return f"exit code {code}"


def _tail(part: Part, lines: int = 12) -> str:
    try:
        with part.log.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - 8192))
            text = log.read().decode(errors="replace")
    except OSError as error:
        return f"  (cannot be read: {error})"
    return "\n".join(f"  {line}" for line in text.splitlines()[-lines:])
