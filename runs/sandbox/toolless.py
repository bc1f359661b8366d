"""The place of a run that has no sandbox: three empty folders in memory, in which nothing runs.

Such a run has tools of the outer runtime only. It is parked, kept and gone on with like any other,
so it needs what a checkpoint is made of; a command would be refused if anything asked for one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from runs.sandbox import (
    Command,
    ExecResult,
    ProviderReport,
    SandboxOperationFailed,
    SandboxSpec,
    scripted,
)
from runs.sandbox.running import Flow

NAME = "none"


class Provider(scripted.Provider):
    """Makes the folders; they end with the run's stretch of work."""

    name = NAME

    def check(self) -> ProviderReport:
        return ProviderReport(
            provider=NAME,
            version="1",
            image_digest="",
            isolation=("nothing can be executed",),
        )

    def _empty(self, spec: SandboxSpec) -> Toolless:
        return Toolless(spec, self.data_dir)


class Toolless(scripted.ScriptedSandbox):
    """Folders without a shell."""

    provider = NAME

    def __init__(self, spec: SandboxSpec, data_dir: Path) -> None:
        super().__init__(spec, data_dir)
        self.ref = self.ref.replace(scripted.NAME, NAME)
        self.image_digest = ""

    async def _run(
        self,
        argv: Sequence[str],
        *,
        timeout: float,
        environment: Mapping[str, str],
        stdin: bytes = b"",
        giving: Flow | None = None,
        taking: Flow | None = None,
        output_bytes: int,
        as_owner: bool = False,
    ) -> ExecResult:
        _refuse()

    async def _start(
        self, argv: Sequence[str], *, tty: bool, lifetime: float, environment: Mapping[str, str]
    ) -> Command:
        _refuse()


def _refuse() -> NoReturn:
    raise SandboxOperationFailed("run", "refused", "this run has no sandbox")
