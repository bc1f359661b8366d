"""Deliberately weakened providers: one promise is broken, the others are left alone."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runs.sandbox import ExecResult, SandboxProvider, SandboxSpec, bubblewrap, confinement


class Weak:
    """A provider that is another one, but for its limits and its boxes."""

    def __init__(
        self,
        provider: SandboxProvider,
        *,
        box: Callable[[Any], Any] = lambda box: box,
        **limits: Any,
    ) -> None:
        self._provider, self._box, self._limits = provider, box, limits

    def __getattr__(self, name: str) -> Any:
        return getattr(self._provider, name)

    async def create(self, spec: SandboxSpec, **more: Any) -> Any:
        """As asked for, with more of what is limited."""
        wider = replace(spec, limits=replace(spec.limits, **self._limits))
        return self._box(await self._provider.create(wider, **more))


class WeakBox:
    """A sandbox that is another one, but for what a subclass does worse."""

    def __init__(self, box: Any) -> None:
        self._box = box

    def __getattr__(self, name: str) -> Any:
        return getattr(self._box, name)


class ReadsAnything(WeakBox):
    """Opens whatever has the name."""

    async def read(self, path: str, *, max_bytes: int) -> bytes:
        """Waits as long as it takes."""
        result = await self._box.exec(["cat", f"/workspace/{path}"], timeout=60)
        return bytes(result.stdout)


class FollowsLinks(WeakBox):
    """Writes from outside, by name."""

    async def write(self, path: str, data: bytes, **_: Any) -> None:
        """Wherever that leads."""
        place = self._box.folder / "work" / path
        for _attempt in range(200):
            try:
                place.write_bytes(data)
                return
            except OSError:
                await asyncio.sleep(0.001)


class DiesWithItsHelpers(WeakBox):
    """What the agent kills is not started again."""

    async def exec(self, argv: Any, **more: Any) -> ExecResult:
        """The last command, if it kills."""
        result: ExecResult = await self._box.exec(argv, **more)
        if "kill -9" in " ".join(argv):
            await asyncio.to_thread(self._box.lose)
        return result


def weaken_launches(
    monkeypatch: pytest.MonkeyPatch, edit: Callable[[list[str]], list[str]]
) -> None:
    """Let every launch of bubblewrap have other options."""
    sound = confinement.launching

    @contextmanager
    def launching(*args: Any, **more: Any) -> Iterator[tuple[list[str], list[int]]]:
        with sound(*args, **more) as (argv, fds):
            place = argv.index("--args") + 1
            given = os.pread(int(argv[place]), 1 << 20, 0).decode().split("\0")[:-1]
            fd = os.memfd_create("weak", os.MFD_CLOEXEC)
            try:
                os.write(fd, b"".join(each.encode() + b"\0" for each in edit(given)))
                os.lseek(fd, 0, os.SEEK_SET)
                yield [*argv[:place], str(fd), *argv[place + 1 :]], [*fds, fd]
            finally:
                os.close(fd)

    monkeypatch.setattr(bubblewrap, "launching", launching)


def showing(folder: Path) -> Callable[[list[str]], list[str]]:
    """A folder of the host can be seen."""

    def edit(options: list[str]) -> list[str]:
        place = options.index("--remount-ro")
        return [*options[:place], "--ro-bind", str(folder), str(folder), *options[place:]]

    return edit


def writable_input(options: list[str]) -> list[str]:
    """The input is bound like the other parts."""
    place = options.index("/workspace/input") - 2
    return [*options[:place], "--bind", *options[place + 1 :]]


def host_network(options: list[str]) -> list[str]:
    """Every name space of its own but the network's."""
    place = options.index("--unshare-all")
    kept = ("--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try")
    return [*options[:place], *kept, *options[place + 1 :]]


def shared_tmp(folder: Path) -> Callable[[list[str]], list[str]]:
    """All sandboxes share one /tmp."""

    def edit(options: list[str]) -> list[str]:
        place = options.index("/tmp")
        return [*options[: place - 1], str(folder), *options[place:]]

    return edit
