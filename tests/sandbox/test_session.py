"""The agents SDK over a sandbox: the SDK's own tools, on every provider."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import pytest
from agents.editor import ApplyPatchOperation
from agents.sandbox.apply_patch import WorkspaceEditor
from agents.sandbox.capabilities.tools import ExecCommandTool, WriteStdinTool
from agents.sandbox.capabilities.tools.shell_tool import ExecCommandArgs, WriteStdinArgs
from agents.sandbox.errors import (
    ExecTimeoutError,
    ExecTransportError,
    InvalidManifestPathError,
    WorkspaceArchiveReadError,
    WorkspaceArchiveWriteError,
    WorkspaceReadNotFoundError,
    WorkspaceStartError,
)
from agents.sandbox.errors import SandboxError as SdkError

from runs.sandbox import Sandbox, SandboxLost
from tests.sandbox.stage import Stage, behaviour, out


def _caused_by(error: BaseException | None, kind: type[BaseException]) -> bool:
    while error is not None:
        if isinstance(error, kind):
            return True
        error = error.__cause__
    return False


async def _ran(box: Sandbox, cmd: str, **more: Any) -> str:
    return await ExecCommandTool(session=box.sdk_session()).run(ExecCommandArgs(cmd=cmd, **more))


@behaviour
async def test_the_sdk_s_shell_runs_inside(stage: Stage) -> None:
    box = await stage.box(environment={"GREETING": "hello"})
    said = await _ran(box, "pwd; id -u; echo $GREETING; exit 3", workdir="repo")
    assert "Process exited with code 3" in said
    assert said.endswith("Output:\n/workspace/repo\n1000\nhello\n")
    assert "/workspace\n" in await _ran(box, "pwd")


@behaviour
async def test_a_command_goes_on_and_is_typed_to(stage: Stage) -> None:
    box = await stage.box()
    session = box.sdk_session()
    shell, stdin = ExecCommandTool(session=session), WriteStdinTool(session=session)
    script = 'echo ready; read line; echo "got $line"'
    said = await shell.run(ExecCommandArgs(cmd=script, tty=True, yield_time_ms=500))
    number = int(said.partition("session ID ")[2].split()[0])
    heard = said
    for _ in range(60):
        if "ready" in heard:
            break
        heard += await stdin.run(WriteStdinArgs(session_id=number, chars="", yield_time_ms=250))
    said = await stdin.run(WriteStdinArgs(session_id=number, chars="x y\n", yield_time_ms=30_000))
    assert "got x y" in said
    assert "Process exited with code 0" in said


@behaviour
async def test_a_one_shot_command_has_a_limit(stage: Stage) -> None:
    box = await stage.box()
    session = box.sdk_session()
    with pytest.raises(ExecTimeoutError):
        await session.exec("sleep 1000", timeout=0.5)
    result = await session.exec("echo next")
    assert (result.stdout, result.exit_code) == (b"next\n", 0)


@behaviour
async def test_ending_the_terminals_ends_their_commands(stage: Stage) -> None:
    box = await stage.box()
    session = box.sdk_session()
    update = await session.pty_exec_start("sleep 1000", tty=True, yield_time_s=0.3)
    assert update.process_id is not None
    await session.stop()
    with pytest.raises(SdkError):
        await session.pty_write_stdin(session_id=update.process_id, chars="x")
    assert await box.alive(), "the session does not own the sandbox"


@behaviour
async def test_a_patch_makes_changes_moves_and_deletes(stage: Stage) -> None:
    box = await stage.box()
    editor = WorkspaceEditor(box.sdk_session())

    async def apply(kind: str, path: str, diff: str | None = None, **more: Any) -> str:
        operation = ApplyPatchOperation(type=kind, path=path, diff=diff, **more)  # type: ignore[arg-type]
        return (await editor.apply_operation(operation)).output or ""

    assert await apply("create_file", "repo/a/x.py", "+one\n+two\n") == "Created repo/a/x.py"
    await apply("update_file", "repo/a/x.py", "@@\n-one\n+1\n two\n")
    assert await out(box, "cat a/x.py") == "1\ntwo"
    await apply("update_file", "/workspace/repo/a/x.py", "@@\n-1\n+0\n two\n", move_to="repo/y.py")
    assert await out(box, "cat y.py; ls a") == "0\ntwo"
    await apply("delete_file", "repo/y.py")
    assert await out(box, "ls") == "a\n"


@behaviour
async def test_a_patch_takes_no_name_that_is_taken(stage: Stage) -> None:
    box = await stage.box()
    await out(box, "echo old > file; ln -s /tmp/out link")
    editor = WorkspaceEditor(box.sdk_session())
    for name in ("file", "link"):
        operation = ApplyPatchOperation(type="create_file", path=f"repo/{name}", diff="+new\n")
        with pytest.raises(SdkError, match="already exists"):
            await editor.apply_operation(operation)
    assert await out(box, "cat file; test ! -e /tmp/out && echo none") == "old\nnone\n"


@behaviour
async def test_a_patch_reaches_neither_the_input_nor_the_outside(stage: Stage) -> None:
    box = await stage.box()
    (stage.folder / "given").mkdir()
    (stage.folder / "given/data.txt").write_text("given\n")
    await box.load(stage.folder / "given", "input")
    await out(box, "ln -s /tmp away; ln -s ../input/data.txt data")
    editor = WorkspaceEditor(box.sdk_session())
    tries = {
        "input/data.txt": "update_file",
        "input/new.txt": "create_file",
        "repo/away/new.txt": "create_file",
        "../outside.txt": "create_file",
        "/etc/new.txt": "create_file",
        "other/new.txt": "create_file",
    }
    for path, kind in tries.items():
        diff = "@@\n-given\n+taken\n" if kind == "update_file" else "+new\n"
        with pytest.raises(SdkError):
            await editor.apply_operation(ApplyPatchOperation(type=kind, path=path, diff=diff))  # type: ignore[arg-type]
    assert await out(box, "cat ../input/data.txt; test ! -e /tmp/new.txt && echo none") == (
        "given\nnone\n"
    )


@behaviour
async def test_files_are_read_and_written_as_bytes(stage: Stage) -> None:
    box = await stage.box()
    session = box.sdk_session()
    pixel = base64.b64decode("iVBORw0KGgo=") + bytes(range(256))
    await session.write(Path("output/shot.png"), io.BytesIO(pixel))
    assert (await session.read(Path("/workspace/output/shot.png"))).read() == pixel
    assert await session.read_bounded(Path("output/shot.png"), max_bytes=8) == pixel[:8]
    with pytest.raises(WorkspaceReadNotFoundError):
        await session.read(Path("output/missing.png"))
    await out(box, "ln -s /etc/passwd link; mkfifo pipe")
    with pytest.raises(InvalidManifestPathError):
        await session.read(Path("repo/link"))
    with pytest.raises(WorkspaceArchiveReadError):
        await session.read(Path("repo/pipe"))
    with pytest.raises(WorkspaceArchiveWriteError):
        await session.write(Path("input/x"), io.BytesIO(b""))


@behaviour
async def test_the_session_neither_fills_nor_keeps_nor_restarts(stage: Stage) -> None:
    box = await stage.box()
    session = box.sdk_session()
    assert await session.running()
    await session.start()
    for call in (session.persist_workspace(), session.hydrate_workspace(io.BytesIO(b""))):
        with pytest.raises(SdkError):
            await call
    await session.aclose()
    assert await box.alive()


@behaviour
async def test_a_lost_sandbox_is_lost_for_the_sdk_too(stage: Stage) -> None:
    box = await stage.box()
    session = box.sdk_session()
    await stage.lose(box)
    assert not await session.running()
    for call, kind in (
        (session.start(), WorkspaceStartError),
        (session.exec("echo ran"), ExecTransportError),
        (session.pty_exec_start("echo ran"), ExecTransportError),
        (session.read(Path("repo/x")), WorkspaceArchiveReadError),
    ):
        with pytest.raises(kind) as failed:
            await call
        assert _caused_by(failed.value, SandboxLost)
