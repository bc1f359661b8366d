"""Paths, sizes and types, and the page against the bytes."""

from __future__ import annotations

import struct
import subprocess
import zlib
from dataclasses import replace
from pathlib import Path

import pytest

from approvals import tree
from approvals.changes import LeftOut
from approvals.checks import paths, size_and_type, view
from approvals.checks.base import Subject
from tests.core.check_kit import candidate, found, rules


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        ("src/**", ["src/a", "src/b/c.py"], ["src", "srcx/a", "a/src/b"]),
        ("src/*.py", ["src/a.py"], ["src/b/a.py", "src/a.pyc"]),
        ("**/*.md", ["a.md", "docs/x/a.md"], ["a.mdx"]),
        ("docs/", ["docs/a", "docs/a/b"], ["docs2/a"]),
        ("a?c", ["abc"], ["a/c", "abbc"]),
        ("**", ["a", "a/b/c", "new\nline"], []),
        ("src/**/test.py", ["src/test.py", "src/a/b/test.py"], ["src/atest.py"]),
        ("CHANGELOG.md", ["CHANGELOG.md"], ["changelog.md", "x/CHANGELOG.md"]),
        ("a+b.(txt)", ["a+b.(txt)"], ["aab.txt"]),
    ],
)
def test_patterns_mean_what_contracts_say(
    pattern: str, inside: list[str], outside: list[str]
) -> None:
    assert all(paths.allowed(path.encode(), (pattern,)) for path in inside)
    assert not any(paths.allowed(path.encode(), (pattern,)) for path in outside)


def test_a_change_elsewhere_blocks_on_both_ends_of_a_rename() -> None:
    moved = candidate(
        {"src/a.py": (b"x", b"x"), "src/b.py": (None, b"y")},
        renames={"src/a.py": "secret/a.py"},
        allowed_paths=("src/**",),
    )
    result = paths.check(moved)
    assert found(result) == [("blocking", "path not allowed", "secret/a.py", None)]
    assert paths.check(replace(moved, allowed_paths=("**",))).outcome == "passed"


def test_what_leaves_blocks() -> None:
    result = paths.check(
        candidate(
            {
                "../x": (None, b"1"),
                ".git/hooks/post-checkout": (None, b"1"),
                "leak": (None, ("120000", b"/etc/passwd")),
                "up/down": (None, ("120000", b"../ok")),
                "x": (None, ("120000", b"deep/y")),
                "deep/y": (None, ("120000", b"..")),
                "z": (None, ("120000", b"x/..")),
            },
            tray={"../out": b"1"},
        )
    )
    blocked = {path for severity, _, path, _ in found(result) if severity == "blocking"}
    assert blocked == {"../x", ".git/hooks/post-checkout", "leak", "z", "output/../out"}


def test_paths_that_meet_elsewhere_are_warned_of() -> None:
    result = paths.check(
        candidate(
            {"makefile": (None, b"1"), "docs/A": (None, b"1"), "caf\u0065\u0301.txt": (None, b"1")},
            paths=(b"Makefile", b"makefile", b"docs/A", b"Docs/b", "caf\u00e9.txt".encode()),
        )
    )
    assert rules(result) == {"paths collide"}
    assert {path for *_, path, _ in found(result)} == {"makefile", "docs", "caf\u0065\u0301.txt"}
    assert paths.check(candidate({"a": (b"1", b"2")}, paths=(b"a", b"X", b"x"))).findings == ()


def test_what_was_left_out_is_told_and_blocks_where_it_hides_something() -> None:
    left = (
        LeftOut(b"build/", "ignored", "because", count=12),
        LeftOut(b"lib/.git", "nested repository", "because", blocking=True),
    )
    result = paths.check(candidate({"a": (None, b"1")}, left_out=left))
    assert found(result) == [
        ("blocking", "left out: nested repository", "lib/.git", None),
        ("note", "left out: ignored", "build/", None),
    ]
    assert "(12 files)" in result.findings[1].text


def test_names_other_systems_cannot_hold() -> None:
    result = paths.check(
        candidate({"aux.c": (None, b"1"), "ab:c": (None, b"1"), "ok": (None, b"")})
    )
    assert {path for *_, path, _ in found(result)} == {"aux.c", "ab:c"}
    assert result.outcome == "warned"


# --- sizes and types ---------------------------------------------------------------------------


def png(width: int, height: int) -> bytes:
    head = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + b"IHDR" + head
        + struct.pack(">I", zlib.crc32(b"IHDR" + head))
    )  # fmt: skip


def test_limits_of_the_contract_block() -> None:
    many = candidate({f"f{i}": (None, b"x") for i in range(3)}, tray={"r": b"x"}, max_files=3)
    assert found(size_and_type.check(many)) == [("blocking", "too many files", "", None)]
    large = candidate({"a": (b"x" * 99, b"x" * 60)}, tray={"r": b"x" * 41}, max_bytes=100)
    assert found(size_and_type.check(large)) == [("blocking", "too large", "", None)]
    assert size_and_type.check(replace(large, max_bytes=101)).outcome == "passed"


