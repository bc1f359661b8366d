"""Reading archives that somebody made to do harm."""

from __future__ import annotations

import contextlib
import io
import os
import tarfile
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runs.sandbox import archive
from runs.sandbox.archive import ArchiveCutShort, ArchiveRefused, ArchiveTooBig
from tests.sandbox.stage import entry, listed, tar, tree

PARTS = ("repo", "input", "output")
ROOM: dict[str, Any] = {"max_bytes": 1 << 20, "max_files": 1000}


def _checked(path: Path, **room: Any) -> set[str]:
    with path.open("rb") as opened:
        return set(archive.check_snapshot(opened, PARTS, **{**ROOM, **room}))


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_every_plain_form_is_read_alike(tmp_path: Path, form: int) -> None:
    name = "repo/" + "/".join(["a-rather-long-folder-name"] * 6) + "/file"
    path = tar(tmp_path / "a.tar", entry("repo", tarfile.DIRTYPE), (name, b"text"), format=form)
    with path.open("rb") as opened:
        found = [(each.name.rstrip("/"), each.kind, each.size) for each in archive.members(opened)]
    assert found == [("repo", "folder", 0), (name, "file", 4)]
    assert _checked(path) == {"repo"}


def test_too_much_and_too_many_are_refused(tmp_path: Path) -> None:
    path = tar(tmp_path / "a.tar", *[(f"repo/{number}", b"12345") for number in range(9)])
    _checked(path, max_bytes=45)
    with pytest.raises(ArchiveTooBig) as refused:
        _checked(path, max_bytes=44)
    assert refused.value.member == "repo/8"
    with pytest.raises(ArchiveTooBig) as refused:
        _checked(path, max_files=5)
    assert refused.value.member == "repo/3", "the folders count too"


def test_a_name_longer_than_any_path_is_refused(tmp_path: Path) -> None:
    long = "repo/" + "d/" * 40_000 + "x"
    for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        path = tar(tmp_path / f"{form}.tar", (long, b""), format=form)
        with pytest.raises(ArchiveRefused, match="longer than"):
            _checked(path)


def test_a_tree_too_deep_is_refused(tmp_path: Path) -> None:
    deep = "repo/" + "d/" * 150 + "x"
    with pytest.raises(ArchiveRefused, match="folders deep"):
        _checked(tar(tmp_path / "a.tar", (deep, b"")))


def test_two_sizes_for_one_member_are_refused(tmp_path: Path) -> None:
    # One reader would see a file of 1 byte and a header after it, another one big file.
    info = tarfile.TarInfo("repo/x")
    info.size, info.pax_headers = 1, {"size": "1024"}
    raw = info.tobuf(tarfile.PAX_FORMAT)
    path = tmp_path / "a.tar"
    path.write_bytes(raw + bytes(512) + bytes(1024))
    with pytest.raises(ArchiveRefused, match="two sizes"):
        _checked(path)


def test_content_on_what_has_none_is_refused(tmp_path: Path) -> None:
    for kind in (tarfile.DIRTYPE, tarfile.SYMTYPE):
        info = entry("repo/x", kind, "y", size=512)
        path = tmp_path / "a.tar"
        path.write_bytes(info.tobuf(tarfile.USTAR_FORMAT) + bytes(512 * 3))
        with pytest.raises(ArchiveRefused, match="content"):
            _checked(path)


def test_a_number_in_another_notation_is_refused(tmp_path: Path) -> None:
    info = tarfile.TarInfo("repo/x")
    info.size = 1 << 40
    path = tmp_path / "a.tar"
    path.write_bytes(info.tobuf(tarfile.GNU_FORMAT) + bytes(1024))
    with pytest.raises(ArchiveRefused):
        _checked(path)


@given(st.binary(max_size=4096))
@settings(max_examples=200)
def test_any_bytes_are_read_or_refused_and_nothing_else(data: bytes) -> None:
    with contextlib.suppress(ArchiveRefused):
        archive.check_snapshot(io.BytesIO(data), PARTS, **ROOM)


@given(st.integers(0, 2047), st.integers(0, 255))
@settings(max_examples=300)
def test_a_changed_byte_is_read_or_refused_and_nothing_else(position: int, value: int) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as writer:
        info = entry("repo/" + "long" * 40, tarfile.REGTYPE, size=3)
        writer.addfile(info, io.BytesIO(b"abc"))
    data = bytearray(buffer.getvalue())
    data[position] = value
    with contextlib.suppress(ArchiveRefused):
        archive.check_snapshot(io.BytesIO(bytes(data)), PARTS, **ROOM)


_SEGMENTS = st.sampled_from(["..", ".", "", "a", "b", "repo", "output", "etc"])


@given(
    st.lists(
        st.tuples(st.lists(_SEGMENTS, max_size=4), st.sampled_from(["file", "folder", "link"])),
        max_size=6,
    ),
    st.lists(_SEGMENTS, max_size=4),
)
@settings(max_examples=300)
def test_no_accepted_archive_writes_outside(
    tmp_path_factory: pytest.TempPathFactory, made: list[tuple[list[str], str]], target: list[str]
) -> None:
    types = {"file": tarfile.REGTYPE, "folder": tarfile.DIRTYPE, "link": tarfile.SYMTYPE}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as writer:
        for segments, kind in made:
            writer.addfile(entry("/".join(["repo", *segments]), types[kind], "/".join(target)))
    place = tmp_path_factory.mktemp("unpack")
    (place / "around").mkdir()
    with contextlib.suppress(ArchiveRefused):
        archive.unpack(buffer, "repo", place / "around/dest", **ROOM)
    assert {path.name for path in place.iterdir()} == {"around"}
    assert {path.name for path in (place / "around").iterdir()} <= {"dest"}


