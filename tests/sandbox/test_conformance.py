"""What every sandbox does, whoever provides it. One function is one promise."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import hashlib
import os
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from runs.sandbox import (
    WORKSPACE,
    RestoreFailed,
    SandboxLost,
    SandboxOperationFailed,
    SandboxProvider,
    SandboxSpec,
    SnapshotDamaged,
    archive,
)
from tests.sandbox.stage import (
    SMALL,
    Failing,
    Stage,
    behaviour,
    entry,
    listed,
    out,
    sh,
    tar,
    tree,
    until,
)

# --- Commands ----------------------------------------------------------------


@behaviour
async def test_output_error_and_exit_code_come_back(stage: Stage) -> None:
    box = await stage.box()
    result = await sh(box, "echo said; echo wrong >/dev/null 2>&1; cat missing; exit 7")
    assert result.stdout == b"said\n"
    assert b"missing" in result.stderr
    assert (result.exit_code, result.truncated, result.timed_out) == (7, False, False)
    assert result.duration_ms >= 0


@behaviour
async def test_a_program_that_is_not_there_ends_with_127(stage: Stage) -> None:
    box = await stage.box()
    result = await box.exec(["no-such-program"], timeout=60)
    assert result.exit_code == 127
    assert b"not found" in result.stderr


@behaviour
async def test_commands_start_in_repo(stage: Stage) -> None:
    box = await stage.box()
    assert await out(box, "pwd") == f"{WORKSPACE}/repo\n"


@behaviour
async def test_a_command_starts_in_the_folder_asked_for(stage: Stage) -> None:
    box = await stage.box()
    await sh(box, "mkdir -p deep/er")
    assert await out(box, "pwd", workdir="output") == f"{WORKSPACE}/output\n"
    assert await out(box, "pwd", workdir="repo/deep/er") == f"{WORKSPACE}/repo/deep/er\n"


@behaviour
async def test_a_folder_that_is_not_there_ends_with_126(stage: Stage) -> None:
    box = await stage.box()
    result = await sh(box, "echo ran", workdir="repo/nowhere")
    assert (result.exit_code, result.stdout) == (126, b"")


@behaviour
async def test_a_folder_outside_is_refused(stage: Stage) -> None:
    box = await stage.box()
    for folder in ("../..", "/etc", "repo/../../etc"):
        with Failing("outside"):
            await sh(box, "pwd", workdir=folder)


@behaviour
async def test_standard_input_arrives_whole(stage: Stage) -> None:
    box = await stage.box()
    data = bytes(range(256)) * 2000
    result = await box.exec(["cat"], timeout=60, stdin=data)
    assert result.stdout == data


@behaviour
async def test_without_input_a_reader_sees_the_end(stage: Stage) -> None:
    box = await stage.box()
    result = await box.exec(["cat"], timeout=60)
    assert (result.exit_code, result.stdout) == (0, b"")


@behaviour
async def test_arguments_arrive_as_they_are(stage: Stage) -> None:
    box = await stage.box()
    for argument in ("$HOME", "a  b", "'\"\\", "line\nline", "ü\u202e☃", "-n", "*", "; exit 3", ""):
        result = await box.exec(["printf", "%s", argument], timeout=60)
        assert result.stdout == argument.encode(), argument


@behaviour
async def test_an_empty_or_broken_command_is_refused(stage: Stage) -> None:
    box = await stage.box()
    for argv in ([], ["echo", "a\0b"]):
        with Failing("refused"):
            await box.exec(argv, timeout=60)


@behaviour
async def test_the_environment_is_what_the_spec_says_and_nothing_of_the_host(stage: Stage) -> None:
    os.environ["IMPRIMATUR_TEST_CANARY"] = "canary-of-the-host"
    try:
        box = await stage.box(environment={"GREETING": "hello world", "PATH": "/usr/bin:/bin"})
        lines = (await out(box, "env")).splitlines()
    finally:
        del os.environ["IMPRIMATUR_TEST_CANARY"]
    assert "GREETING=hello world" in lines
    assert "PATH=/usr/bin:/bin" in lines
    assert not [line for line in lines if "canary" in line.lower() or "DJANGO" in line]


def test_a_name_that_no_environment_can_have_is_refused(provider: SandboxProvider) -> None:
    for name in ("", "A=B", "A B", "ü", "1A", "A\0"):
        spec = SandboxSpec("run-1", "tenant-1", SMALL, {name: "value"})
        with Failing("refused"):
            asyncio.run(provider.create(spec))


@behaviour
async def test_commands_run_as_an_ordinary_user(stage: Stage) -> None:
    box = await stage.box()
    assert await out(box, "id -u") == "1000\n"


@behaviour
async def test_files_stay_between_commands(stage: Stage) -> None:
    box = await stage.box()
    await sh(box, "echo kept > notes.txt; echo too > /tmp/scratch")
    assert await out(box, "cat notes.txt /tmp/scratch") == "kept\ntoo\n"


@behaviour
async def test_two_commands_run_at_once(stage: Stage) -> None:
    box = await stage.box()
    first, second = await asyncio.gather(
        sh(box, "sleep 0.3; echo one"), sh(box, "sleep 0.3; echo two")
    )
    assert (first.stdout, second.stdout) == (b"one\n", b"two\n")


@behaviour
async def test_a_command_over_its_time_is_killed(stage: Stage) -> None:
    box = await stage.box()
    result = await sh(box, "echo begun; sleep 1000; echo ended", timeout=1)
    assert (result.timed_out, result.exit_code) == (True, 137)
    assert result.stdout == b"begun\n"
    assert result.duration_ms < 100_000
    assert await out(box, "echo next") == "next\n"


@behaviour
async def test_endless_output_is_cut_and_said_to_be(stage: Stage) -> None:
    box = await stage.box()
    result = await box.exec(["yes"], timeout=120)
    assert (result.truncated, result.exit_code) == (True, 137)
    assert len(result.stdout) == SMALL.output_bytes
    assert b"more than 1048576 bytes of output" in result.stderr
    assert await out(box, "echo next") == "next\n"


@behaviour
async def test_output_below_the_limit_is_whole(stage: Stage) -> None:
    box = await stage.box()
    result = await sh(box, "head -c 1000000 /dev/zero")
    assert (len(result.stdout), result.truncated, result.exit_code) == (1_000_000, False, 0)


@behaviour
async def test_a_cancelled_command_is_killed(stage: Stage) -> None:
    box = await stage.box()
    command = asyncio.create_task(sh(box, "sleep 1; echo late > late.txt", timeout=100))
    await asyncio.sleep(0.3)
    command.cancel()
    with pytest.raises(asyncio.CancelledError):
        await command
    assert await out(box, "sleep 1.5; test ! -e late.txt && echo none") == "none\n"


# --- Walls ---------------------------------------------------------------------


@behaviour
async def test_the_host_s_files_are_not_there(stage: Stage) -> None:
    secret = stage.folder / "secret.txt"
    secret.write_text("of the host")
    box = await stage.box()
    for path in (secret, Path(__file__), Path("/etc/shadow"), Path("/root/.bashrc")):
        result = await box.exec(["cat", str(path)], timeout=60)
        assert (result.exit_code, result.stdout) == (1, b""), path


@behaviour
async def test_nothing_outside_of_the_workspace_can_be_written(stage: Stage) -> None:
    box = await stage.box()
    for path in ("/usr/x", "/etc/x", "/x", "/workspace/x", "/usr/bin/sh", "/etc/passwd"):
        result = await box.exec(["touch", path], timeout=60)
        assert result.exit_code != 0, path
    assert await out(box, "test ! -e /workspace/x && echo none") == "none\n"


@behaviour
async def test_there_is_no_network_device(stage: Stage) -> None:
    box = await stage.box()
    lines = (await out(box, "cat /proc/net/dev")).splitlines()[2:]
    assert [line.split(":")[0].strip() for line in lines] in ([], ["lo"])


@behaviour
async def test_two_sandboxes_share_nothing(stage: Stage) -> None:
    one, other = await stage.box("run-1"), await stage.box("run-2")
    await sh(one, "echo mine > repo.txt; echo mine > /tmp/tmp.txt; echo mine > ../output/out.txt")
    for path in ("repo.txt", "/tmp/tmp.txt", "../output/out.txt"):
        assert (await other.exec(["cat", path], timeout=60)).exit_code == 1


@behaviour
async def test_the_parts_cannot_be_removed_or_replaced(stage: Stage) -> None:
    box = await stage.box()
    for script in (
        "rm -rf /workspace/repo",
        "mv /workspace/repo /workspace/other",
        "rm -rf /workspace/input; ln -s /tmp /workspace/input",
    ):
        await sh(box, script)
    assert await out(box, "cd /workspace && test ! -L input && ls") == "input\noutput\nrepo\n"


@behaviour
async def test_a_full_workspace_is_an_error_and_not_more(stage: Stage) -> None:
    box = await stage.box()
    result = await sh(box, "cat /dev/zero > one; cat /dev/zero > two; echo done", timeout=120)
    assert result.timed_out is False
    with Failing("no_space", "too_big"):
        await box.write("repo/more.bin", bytes(7 << 20))
        await box.write("repo/still.bin", bytes(7 << 20))
    sizes = (await sh(box, "wc -c one; wc -c two")).stdout.split()
    # Where the size is watched and not enforced, one more file may come to be meanwhile.
    watched = any("watched" in line for line in stage.provider.check().weaker)
    most = SMALL.workspace_mb * (2 if watched else 1) + 1
    assert sum(int(size) for size in sizes if size.isdigit()) <= most << 20
    await sh(box, "rm -f one two more.bin still.bin")
    assert await out(box, "echo room > again; cat again") == "room\n"


# --- Files -----------------------------------------------------------------------


@behaviour
async def test_a_written_file_is_read_back(stage: Stage) -> None:
    box = await stage.box()
    data = bytes(range(256)) * 1000
    await box.write("repo/new/folder/data.bin", data)
    assert await box.read("repo/new/folder/data.bin", max_bytes=len(data)) == data
    assert await box.read(f"{WORKSPACE}/repo/new/folder/data.bin", max_bytes=1 << 20) == data
    await box.write("repo/new/folder/data.bin", b"shorter")
    assert await out(box, "cat new/folder/data.bin") == "shorter"


@behaviour
async def test_a_written_file_has_the_mode_asked_for(stage: Stage) -> None:
    box = await stage.box()
    await box.write("repo/tool.sh", b"echo ran\n", mode=0o755)
    await box.write("repo/plain.txt", b"")
    assert await out(box, "test -x tool.sh && test ! -x plain.txt && echo right") == "right\n"


@behaviour
async def test_an_exclusive_write_takes_no_name_that_is_taken(stage: Stage) -> None:
    box = await stage.box()
    await sh(box, "echo old > file; ln -s nowhere link; mkdir folder")
    await box.write("repo/fresh", b"new", exclusive=True)
    for name in ("file", "link", "folder", "fresh"):
        with Failing("exists"):
            await box.write(f"repo/{name}", b"new", exclusive=True)
    assert await out(box, "cat file; test ! -e nowhere && echo none") == "old\nnone\n"


@behaviour
async def test_a_path_outside_of_the_three_parts_is_refused(stage: Stage) -> None:
    box = await stage.box()
    for path in (
        "../x",
        "/etc/passwd",
        "repo/../../x",
        "",
        "repo",
        "other/x",
        "/workspace",
        "a\0b",
    ):
        with Failing("outside"):
            await box.read(path, max_bytes=10)
        with Failing("outside"):
            await box.write(path, b"")


@behaviour
async def test_reading_through_a_link_stays_inside(stage: Stage) -> None:
    box = await stage.box()
    await sh(box, "echo inner > real; ln -s real good; ln -s /etc/passwd bad; ln -s ../../etc up")
    await sh(box, "ln -s loop loop; ln -s ../output/../repo/real round")
    assert await box.read("repo/good", max_bytes=100) == b"inner\n"
    assert await box.read("repo/round", max_bytes=100) == b"inner\n"
    for name in ("bad", "up/passwd"):
        with Failing("outside"):
            await box.read(f"repo/{name}", max_bytes=100)
    with Failing("not_a_file", "not_found", "outside"):
        await box.read("repo/loop", max_bytes=100)


@behaviour
async def test_writing_through_a_link_stays_inside(stage: Stage) -> None:
    box = await stage.box()
    await sh(box, "echo old > real; ln -s real good; ln -s /tmp/out bad; ln -s /tmp folder")
    await box.write("repo/good", b"new")
    assert await out(box, "cat real") == "new"
    for name in ("bad", "folder/x"):
        with Failing("outside"):
            await box.write(f"repo/{name}", b"new")
    assert await out(box, "test ! -e /tmp/out && test ! -e /tmp/x && echo none") == "none\n"


@behaviour
async def test_what_is_no_regular_file_is_refused_at_once(stage: Stage) -> None:
    box = await stage.box()
    await sh(box, "mkdir folder; mkfifo pipe; echo text > file")
    for name in ("folder", "pipe", "file/below"):
        with Failing("not_a_file", "not_found"):
            await box.read(f"repo/{name}", max_bytes=100)
        with Failing("not_a_file"):
            await box.write(f"repo/{name}", b"new")


@behaviour
async def test_a_file_that_is_not_there_is_not_found(stage: Stage) -> None:
    box = await stage.box()
    with Failing("not_found"):
        await box.read("repo/missing", max_bytes=100)


@behaviour
async def test_a_file_over_the_limit_is_not_read(stage: Stage) -> None:
    box = await stage.box()
    await box.write("repo/file", b"x" * 1000)
    assert len(await box.read("repo/file", max_bytes=1000)) == 1000
    with Failing("too_big"):
        await box.read("repo/file", max_bytes=999)


@behaviour
async def test_input_can_only_be_read(stage: Stage) -> None:
    box = await stage.box()
    await box.load(
        tree(stage.folder / "given", {"data.txt": b"given", "sub/more.txt": b"x"}), "input"
    )
    assert await out(box, "cat ../input/data.txt") == "given"
    for script in (
        "echo changed > ../input/data.txt",
        "rm -f ../input/data.txt",
        "touch ../input/new",
        "mv ../input/sub ../input/moved",
        "chmod 777 ../input/data.txt && echo changed > ../input/data.txt",
        "ln -s ../input here; echo changed > here/data.txt",
    ):
        await sh(box, script)
    with Failing("read_only"):
        await box.write("input/data.txt", b"changed")
    assert await out(box, "cat ../input/data.txt; ls ../input") == "givendata.txt\nsub\n"


# --- Folders in and out ------------------------------------------------------------


def _odd_tree(folder: Path) -> dict[str, str | bytes]:
    tree(
        folder,
        {
            "plain.txt": b"text\n",
            "deep/er/data.bin": bytes(range(256)),
            "tab\there": b"1",
            "line\nbreak": b"2",
            "back\\slash": b"3",
            'quo"te': b"4",
            "-n": b"5",
            " ends with space ": b"6",
            "\u202ebidi": b"7",
            os.fsdecode(b"not-utf8-\xff"): b"8",
            "l" * 200: b"9",
        },
    )
    (folder / "empty").mkdir()
    (folder / "tool.sh").write_bytes(b"echo ran\n")
    (folder / "tool.sh").chmod(0o755)
    (folder / "inner").symlink_to("deep/er")
    (folder / "deep" / "dangling").symlink_to("nowhere")
    return listed(folder)


@behaviour
async def test_a_folder_goes_in_and_comes_out_unchanged(stage: Stage) -> None:
    box = await stage.box()
    given = _odd_tree(stage.folder / "given")
    await box.load(stage.folder / "given", "repo")
    assert await out(box, "cat plain.txt inner/data.bin | wc -c") == "261\n"
    taken = stage.folder / "taken"
    info = await box.export("repo", taken, max_bytes=1 << 20, max_files=1000)
    assert listed(taken) == given
    assert os.access(taken / "tool.sh", os.X_OK)
    assert not os.access(taken / "plain.txt", os.X_OK) or os.geteuid() == 0
    assert info.left_out == ()
    assert info.bytes == sum(len(each) for each in given.values() if isinstance(each, bytes))
    assert info.files == len([each for each in given.values() if each != "/"])


@behaviour
async def test_a_link_that_leaves_the_folder_is_not_loaded(stage: Stage) -> None:
    for target in ("/etc/passwd", "../outside", "a/../../outside"):
        box = await stage.box()
        folder = tree(stage.folder / target.replace("/", "_"), {"ok.txt": b"fine"})
        (folder / "leak").symlink_to(target)
        with pytest.raises(SandboxOperationFailed, match="leak") as refused:
            await box.load(folder, "repo")
        assert refused.value.reason == "refused"
        assert await out(box, "ls") == ""


@behaviour
async def test_a_device_or_a_fifo_is_not_loaded(stage: Stage) -> None:
    box = await stage.box()
    folder = tree(stage.folder / "given", {"ok.txt": b"fine"})
    os.mkfifo(folder / "pipe")
    with pytest.raises(SandboxOperationFailed, match="pipe"):
        await box.load(folder, "repo")


@behaviour
async def test_more_than_fits_is_not_loaded(stage: Stage) -> None:
    box = await stage.box()
    with Failing("too_big"):
        await box.load(tree(stage.folder / "given", {"big": bytes(9 << 20)}), "repo")


@behaviour
async def test_links_come_out_as_links_and_are_never_followed(stage: Stage) -> None:
    box = await stage.box()
    await sh(box, "ln -s /etc/passwd leak; ln -s ../../../../etc climb; ln -s . self")
    taken = stage.folder / "taken"
    info = await box.export("repo", taken, max_bytes=1000, max_files=10)
    assert listed(taken) == {
        "leak": "-> /etc/passwd",
        "climb": "-> ../../../../etc",
        "self": "-> .",
    }
    assert (info.files, info.bytes) == (3, 0)


@behaviour
async def test_a_fifo_is_left_out_and_named(stage: Stage) -> None:
    box = await stage.box()
    await sh(box, "mkfifo pipe; mkdir deep; mkfifo deep/pipe; echo text > file", workdir="output")
    taken = stage.folder / "taken"
    info = await box.export("output", taken, max_bytes=1000, max_files=10)
    assert listed(taken) == {"deep": "/", "file": b"text\n"}
    assert info.left_out == ("deep/pipe: a FIFO", "pipe: a FIFO")


@behaviour
async def test_a_hard_link_comes_out_as_a_copy(stage: Stage) -> None:
    box = await stage.box()
    await sh(box, "echo text > one; ln one two")
    taken = stage.folder / "taken"
    await box.export("repo", taken, max_bytes=1000, max_files=10)
    assert listed(taken) == {"one": b"text\n", "two": b"text\n"}
    assert (taken / "one").stat().st_nlink == 1


@behaviour
async def test_no_hard_link_leads_out_of_its_part(stage: Stage) -> None:
    box = await stage.box()
    await box.load(tree(stage.folder / "given", {"data.txt": b"given"}), "input")
    for target in ("/etc/passwd", "/usr/bin/cat", "../input/data.txt"):
        assert (await box.exec(["ln", target, "linked"], timeout=60)).exit_code != 0, target


@behaviour
async def test_an_export_over_its_limits_leaves_nothing(stage: Stage) -> None:
    box = await stage.box()
    await sh(box, "echo 12345 > a; echo 12345 > b; echo 12345 > c")
    for limits in ({"max_bytes": 10, "max_files": 10}, {"max_bytes": 1000, "max_files": 2}):
        with Failing("too_big"):
            await box.export("repo", stage.folder / "taken", **limits)
        assert listed(stage.folder) == {}


@behaviour
async def test_an_export_overwrites_nothing(stage: Stage) -> None:
    box = await stage.box()
    tree(stage.folder / "taken", {"mine": b"kept"})
    with Failing("exists"):
        await box.export("repo", stage.folder / "taken", max_bytes=1000, max_files=10)
    assert listed(stage.folder / "taken") == {"mine": b"kept"}


@behaviour
async def test_only_the_asked_part_comes_out(stage: Stage) -> None:
    box = await stage.box()
    await sh(box, "echo source > a; echo tray > ../output/b")
    taken = stage.folder / "taken"
    await box.export("output", taken, max_bytes=1000, max_files=10)
    assert listed(taken) == {"b": b"tray\n"}


# --- Snapshots -----------------------------------------------------------------------


@behaviour
async def test_a_snapshot_brings_all_three_parts_back(stage: Stage) -> None:
    box = await stage.box()
    given = _odd_tree(stage.folder / "given")
    await box.load(stage.folder / "given", "repo")
    await box.load(tree(stage.folder / "data", {"data.txt": b"given"}), "input")
    await sh(box, "echo report > ../output/report.txt; rm -f plain.txt; chmod +x deep/er/data.bin")
    info = await box.snapshot(stage.folder / "snapshot.tar")
    await box.close()
    again = await stage.box(restore=stage.folder / "snapshot.tar", sha256=info.sha256)
    del given["plain.txt"]
    await again.export("repo", stage.folder / "taken", max_bytes=1 << 20, max_files=1000)
    assert listed(stage.folder / "taken") == given
    assert os.access(stage.folder / "taken/deep/er/data.bin", os.X_OK)
    assert await out(again, "cat ../output/report.txt ../input/data.txt") == "report\ngiven"
    assert (await sh(again, "echo changed > ../input/data.txt")).exit_code != 0
    assert await out(again, "echo more >> ../output/report.txt; wc -l ../output/report.txt") == (
        "2 ../output/report.txt\n"
    )


@behaviour
async def test_a_snapshot_says_its_size_and_digest(stage: Stage) -> None:
    box = await stage.box()
    await box.write("repo/file", b"content")
    path = stage.folder / "snapshot.tar"
    info = await box.snapshot(path)
    assert info.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert info.size == path.stat().st_size
    assert info.left_out == ()
    assert sorted(each.name for each in stage.folder.iterdir()) == ["snapshot.tar"]


@behaviour
async def test_a_snapshot_of_an_empty_workspace_can_be_restored(stage: Stage) -> None:
    box = await stage.box()
    info = await box.snapshot(stage.folder / "snapshot.tar")
    again = await stage.box(restore=stage.folder / "snapshot.tar", sha256=info.sha256)
    assert await out(again, "ls; ls ../input; ls ../output") == ""


@behaviour
async def test_what_no_restore_could_take_is_left_out_and_named(stage: Stage) -> None:
    box = await stage.box()
    await sh(box, "ln -s /usr/bin/python3 abs; ln -s ../../x up; mkfifo pipe; echo text > file")
    await sh(box, "ln -s ../output/x across; mkdir deep; ln -s ../file deep/back")
    info = await box.snapshot(stage.folder / "snapshot.tar")
    assert [line.partition(":")[0] for line in info.left_out] == [
        "repo/abs",
        "repo/pipe",
        "repo/up",
    ]
    assert "leads outside" in info.left_out[0]
    again = await stage.box(restore=stage.folder / "snapshot.tar", sha256=info.sha256)
    assert await out(again, "ls; cat deep/back") == "across\ndeep\nfile\ntext\n"


@behaviour
async def test_links_of_every_inner_kind_come_back(stage: Stage) -> None:
    box = await stage.box()
    await sh(box, "mkdir -p a/b; echo text > a/b/file; ln -s a/b/file plain; ln -s plain chained")
    await sh(box, "ln -s ../../a/b/file a/b/back; ln -s loop2 loop1; ln -s loop1 loop2; ln -s . me")
    await sh(box, "ln -s nowhere dangling; ln -s ../../output/tray a/across; ln -s a/b/../b dots")
    await box.export("repo", stage.folder / "before", max_bytes=1000, max_files=50)
    info = await box.snapshot(stage.folder / "snapshot.tar")
    assert info.left_out == ()
    again = await stage.box(restore=stage.folder / "snapshot.tar", sha256=info.sha256)
    await again.export("repo", stage.folder / "after", max_bytes=1000, max_files=50)
    assert listed(stage.folder / "after") == listed(stage.folder / "before")
    assert await out(again, "cat chained a/b/back me/dots/file") == "text\n" * 3


@behaviour
async def test_a_link_that_leaves_by_way_of_another_is_left_out(stage: Stage) -> None:
    box = await stage.box()
    # As it is written it stays in repo/; followed, it is in / after the first step.
    await sh(box, "mkdir a; ln -s ../../output a/tray; ln -s a/tray/../.. sly")
    info = await box.snapshot(stage.folder / "snapshot.tar")
    assert [line.partition(":")[0] for line in info.left_out] == ["repo/sly"]
    await stage.box(restore=stage.folder / "snapshot.tar", sha256=info.sha256)


@behaviour
async def test_a_file_that_its_owner_may_not_read_is_in_the_snapshot(stage: Stage) -> None:
    box = await stage.box()
    await sh(box, "echo hidden > file; chmod 000 file; mkdir folder; echo x > folder/y")
    await sh(box, "chmod 000 folder")
    info = await box.snapshot(stage.folder / "snapshot.tar")
    assert info.left_out == ()
    again = await stage.box(restore=stage.folder / "snapshot.tar", sha256=info.sha256)
    assert await out(again, "cat file folder/y") == "hidden\nx\n"


@behaviour
async def test_a_snapshot_with_another_digest_is_not_restored(stage: Stage) -> None:
    box = await stage.box()
    await box.snapshot(stage.folder / "snapshot.tar")
    with pytest.raises(SnapshotDamaged, match="digest") as failed:
        await stage.box("run-2", restore=stage.folder / "snapshot.tar", sha256="0" * 64)
    assert (failed.value.boundary, failed.value.retry_safe) == ("recovery", False)
    assert await stage.provider.reap(["run-1"]) == []


@behaviour
async def test_a_snapshot_is_written_to_an_open_file_and_restored_from_one(stage: Stage) -> None:
    box = await stage.box()
    await box.load(tree(stage.folder / "data", {"data.txt": b"given"}), "input")
    await sh(box, "head -c 300000 /dev/zero > big; echo kept > small; echo x > ../output/left")

    class Small(archive.Keeper):
        def keeps(self, name: str, kind: str) -> bool:
            return name != "output/left"

    path = stage.folder / "snapshot.tar"
    with path.open("wb") as written:
        taken = await box.snapshot_into(written, Small())
    assert taken.size == path.stat().st_size
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    with path.open("rb") as opened:
        again = await stage.box(restore=opened, sha256=sha256)
    assert await out(again, "wc -c big; cat small ../input/data.txt; ls ../output") == (
        "300000 big\nkept\ngiven"
    )


@behaviour
async def test_a_file_that_takes_no_snapshot_is_said(stage: Stage) -> None:
    box = await stage.box()
    await sh(box, "head -c 3000000 /dev/zero > big")
    with open("/dev/full", "wb", buffering=0) as full, pytest.raises(OSError, match="No space"):
        await box.snapshot_into(full)
    assert await out(box, "wc -c big") == "3000000 big\n"


@behaviour
async def test_a_snapshot_that_is_not_there_is_not_restored(stage: Stage) -> None:
    with pytest.raises(RestoreFailed):
        await stage.box(restore=stage.folder / "missing.tar", sha256="0" * 64)


HOSTILE = {
    "a_path_that_climbs": ("../x", entry("../x", tarfile.REGTYPE)),
    "a_path_that_climbs_later": ("repo/a/../../../x", entry("repo/a/../../../x", tarfile.REGTYPE)),
    "an_absolute_path": ("/etc/x", entry("/etc/x", tarfile.REGTYPE)),
    "a_path_outside_the_parts": ("home/x", entry("home/x", tarfile.REGTYPE)),
    "a_file_in_place_of_a_part": ("repo", entry("repo", tarfile.REGTYPE)),
    "a_link_in_place_of_a_part": ("output", entry("output", tarfile.SYMTYPE, "repo")),
    "an_absolute_link": ("repo/l", entry("repo/l", tarfile.SYMTYPE, "/etc/passwd")),
    "a_link_that_climbs": ("repo/l", entry("repo/l", tarfile.SYMTYPE, "../../etc/passwd")),
    "a_hard_link_out": ("repo/h", entry("repo/h", tarfile.LNKTYPE, "../../etc/passwd")),
    "a_hard_link_inside": ("repo/h", entry("repo/h", tarfile.LNKTYPE, "repo/ok")),
    "a_character_device": ("repo/d", entry("repo/d", tarfile.CHRTYPE, devmajor=1, devminor=5)),
    "a_block_device": ("repo/d", entry("repo/d", tarfile.BLKTYPE, devmajor=8, devminor=0)),
    "a_fifo": ("repo/p", entry("repo/p", tarfile.FIFOTYPE)),
    "an_unknown_kind": ("repo/u", entry("repo/u", b"Z")),
}


@pytest.mark.parametrize("which", HOSTILE)
def test_a_hostile_snapshot_is_refused_and_its_member_named(
    provider: SandboxProvider, tmp_path: Path, which: str
) -> None:
    member, odd = HOSTILE[which]
    path = tar(tmp_path / "hostile.tar", ("repo/ok", b"fine"), odd, ("repo/after", b"later"))
    _refused(provider, path, member)


def test_a_file_written_through_a_link_of_the_same_snapshot_is_refused(
    provider: SandboxProvider, tmp_path: Path
) -> None:
    link = entry("repo/l", tarfile.SYMTYPE, "../output")
    _refused(provider, tar(tmp_path / "hostile.tar", link, ("repo/l/x", b"through")), "repo/l/x")


def test_a_link_that_leaves_by_way_of_another_is_refused(
    provider: SandboxProvider, tmp_path: Path
) -> None:
    first = entry("repo/a/tray", tarfile.SYMTYPE, "../../output")
    second = entry("repo/sly", tarfile.SYMTYPE, "a/tray/../..")
    for number, entries in enumerate(((first, second), (second, first))):
        _refused(provider, tar(tmp_path / f"{number}.tar", *entries), "repo/sly")


def test_a_name_that_is_there_twice_is_refused(provider: SandboxProvider, tmp_path: Path) -> None:
    path = tar(tmp_path / "hostile.tar", ("repo/x", b"one"), ("repo/x", b"two"))
    _refused(provider, path, "repo/x")


def test_a_snapshot_that_would_grow_without_end_is_refused(
    provider: SandboxProvider, tmp_path: Path
) -> None:
    bomb = tar(tmp_path / "bomb.tar", ("repo/big", bytes(25 << 20)))
    _refused(provider, bomb, "repo/big")
    packed = tmp_path / "bomb.tar.gz"
    packed.write_bytes(gzip.compress(bomb.read_bytes()))
    _refused(provider, packed, None)
    sparse = tmp_path / "sparse.tar"
    info = entry("repo/sparse", tarfile.REGTYPE)
    info.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.realsize": str(1 << 40)}
    _refused(provider, tar(sparse, info, format=tarfile.PAX_FORMAT), "repo/sparse")


def test_a_damaged_snapshot_is_refused(provider: SandboxProvider, tmp_path: Path) -> None:
    whole = tar(tmp_path / "whole.tar", ("repo/x", b"content" * 1000)).read_bytes()
    flipped = bytearray(whole)
    flipped[100] ^= 0x55
    broken = (b"", b"no tar at all", whole[:4000], whole[:700], bytes(flipped))
    for number, data in enumerate(broken):
        path = tmp_path / f"{number}.tar"
        path.write_bytes(data)
        with pytest.raises(RestoreFailed):
            asyncio.run(_restored(provider, path))


def _refused(provider: SandboxProvider, path: Path, member: str | None) -> None:
    with pytest.raises(RestoreFailed) as failed:
        asyncio.run(_restored(provider, path))
    assert failed.value.member == member
    assert member is None or member in str(failed.value)
    assert asyncio.run(provider.reap([])) == [], "something was left behind"


async def _restored(provider: SandboxProvider, path: Path) -> None:
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    spec = SandboxSpec("run-1", "tenant-1", SMALL)
    box = await provider.create(spec, restore=path, restore_sha256=digest)
    await box.close()


# --- Life ----------------------------------------------------------------------------


def test_a_check_says_who_isolates_and_how(provider: SandboxProvider) -> None:
    report = provider.check()
    assert report.provider == provider.name
    assert report.version
    assert report.image_digest.startswith("sha256:")
    assert report.isolation
    assert provider.check() is report or provider.check() == report


@behaviour
async def test_a_sandbox_says_what_it_is(stage: Stage) -> None:
    box, other = await stage.box(), await stage.box()
    report = stage.provider.check()
    assert (box.provider, box.image_digest) == (report.provider, report.image_digest)
    assert box.ref != other.ref
    assert box.limits == SMALL


@behaviour
async def test_a_closed_sandbox_is_gone(stage: Stage) -> None:
    box = await stage.box()
    assert await box.alive()
    await box.close()
    await box.close()
    assert not await box.alive()
    with pytest.raises(SandboxLost):
        await sh(box, "echo ran")
    with pytest.raises(SandboxLost):
        await box.read("repo/x", max_bytes=1)
    assert await stage.provider.reap([]) == []


@behaviour
async def test_a_sandbox_whose_time_is_over_is_lost(stage: Stage) -> None:
    box = await stage.box(limits=replace(SMALL, wall_seconds=2))
    result = await sh(box, "sleep 1000", timeout=500)
    assert (result.timed_out, result.exit_code) == (True, 137)
    with pytest.raises(SandboxLost, match="time"):
        await sh(box, "echo ran")
    assert not await box.alive()


@behaviour
async def test_a_lost_sandbox_is_never_silent(stage: Stage) -> None:
    box = await stage.box()
    await box.write("repo/work", b"done")
    await stage.lose(box)
    assert not await box.alive()
    with pytest.raises(SandboxLost) as lost:
        await sh(box, "ls")
    assert lost.value.boundary == "execution"
    with pytest.raises(SandboxLost):
        await box.read("repo/work", max_bytes=10)
    with pytest.raises(SandboxLost):
        await box.write("repo/work", b"again")
    with pytest.raises(SandboxLost):
        await box.snapshot(stage.folder / "snapshot.tar")
    assert listed(stage.folder) == {}


@behaviour
async def test_a_sandbox_lost_under_a_command_is_not_taken_for_its_failure(stage: Stage) -> None:
    box = await stage.box()
    command = asyncio.create_task(sh(box, "echo begun > ../output/begun; sleep 1000", timeout=200))

    async def begun() -> bool:
        return (await sh(box, "test -e ../output/begun")).exit_code == 0

    await until(begun, "the command's mark")
    await stage.lose(box)
    with pytest.raises(SandboxLost):
        await command


@behaviour
async def test_the_reaper_takes_the_dead_and_leaves_the_living(stage: Stage) -> None:
    living, dead = await stage.box("run-1"), await stage.box("run-2")
    removed = await stage.provider.reap(["run-1"])
    assert len([line for line in removed if "run-2" in line and dead.ref in line]) == 1
    assert not [line for line in removed if "run-1" in line]
    assert not await dead.alive()
    assert await out(living, "echo here") == "here\n"
    await dead.close()
    assert await stage.provider.reap(["run-1"]) == []


# --- Commands left running --------------------------------------------------------------


async def _all_of(command: object) -> bytes:
    data = b""
    while chunk := await command.read():  # type: ignore[attr-defined]
        data += chunk
    return data


@behaviour
async def test_a_started_command_is_read_while_it_runs(stage: Stage) -> None:
    box = await stage.box()
    command = await box.start(["sh", "-c", "echo begun; sleep 1000"])
    assert await command.read() == b"begun\n"
    await command.kill()
    await command.kill()
    assert await command.wait() == 137
    assert await command.read() == b""


@behaviour
async def test_a_started_command_ends_by_itself(stage: Stage) -> None:
    box = await stage.box()
    command = await box.start(["sh", "-c", "pwd; exit 5"], workdir="output")
    assert await _all_of(command) == f"{WORKSPACE}/output\n".encode()
    assert await command.wait() == 5


@behaviour
async def test_a_typed_line_reaches_the_command(stage: Stage) -> None:
    box = await stage.box()
    command = await box.start(["sh", "-c", 'read line; echo "got $line"; exit 3'], tty=True)
    await command.write(b"hello there\n")
    assert b"got hello there" in await _all_of(command)
    assert await command.wait() == 3
    await command.write(b"nobody is there\n")


@behaviour
async def test_nothing_is_typed_without_a_terminal(stage: Stage) -> None:
    box = await stage.box()
    command = await box.start(["sh", "-c", "cat; echo ended"])
    with Failing("refused"):
        await command.write(b"hello\n")
    assert await _all_of(command) == b"ended\n"


@behaviour
async def test_a_started_command_ends_with_its_lifetime(stage: Stage) -> None:
    box = await stage.box()
    command = await box.start(["sleep", "1000"], lifetime=1)
    assert b"its time of 1 s is over" in await _all_of(command)
    assert await command.wait() == 137


@behaviour
async def test_the_output_of_a_started_command_is_bounded(stage: Stage) -> None:
    box = await stage.box()
    command = await box.start(["yes"])
    data = await _all_of(command)
    assert len(data) < SMALL.output_bytes + 200
    assert b"more than 1048576 bytes of output" in data
    assert await command.wait() == 137


@behaviour
async def test_a_snapshot_ends_what_still_runs(stage: Stage) -> None:
    box = await stage.box()
    command = await box.start(["sleep", "1000"])
    info = await box.snapshot(stage.folder / "snapshot.tar")
    assert info.size > 0
    assert await command.wait() == 137


@behaviour
async def test_closing_ends_what_still_runs(stage: Stage) -> None:
    box = await stage.box()
    command = await box.start(["sleep", "1000"], tty=True)
    await box.close()
    with pytest.raises(SandboxLost):
        await box.start(["true"])
    with contextlib.suppress(SandboxLost):
        assert await asyncio.wait_for(command.wait(), 60) == 137