@pytest.mark.parametrize(
    ("path", "data", "expected"),
    [
        ("a.py", b"print(1)\n", set()),
        ("logo.png", png(4, 4), set()),
        ("run", b"\x7fELF\x02\x01\x01" + bytes(60), {"program"}),
        ("tool.exe", b"MZ\x90\0" + bytes(60), {"program"}),
        ("MZ.txt", b"MZ is how it begins\n", set()),
        ("BM.md", b"BM is a place\n", set()),
        ("data.7z", b"7z\xbc\xaf\x27\x1c" + bytes(40), {"packed"}),
        ("blob.dat", b"\0\1\2" * 9, {"unknown binary"}),
        ("photo.png", b"\x7fELF" + bytes(60), {"program", "type against name"}),
        ("photo.jpg", png(4, 4), {"type against name"}),
        ("photo.gif", b"just text\n", {"type against name"}),
        ("invoice_\u202egpj.exe", b"MZ not\n", {"type against name"}),
        ("page.scr", b"text\n", {"runs when opened", "type against name"}),
        ("a.gif", b"GIF89a/*\x01\0\x80\0\0;*/=1;x=1;", {"two types"}),
        ("p.pdf", b"%PDF-1.7\n%%EOF\nPK\x01\x02xPK\x05\x06" + bytes(18), {"two types"}),
        ("i.png", png(4, 4) + b"<script>x</script>", {"two types"}),
        ("huge.png", png(60_000, 60_000), {"huge picture"}),
        ("e.txt", b"".join([b"X5O!P%@AP[4\\PZX54(P^)7CC)7}$", b"EICAR-STANDARD-",
                            b"ANTIVIRUS-TEST-FILE!$H+H*"]), {"malware marker"}),
        ("w.ps1", "Write-Host\r\n".encode("utf-16"), {"unknown binary"}),
    ],
)  # fmt: skip
def test_types_come_from_the_bytes(path: str, data: bytes, expected: set[str]) -> None:
    assert rules(size_and_type.check(candidate({path: (None, data)}))) == expected


def test_made_executable_is_a_warning() -> None:
    result = size_and_type.check(
        candidate({"run.sh": (b"#!/bin/sh\n", ("100755", b"#!/bin/sh\n"))})
    )
    assert found(result) == [("warning", "made executable", "run.sh", None)]
    still = candidate({"run.sh": (("100755", b"1"), ("100755", b"2"))})
    assert size_and_type.check(still).findings == ()


def test_a_picture_says_its_size_without_being_decoded() -> None:
    jpeg = b"\xff\xd8\xff\xe0\0\4ab\xff\xc0\0\x0b\x08\x01\x00\x02\x00" + bytes(9)
    assert size_and_type.picture_size(jpeg) == (512, 256)
    assert size_and_type.picture_size(b"GIF89a\x10\0\x08\0") == (16, 8)
    assert size_and_type.picture_size(b"\xff\xd8\xff\xe0\0\0") is None
    assert size_and_type.picture_size(b"text") is None


# --- the page against the bytes ------------------------------------------------------------------


@pytest.fixture
def taken(tmp_path: Path) -> Subject:
    bare, old, new = tmp_path / "bare.git", tmp_path / "old", tmp_path / "new"
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "GIT_CONFIG_NOSYSTEM": "1", "HOME": "/x"}
    subprocess.run(["git", "init", "-q", "--bare", bare], env=environment, check=True)
    empty = subprocess.run(
        ["git", "-C", bare, "hash-object", "-w", "-t", "tree", "/dev/null"],
        env=environment, capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    sides = {
        old: {"a.py": b"one\r\ntwo\nthree", "gone": b"x\n", "kind": b"text\n", "b": b"\0\1"},
        new: {"a.py": b"one\r\n\x0btwo\r\nthree\n", "new\n": b"\\ No newline\n", "b": b"\0\2"},
    }
    for folder, files in sides.items():
        folder.mkdir()
        for name, data in files.items():
            (folder / name).write_bytes(data)
    (new / "kind").symlink_to("a.py")
    base = tree.build_tree(old, bare, empty).tree
    made = tree.build_tree(new, bare, base)
    return Subject(
        digest="d",
        changes=made.changes,
        read=lambda blob: tree.read_blob(bare, blob),
        patch=lambda: tree.patch(bare, base, made.tree),
    )


def test_the_lines_shown_give_the_bytes_stored(taken: Subject) -> None:
    result = view.check(taken)
    assert result.outcome == "passed", result.findings
    assert (result.evidence["same"], result.evidence["without_lines"]) == (4, 1)


def test_other_lines_than_those_stored_block(taken: Subject) -> None:
    def swapped() -> bytes:
        assert taken.patch is not None
        return taken.patch().replace(b"+\x0btwo\r\n", b"+\x0btow\r\n")

    result = view.check(replace(taken, patch=swapped))
    assert found(result) == [("blocking", "not what is stored", "a.py", None)]


def test_a_patch_that_is_missing_or_wrong_blocks(taken: Subject) -> None:
    assert taken.patch is not None
    whole = taken.patch()
    for patch in (None, lambda: b"", lambda: whole[: len(whole) // 2], lambda: b"junk\n" + whole):
        assert view.check(replace(taken, patch=patch)).outcome == "failed"
