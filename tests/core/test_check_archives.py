"""Archives: harmless ones are listed, harmful ones are refused before anything is unpacked."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import struct
import tarfile
import warnings
import zipfile
import zlib
from collections.abc import Iterable

import pytest

from approvals.checks import CheckResult, archives
from tests.core.check_kit import candidate


def tar(*members: tuple[str, bytes] | tarfile.TarInfo | tuple[tarfile.TarInfo, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                archive.addfile(member)
                continue
            name, data = member
            info = tarfile.TarInfo(name) if isinstance(name, str) else name
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def special(name: str, kind: bytes, link: str = "", mode: int = 0o644) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, link, mode
    return info


def zipped(*members: tuple[str, bytes] | tuple[str, bytes, int]) -> bytes:
    out = io.BytesIO()
    with warnings.catch_warnings(action="ignore"), zipfile.ZipFile(out, "w") as archive:
        for name, data, *mode in members:
            info = zipfile.ZipInfo(name)
            info.create_system = 3
            info.external_attr = (mode[0] if mode else 0o100644) << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, data)
    return out.getvalue()


def check(data: bytes, name: str = "a.bin") -> CheckResult:
    return archives.check(candidate(tray={name: data}))


ORDINARY = tar(
    special("d/", tarfile.DIRTYPE, mode=0o755),
    ("./d/a.txt", b"a\n"),
    (special("d/run.sh", tarfile.REGTYPE, mode=0o755), b"#!/bin/sh\n"),
    special("d/link", tarfile.SYMTYPE, "a.txt"),
)


@pytest.mark.parametrize(
    "data",
    [
        ORDINARY,
        gzip.compress(ORDINARY, mtime=0),
        bz2.compress(ORDINARY),
        lzma.compress(ORDINARY),
        zipped(("d/", b"", 0o40755), ("d/a.txt", b"a\n"), ("d/run.sh", b"#!/bin/sh\n", 0o100755)),
        gzip.compress(b"one\n", mtime=0) + gzip.compress(b"two\n", mtime=0),
        zipped(("inner.zip", zipped(("x", b"1")))),
        zipped(),
        tar(),
    ],
)
def test_an_ordinary_archive_is_listed(data: bytes) -> None:
    result = check(data)
    assert result.outcome == "passed", result.findings
    assert all(each.severity == "note" for each in result.findings)


def test_members_and_modes_are_told() -> None:
    (finding,) = check(gzip.compress(ORDINARY, mtime=0)).findings
    for words in ("./d/a.txt (2 bytes)", "d/run.sh (10 bytes, executable)", "link to a.txt"):
        assert words in finding.text


def overlapping() -> bytes:
    one = bytearray(zipped(("a", b"1" * 50), ("b", b"2" * 50)))
    end = one.rfind(b"PK\x05\x06")
    second = one.rfind(b"PK\x01\x02", 0, end)
    one[second + 42 : second + 46] = struct.pack("<I", 0)
    one[second + 46 : second + 47] = b"a"
    return bytes(one)


def two_names() -> bytes:
    one = bytearray(zipped(("safe.txt", b"1")))
    one[30:38] = b"evil.txt"
    return bytes(one)


def encrypted() -> bytes:
    one = bytearray(zipped(("a", b"1")))
    one[6] |= 1
    at = one.find(b"PK\x01\x02")
    one[at + 8] |= 1
    return bytes(one)


def lying_size() -> bytes:
    one = bytearray(zipped(("a", b"1" * 500)))
    at = one.find(b"PK\x01\x02")
    one[at + 24 : at + 28] = struct.pack("<I", 5)
    return bytes(one)


def bomb(levels: int) -> bytes:
    data = b"\0" * (8 << 20)
    for _ in range(levels):
        data = gzip.compress(data, mtime=0)
    return data


def many() -> Iterable[tuple[str, bytes]]:
    return ((f"f{i}", b"") for i in range(archives.MAX_MEMBERS + 1))


@pytest.mark.parametrize(
    ("reason", "data"),
    [
        ("“..” part", tar(("good", b"1"), ("../x", b"1"))),
        ("“..” part", tar(("a/../../x", b"1"))),
        ("“..” part", tar(("./../x", b"1"))),
        ("absolute", tar(("/etc/x", b"1"))),
        ("own directory", tar((".git/config", b"1"))),
        ("points out", tar(special("out", tarfile.SYMTYPE, "../.."))),
        ("absolute path", tar(special("out", tarfile.SYMTYPE, "/tmp"))),
        ("points out", tar(special("l", tarfile.LNKTYPE, "../../etc/passwd"))),
        ("through a link", tar(special("d", tarfile.SYMTYPE, "e"), ("d/x", b"1"))),
        ("through a link", tar(("e", b"1"), special("l", tarfile.LNKTYPE, "e"), ("l", b"2"))),
        ("two members", tar(("run.sh", b"1"), ("run.sh", b"2"))),
        ("two members", tar(("run.sh", b"1"), ("./run.sh", b"2"))),
        ("a file and a directory", tar(("a/b", b"1"), ("a", b"2"))),
        ("a device", tar(special("n", tarfile.CHRTYPE))),
        ("a device", tar(special("n", tarfile.FIFOTYPE))),
        ("follow its end", tar(("a", b"1")) + tar(("b", b"2"))),
        ("more than", tar(*many())),
        ("times its size", bomb(1)),
        ("nested", bomb(4)),
        ("times its size", zipped(("zeros", b"\0" * (8 << 20)))),
        ("damaged", gzip.compress(b"x" * 100, mtime=0)[:-4]),
        ("damaged", gzip.compress(b"x", mtime=0) + b"trailing"),
        ("“..” part", zipped(("../../evil.sh", b"1"))),
        ("absolute", zipped(("/abs", b"1"))),
        ("drive letter", zipped(("C:/win.txt", b"1"))),
        ("backslash", zipped(("..\\evil", b"1"))),
        ("absolute path", zipped(("l", b"/etc/passwd", 0o120777))),
        ("two members", zipped(("a", b"1"), ("a", b"2"))),
        ("overlap", overlapping()),
        ("two different names", two_names()),
        ("encrypted", encrypted()),
        ("damaged", lying_size()),
        ("follow its end", zipped(("a", b"1")) + b"tail"),
        ("before or between", b"PK\x03\x04" + b"x" * 30 + zipped(("a", b"1"))),
        ("“..” part", zipped(("in.tar", tar(("../x", b"1"))))),
        ("damaged", b"PK\x03\x04 not a zip at all"),
        ("sparse", tar(special("s", tarfile.GNUTYPE_SPARSE))),
    ],
)  # fmt: skip
def test_a_harmful_archive_is_refused_with_the_reason(reason: str, data: bytes) -> None:
    result = check(data)
    assert result.outcome == "failed"
    (finding,) = result.findings
    assert reason in finding.text, finding.text


def test_a_bomb_is_not_unpacked() -> None:
    packed = zlib.compressobj(9, zlib.DEFLATED, 31)
    data = b"".join(packed.compress(b"\0" * (1 << 20)) for _ in range(512)) + packed.flush()
    result = check(data, "n.gz")
    assert result.outcome == "failed"