def _streamed(data: bytes, most: int = 1 << 20) -> archive.Stream:
    """As it comes through a pipe."""
    raw = io.BytesIO(data)
    raw.seek = None  # type: ignore[assignment, method-assign]
    return archive.Stream(cast(io.BufferedReader, raw), most)


def _cleaned(source: archive.Source) -> tuple[bytes, tuple[str, ...], archive.Writer]:
    out = io.BytesIO()
    writer = archive.Writer(out)
    left_out = archive.clean(source, writer, **ROOM, keeper=archive.Keeper())
    writer.end()
    return out.getvalue(), left_out, writer


def test_a_stream_is_read_as_a_file_is(tmp_path: Path) -> None:
    path = tar(
        tmp_path / "a.tar",
        entry("repo", tarfile.DIRTYPE),
        entry("repo/l", tarfile.SYMTYPE, "big"),
        entry("repo/away", tarfile.SYMTYPE, "/etc"),
        ("repo/big", bytes(3000)),
        entry("repo/pipe", tarfile.FIFOTYPE),
        ("repo/small", b"x"),
    )
    with path.open("rb") as opened:
        data, left_out, writer = _cleaned(opened)
    assert _cleaned(_streamed(path.read_bytes()))[:2] == (data, left_out)
    assert [line.partition(":")[0] for line in left_out] == ["repo/away", "repo/pipe"]
    assert writer.size == len(data)
    found = archive.check_snapshot(io.BytesIO(data), PARTS, **ROOM)
    assert found == {"repo": [(0, len(data) - len(archive.END))]}
    names = [member.name.rstrip("/") for member in archive.members(io.BytesIO(data))]
    assert names == ["repo", "repo/big", "repo/small", "repo/l"], "links come last"


def test_a_stream_that_ends_early_or_never_is_refused(tmp_path: Path) -> None:
    data = tar(tmp_path / "a.tar", ("repo/x", bytes(5000)), ("repo/y", b"1")).read_bytes()
    for length in (600, 3000, 5632, 6144, 6656):
        with pytest.raises(ArchiveCutShort):
            _cleaned(_streamed(data[:length]))
    with pytest.raises(ArchiveTooBig):
        _cleaned(_streamed(data, 4000))


def test_each_part_lies_where_it_is_said_to(tmp_path: Path) -> None:
    path = tar(
        tmp_path / "a.tar",
        *(("repo/a", b"1"), ("input/b", b"2"), ("input/c", b"3"), ("repo/" + "d" * 200, b"4")),
        format=tarfile.PAX_FORMAT,
    )
    with path.open("rb") as opened:
        found = archive.check_snapshot(opened, PARTS, **ROOM)
    data = path.read_bytes()
    for part, names in (
        ("repo", ["repo/a", "repo/" + "d" * 200]),
        ("input", ["input/b", "input/c"]),
    ):
        alone = b"".join(data[start:end] for start, end in found[part]) + archive.END
        with tarfile.open(fileobj=io.BytesIO(alone)) as reader:
            assert reader.getnames() == names


def test_unpacking_passes_over_other_parts_and_refuses_strangers(tmp_path: Path) -> None:
    path = tar(tmp_path / "a.tar", ("repo/x", b"1"), ("output/y", b"2"))
    with path.open("rb") as opened:
        archive.unpack(opened, "output", tmp_path / "out", others=("repo",), **ROOM)
    assert listed(tmp_path / "out") == {"y": b"2"}
    with path.open("rb") as opened, pytest.raises(ArchiveRefused) as refused:
        archive.unpack(opened, "output", tmp_path / "again", **ROOM)
    assert refused.value.member == "repo/x"


def test_what_is_packed_is_in_order_and_of_nobody(tmp_path: Path) -> None:
    folder = tree(tmp_path / "given", {"b": b"2", "a/x": b"1", "a.txt": b"0"})
    (folder / "b").chmod(0o4755)
    first, second = io.BytesIO(), io.BytesIO()
    for buffer in (first, second):
        archive.pack(folder, buffer, into="repo", **ROOM)
    assert first.getvalue() == second.getvalue()
    with tarfile.open(fileobj=io.BytesIO(first.getvalue())) as reader:
        names = [member.name for member in reader]
        assert names == ["repo", "repo/a", "repo/a.txt", "repo/b", "repo/a/x"]
        assert {(member.uid, member.gid, member.uname) for member in reader} == {(0, 0, "")}
        assert reader.getmember("repo/b").mode == 0o755


def test_a_link_that_leaves_by_way_of_another_is_not_packed(tmp_path: Path) -> None:
    folder = tree(tmp_path / "given", {"a/b/c/file": b""})
    (folder / "a/b/c/top").symlink_to("../../..")
    (folder / "fine").symlink_to("a/b/c/top/a")
    archive.pack(folder, io.BytesIO(), into="repo", **ROOM)
    (folder / "sly").symlink_to("a/b/c/top/..")
    with pytest.raises(ArchiveRefused) as refused:
        archive.pack(folder, io.BytesIO(), into="repo", **ROOM)
    assert refused.value.member == "sly"


def test_a_long_list_of_what_was_left_out_is_counted(tmp_path: Path) -> None:
    lines = archive.named(f"{number:05}: a FIFO" for number in range(2000))
    assert len(lines) == 501
    assert lines[-1] == "… and 1500 more"


def test_a_hostile_name_is_shown_on_one_plain_line() -> None:
    for name in ("a\nb", "\x1b[31mred", "\u202eevil", os.fsdecode(b"\xff"), "x" * 5000):
        text = archive.shown(name)
        assert text.isprintable()
        assert len(text) < 300
