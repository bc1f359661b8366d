"""The strict reader of patches: what it takes, what it refuses, and that lines give bytes back."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest

from approvals.patch import FilePatch, PatchRefused, apply, parse_patch, read_patch, unquote

NO = b"0" * 40
ONE, TWO = b"1" * 40, b"2" * 40


def modified(path: str, body: bytes) -> bytes:
    name = path.encode()
    return (
        b"diff --git a/%s b/%s\nindex %s..%s 100644\n--- a/%s\n+++ b/%s\n" % (
            name, name, ONE, TWO, name, name
        )
        + body
    )  # fmt: skip


def created(path: bytes, *lines: bytes, mode: bytes = b"100644", end: bytes = b"") -> bytes:
    return (
        b"diff --git a/%s b/%s\nnew file mode %s\nindex %s..%s\n--- /dev/null\n+++ b/%s\n" % (
            path, path, mode, NO, ONE, path
        )
        + b"@@ -0,0 +1,%d @@\n" % len(lines)
        + b"".join(b"+" + line + b"\n" for line in lines)
        + end
    )  # fmt: skip


PLAIN = modified("a.py", b"@@ -1,2 +1,2 @@ def f():\n ctx\n-old\n+new\n")


def only(data: bytes) -> FilePatch:
    (file,) = read_patch(data)
    return file


def test_an_ordinary_change() -> None:
    file = only(PLAIN)
    assert (file.path, file.added, file.removed) == (b"a.py", 1, 1)
    (hunk,) = file.hunks
    assert hunk.section == b"def f():"
    assert hunk.lines == (b" ctx", b"-old", b"+new")


def test_entries_without_a_hunk_are_entries() -> None:
    data = (
        b"diff --git a/x b/x\nold mode 100644\nnew mode 100755\n"
        b"diff --git a/x b/x b/x b/x b/x\nsimilarity index 100%\n"
        b"rename from x b/x\nrename to x b/x b/x\n"
        b"diff --git a/empty b/empty\nnew file mode 100644\nindex " + NO + b".." + ONE + b"\n"
    )
    mode, moved, empty = read_patch(data)
    assert (mode.old_mode, mode.new_mode) == ("100644", "100755")
    assert (moved.old_path, moved.new_path, moved.renamed) == (b"x b/x", b"x b/x b/x", True)
    assert (empty.old_path, empty.new_path, empty.hunks) == (None, b"empty", ())


def test_quoted_names_and_lines_that_look_like_headers() -> None:
    data = (
        b'diff --git "a/a\\nb \\"q\\" \\303\\251" "b/a\\nb \\"q\\" \\303\\251"\n'
        b"index " + ONE + b".." + TWO + b" 100644\n"
        b'--- "a/a\\nb \\"q\\" \\303\\251"\n+++ "b/a\\nb \\"q\\" \\303\\251"\n'
        b"@@ -1,3 +1,4 @@\n x\n--- a/old\n+++ b/new\n+\\ No newline at end of file\n y\r\rz\n"
    )
    file = only(data)
    assert file.path == 'a\nb "q" é'.encode()
    assert (file.added, file.removed) == (2, 1)
    assert apply(file, b"x\n-- a/old\ny\r\rz\n") == (
        b"x\n++ b/new\n\\ No newline at end of file\ny\r\rz\n"
    )


def test_two_plain_files_in_a_row() -> None:
    data = b"--- /dev/null\n+++ b/1\n@@ -0,0 +1 @@\n+a\n--- /dev/null\n+++ b/2\n@@ -0,0 +1 @@\n+b\n"
    assert [file.path for file in read_patch(data)] == [b"1", b"2"]


def test_a_changed_type_is_two_entries_for_one_path() -> None:
    data = (
        b"diff --git a/c b/c\ndeleted file mode 100644\nindex %s..%s\n--- a/c\n+++ /dev/null\n"
        b"@@ -1 +0,0 @@\n-x\n"
        % (ONE, NO)
        + created(b"c", b"target", mode=b"120000", end=b"\\ No newline at end of file\n")
    )
    assert [file.new_path for file in read_patch(data)] == [None, b"c"]


GIT_BINARY = (
    b"diff --git a/b.bin b/b.bin\nindex %s..%s 100644\nGIT binary patch\n"
    b"literal 3\nKcmZQzWMT#Y01f~L\n\nliteral 2\nJcmZQzWMBXQ00961\n\n" % (ONE, TWO)
)


def test_binary_data_is_passed_over_and_without_it_refused() -> None:
    assert only(GIT_BINARY).binary == "data"
    nothing = GIT_BINARY.partition(b"GIT binary")[0] + b"Binary files a/b.bin and b/b.bin differ\n"
    assert parse_patch(nothing)[0].binary == "no data"
    with pytest.raises(PatchRefused, match="not in the patch"):
        read_patch(nothing)


@pytest.mark.parametrize(
    ("reason", "data"),
    [
        ("more lines follow", PLAIN + b"+hidden\n"),
        ("other lines than", PLAIN.replace(b"-1,2", b"-1,1")),
        ("ends inside a hunk", PLAIN.replace(b"+1,2", b"+1,3")),
        ("no end", PLAIN[:-1]),
        ("where a file must begin", b"From: x\n\n" + PLAIN),
        ("between two files", PLAIN + b"noise\n" + PLAIN),
        ("between two files", PLAIN + b"-- \n2.39.2\n".replace(b"-- ", b"== ")),
        ("more lines follow", PLAIN + b"-- \n2.39.2\n"),
        ("names other files", PLAIN.replace(b"--- a/a.py\n+++ b/a.py", b"--- a/b\n+++ b/b")),
        ("without a rename", PLAIN.replace(b"b/a.py", b"b/c.py")),
        ("names other files", PLAIN.replace(b"+++ b/a.py", b"+++ b/c.py")),
        ("comes twice", PLAIN + PLAIN),
        ("combined diff", b"diff --cc a.py\nindex 1,2..3\n--- a/a.py\n+++ b/a.py\n"),
        ("combined diff", PLAIN.replace(b"@@ -1,2 +1,2 @@", b"@@@ -1,2 -1,2 +1,2 @@@")),
        ("not as git writes", PLAIN.replace(b"@@ -1,2 +1,2 @@", b"@@ -1,2 +1,2")),
        ("too large", PLAIN.replace(b"-1,2", b"-1,99999999999")),
        ("“..” part", created(b"../../x", b"y")),
        ("absolute", created(b"/etc/x", b"y").replace(b"a//etc", b"a//etc")),
        ("own directory", created(b".git/hooks/post-checkout", b"y", mode=b"100755")),
        ("own directory", created(b"sub/.GIT/config", b"y")),
        ("which is a link", created(b"d", b"x", mode=b"120000") + created(b"d/e", b"y")),
        ("which is a file", created(b"d", b"x") + created(b"d/e/f", b"y")),
        ("points out", created(b"l", b"../x", mode=b"120000", end=b"\\ No newline\n")),
        ("absolute path", created(b"l", b"/tmp", mode=b"120000")),
        ("does not keep", created(b"l", b"x", mode=b"100666")),
        ("comes twice", PLAIN.replace(b"index", b"old mode 100644\nold mode 100644\nindex")),
        ("only one side", PLAIN.replace(b"index", b"rename from a.py\nindex")),
        ("created and deleted", created(b"x", b"y").replace(
            b"index", b"deleted file mode 100644\nindex")),
        ("begins with none of", PLAIN.replace(b" ctx", b"ctx")),
        ("begins with none of", PLAIN.replace(b" ctx", b"")),
        ("follows the end", PLAIN.replace(b"-old\n", b"-old\n\\ No newline\n")
            .replace(b"-1,2", b"-1,3") + b"-more\n"),
        ("marked twice", PLAIN.replace(b"-old\n", b"-old\n" + 2 * b"\\ No newline\n")),
        ("changes nothing", modified("a", b"@@ -1 +1 @@\n x\n")),
        ("without a hunk", modified("a", b"")),
        ("out of order", modified("a", b"@@ -9 +9 @@\n-a\n+b\n@@ -1 +1 @@\n-a\n+b\n")),
        ("before the first", modified("a", b"@@ -0,1 +1 @@\n-a\n+b\n")),
        ("quotes", PLAIN.replace(b"--- a/a.py", b'--- "a/a.py\\q"')),
        ("behind a name", PLAIN.replace(b"--- a/a.py", b"--- a/a.py\t2020-01-01")),
        ("does not begin with b/", PLAIN.replace(b"+++ b/a.py", b"+++ /srv//x")),
        ("binary data", GIT_BINARY.replace(b"KcmZQ", b"+ sneaky ")),
        ("ends early", GIT_BINARY.rstrip(b"\n") + b"\n"),
    ],
)  # fmt: skip
def test_what_can_be_read_in_two_ways_is_refused(reason: str, data: bytes) -> None:
    with pytest.raises(PatchRefused, match=reason):
        read_patch(data)


def test_an_empty_patch_has_no_files() -> None:
    assert read_patch(b"") == ()


@pytest.mark.parametrize(
    ("token", "path"),
    [
        (b'"a\\tb"', b"a\tb"),
        (b'"\\303\\251"', "é".encode()),
        (b'"\\\\\\""', b'\\"'),
        (b'"a"b"', None),
        (b'"\\q"', None),
        (b'"\\8"', None),
        (b'"\\"', None),
        (b"x", None),
    ],
)
def test_names_are_unquoted_as_git_quotes_them(token: bytes, path: bytes | None) -> None:
    assert unquote(token) == path


def test_lines_applied_to_the_old_bytes_give_the_new(tmp_path: Path) -> None:
    """Against git itself, on random texts full of what trips readers up."""
    dice = random.Random(7)
    words = [b"a", b"b", b"", b"--- a/x", b"+++ b/x", b"@@ -1 +1 @@", b"\r", b"x\ry", b"\\ No",
             b"diff --git a/x b/x", b"\xff\xfe", "é".encode(), b" ", b"\t"]  # fmt: skip
    environment = {"PATH": "/usr/bin:/bin", "GIT_CONFIG_NOSYSTEM": "1", "HOME": "/nonexistent"}
    for _ in range(40):
        texts = []
        for _side in (0, 1):
            lines = [dice.choice(words) for _ in range(dice.randrange(12))]
            texts.append(b"\n".join(lines) + dice.choice((b"\n", b"")))
        for name, text in zip(("old", "new"), texts, strict=True):
            (tmp_path / name).write_bytes(text)
        shown = subprocess.run(
            ["git", "diff", "--no-index", "--text", "-U1", "old", "new"],
            cwd=tmp_path, env=environment, capture_output=True, check=False,
        ).stdout  # fmt: skip
        shown = shown.replace(b"a/old b/new", b"a/f b/f").replace(b"--- a/old", b"--- a/f")
        shown = shown.replace(b"+++ b/new", b"+++ b/f")
        if texts[0] == texts[1]:
            assert shown == b""
            continue
        (file,) = parse_patch(shown)
        assert apply(file, texts[0]) == texts[1]
