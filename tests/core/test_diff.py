"""The diff a person reads: nothing missing, nothing hidden, everything cut is counted."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable
from dataclasses import replace
from difflib import unified_diff

import pytest

from approvals.changes import Change, Status
from approvals.diff import (
    LINE_CHARS,
    PAGE_ROWS,
    UNIFIED,
    Around,
    Diff,
    DiffBroken,
    HunkRow,
    Line,
    Mask,
    Moved,
    NoSuchLines,
    Options,
    Segment,
    SplitRow,
    change_words,
    path_segments,
    segments_of,
)

NO_BLOB = "0" * 40


def blob(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def modified(path: str, old: str, new: str) -> tuple[Change, bytes]:
    """A change and its section, made by another tool than git so that both must agree."""
    before, after = old.encode("utf-8", "surrogateescape"), new.encode("utf-8", "surrogateescape")
    lines = list(unified_diff(_keep(old), _keep(new), f"a/{path}", f"b/{path}", lineterm="\n"))
    body = "".join(
        line if line.endswith("\n") else line + "\n\\ No newline at end of file\n" for line in lines
    )
    added = sum(line.startswith("+") for line in lines[2:])
    removed = sum(line.startswith("-") for line in lines[2:])
    change = Change(
        path.encode(), None, Status.MODIFIED, "100644", "100644", blob(before), blob(after),
        None, False, added, removed, len(before), len(after),
    )  # fmt: skip
    head = f"diff --git a/{path} b/{path}\nindex {blob(before)}..{blob(after)} 100644\n"
    return change, (head + body).encode("utf-8", "surrogateescape")


def _keep(text: str) -> list[str]:
    parts = text.split("\n")
    whole = [part + "\n" for part in parts[:-1]]
    return [*whole, parts[-1]] if parts[-1] else whole


def one(old: str, new: str, path: str = "a.py", **options: object) -> Diff:
    change, data = modified(path, old, new)
    return Diff([change], data, **options)  # type: ignore[arg-type]


def flat(line: Line | None, *, raw: bool = False) -> str:
    if line is None:
        return "(none)"
    out = line.sign.replace("\N{MINUS SIGN}", "-")
    for stretch in line.stretches:
        text = "".join(
            f"<{s.text}>" if s.kind in ("hid", "byte", "cr", "cut", "mask") else s.text
            for s in stretch.segments
        )
        out += f"[{text}]" if stretch.changed and not raw else text
    return out


def drawn(rows: Iterable[object]) -> list[str]:
    out = []
    for row in rows:
        if isinstance(row, Line):
            out.append(flat(row))
        elif isinstance(row, SplitRow):
            out.append(f"{flat(row.old)} | {flat(row.new)}")
        elif isinstance(row, HunkRow):
            ranges = f"{row.old_range} {row.new_range}".replace("\N{EN DASH}", "-")
            out.append(f"@ {ranges} {row.skipped}")
    return out


def test_unified_and_split_show_the_same_lines() -> None:
    old = "".join(f"line {i}\n" for i in range(30))
    new = old.replace("line 9\n", "line nine\nline 9b\n").replace("line 20\n", "")
    diff = one(old, new)
    view = diff.view(0)
    assert drawn(view.rows) == [
        "@ 7-13 7-14 6", "line 6", "line 7", "line 8", "-line [9]", "+line [nine]", "+line 9b",
        "line 10", "line 11", "line 12",
        "@ 18-24 19-24 4", "line 17", "line 18", "line 19", "-line 20",
        "line 21", "line 22", "line 23",
    ]  # fmt: skip
    assert drawn(diff.view(0, Options(mode="split")).rows)[4:6] == [
        "-line [9] | +line [nine]", "(none) | +line 9b",
    ]  # fmt: skip
    numbers = [(r.old_no, r.new_no) for r in view.rows if isinstance(r, Line)]
    assert numbers[3:6] == [(10, None), (None, 10), (None, 11)]
    head = diff.head(0)
    assert (head.added, head.removed, head.lines, head.hunks, head.cut) == (2, 2, 16, 2, "")


def test_unchanged_lines_can_be_asked_for_in_steps() -> None:
    old = "".join(f"{i}\n" for i in range(1, 31))
    new = old.replace("10\n", "ten\n").replace("20\n", "twenty\n")
    diff = one(old, new)

    def around(number: int, shown: int = 0, count: int = 400) -> Around:
        return diff.around(0, number, UNIFIED, new.encode(), shown=shown, count=count)

    assert drawn(around(0).rows) == [str(i) for i in range(1, 7)]
    assert drawn(around(1).rows) == ["14", "15", "16"]
    assert drawn(around(2).rows) == [str(i) for i in range(24, 31)]
    headings = [around(number).hunk for number in range(3)]
    assert [each and (each.number, each.skipped) for each in headings] == [(0, 0), (1, 0), None]

    # Before a hunk the nearest lines come first, after the last one the next ones do.
    near = around(0, count=2)
    assert (drawn(near.rows), near.shown, near.left) == (["5", "6"], 2, 4)
    assert near.hunk is not None
    assert near.hunk.skipped == 4
    further = around(0, shown=2, count=3)
    assert (drawn(further.rows), further.shown, further.left) == (["2", "3", "4"], 5, 1)
    lines = [row for row in around(1, count=2).rows if isinstance(row, Line)]
    assert [(row.old_no, row.new_no) for row in lines] == [(15, 15), (16, 16)]
    assert drawn(around(2, shown=3, count=2).rows) == ["27", "28"]
    for number, shown, count in ((3, 0, 1), (0, 7, 1), (0, -1, 1), (0, 0, 0)):
        with pytest.raises(NoSuchLines):
            around(number, shown, count)
    with pytest.raises(NoSuchLines):  # not the content that the patch was made of
        diff.around(0, 1, UNIFIED, b"1\n2\n", shown=0, count=9)


def test_a_whole_file_is_its_lines_with_the_changes_among_them() -> None:
    old = "".join(f"{i}\n" for i in range(1, 31))
    new = old.replace("10\n", "ten\n").replace("20\n", "").replace("30\n", "30")
    change, data = modified("a.txt", old, new)
    diff, contents = Diff([change], data), {change.new_blob: new.encode()}
    for mode in ("unified", "split"):
        view = diff.view(0, Options(mode=mode, whole=True), contents=contents)
        lines = [row for row in view.rows if not isinstance(row, HunkRow)]
        sides = [(row.old, row.new) if isinstance(row, SplitRow) else (row, row) for row in lines]
        before = {each.old_no for each, _ in sides if isinstance(each, Line)} - {None}
        now = {each.new_no for _, each in sides if isinstance(each, Line)} - {None}
        assert (before, now) == (set(range(1, 31)), set(range(1, 30)))
        assert all(row.skipped == 0 for row in view.rows if isinstance(row, HunkRow))
        assert view.tail is None
    assert diff.view(0).tail == 3
    with_lines = diff.row_of(0, "new-15", Options(whole=True), contents)
    whole = diff.view(0, Options(whole=True), start=with_lines, contents=contents)
    assert drawn(whole.rows)[0] == "15"
    assert drawn([diff.view(0).rows[diff.row_of(0, "old-10", UNIFIED)]]) == ["-10"]
    for side in ("new-1", "new-400", "both-1", "new-x"):
        with pytest.raises(NoSuchLines):
            diff.row_of(0, side, UNIFIED)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("review\u200ber", "review<U+200B>er"),
        ("a\u202e } \u2066if\u2069", "a<U+202E> } <U+2066>if<U+2069>"),
        ("\ufeffmid", "<U+FEFF>mid"),
        ("soft\u00adhyphen", "soft<U+00AD>hyphen"),
        ("tag\U000e0041\U000e0042", "tag<U+E0041><U+E0042>"),
        ("esc\x1b[2J nul\x00 bell\x07", "esc<ESC>[2J nul<NUL> bell<BEL>"),
        ("lone\rcr", "lone<CR>cr"),
        ("latin \udce9 byte", "latin <\\xE9> byte"),
        ("is_\u0430llowed", "is_<U+0430>llowed"),
        ("\u2028 \u2029 \u3164 \uffa0", "<U+2028> <U+2029> <U+3164> <U+FFA0>"),
        ("selector\ufe0f\ufe0e", "selector<U+FE0F><U+FE0E>"),
        ("nb\u00a0sp", "nb<U+00A0>sp"),
        ("za" + "\u0321" * 5 + "lgo", "za\u0321\u0321\u0321<U+0321><U+0321>lgo"),
    ],
)
def test_what_hides_is_shown_by_its_code_point(text: str, expected: str) -> None:
    diff = one("x\n", f"x\n{text}\n", "t.txt")
    assert drawn(diff.view(0).rows)[-1] == f"+{expected}"
    joined = "".join(s.text for s in segments_of(text))
    assert not any(ord(c) < 32 or c in "\u200b\u202e\u2066\ufeff\u00ad\u2028\u3164" for c in joined)


@pytest.mark.parametrize(
    "text",
    [
        "plain ascii",
        "msgstr \u05d0\u05d9\u05e9\u05d5\u05e8 \u0631\u0641\u0636",
        "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f44d\U0001f3fd 1\ufe0f\u20e3",
        "\U0001f1e9\U0001f1ea \u2764\ufe0f\u200d\U0001f525",
        "na\u00efve caf\u00e9 \u6392\u67e5 \u0394t \u03c1_max m\u00b2",
        "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",  # Persian with its ordinary non-joiner
        "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440",
    ],
)
def test_honest_text_raises_no_alarm(text: str) -> None:
    head = one("x\n", f"x\n{text}\n", "t.txt").head(0)
    assert head.hidden == 0


def test_counts_of_hidden_characters_stand_in_the_list() -> None:
    diff = one("x\n", "x\u200b\ny\u202e\n", "t.txt")
    assert (diff.head(0).hidden, diff.totals().hidden, diff.totals().hidden_files) == (2, 2, 1)


def test_a_long_run_of_hidden_characters_is_one_counted_segment() -> None:
    diff = one("x\n", "x\n" + "\U000e0041" * 5000 + "\n", "t.txt")
    (line,) = [row for row in diff.view(0).rows if isinstance(row, Line) and row.sign == "+"]
    assert sum(len(stretch.segments) for stretch in line.stretches) <= 3
    assert "2,000 hidden characters" in flat(line)
    assert line.cut == 3000


def test_right_to_left_text_is_apart_so_that_it_moves_nothing() -> None:
    kinds = [(s.kind, s.text) for s in segments_of("a = '\u05d0\u05d1 \u05d2' + b")]
    assert kinds == [("", "a = '"), ("rtl", "\u05d0\u05d1 \u05d2"), ("", "' + b")]


def test_line_ends_and_the_end_of_the_file_are_shown() -> None:
    diff = one("a\nb", "a\r\nb\n", "t.txt")
    assert drawn(diff.view(0).rows)[1:] == ["-a", "-b", "+a<CR>", "+b"]
    rows = [row for row in diff.view(0).rows if isinstance(row, Line)]
    assert [row.open_end for row in rows] == [False, True, False, False]
    assert "line ends LF → CRLF on 1 line" in diff.head(0).words[0]


def test_a_file_turned_to_crlf_names_the_one_other_change() -> None:
    old = "".join(f"line {i}\n" for i in range(60))
    new = old.replace("line 37\n", "line 37 limit=0\n").replace("\n", "\r\n")
    assert one(old, new).head(0).words == (
        "line ends LF → CRLF on 59 lines with no other change; 1 line changed otherwise",
    )


def test_without_blanks_only_what_else_changed_is_drawn_as_changed() -> None:
    old = "def f():\n  a = 1\n  b = 2\nend\n" + "".join(f"{i}\n" for i in range(20)) + "last\n"
    new = old.replace("  a", "\ta").replace("  b = 2", "    b = 3").replace("last\n", "last \n")
    diff = one(old, new)
    quiet = diff.view(0, Options(blanks=False))
    assert drawn(quiet.rows) == [
        "@ 1-6 1-6 0", "def f():", "\ta = 1", "-[  ]b = [2]", "+[    ]b = [3]", "end", "0", "1",
    ]  # fmt: skip
    lines = [row for row in quiet.rows if isinstance(row, Line)]
    assert [line.blanks_only for line in lines].count(True) == 1
    # What follows is left away, so the last hunk of what is shown has all the rest after it.
    rest = diff.around(0, 2, Options(blanks=False), new.encode(), shown=0, count=400)
    assert drawn(rest.rows) == [*(str(i) for i in range(2, 20)), "last "]
    assert sum(isinstance(row, Line) and row.kind != "ctx" for row in diff.view(0).rows) == 6


def test_a_line_without_its_line_feed_is_no_matter_of_blanks() -> None:
    view = one("a\nb\n", "a\nb").view(0, Options(blanks=False))
    assert drawn(view.rows)[2:] == ["-b", "+b"]


LONG_LINE = "a_single_line_that_is_long_enough = 1\n"
BLOCK = "def helper(value):\n    total = value * 2\n    return total\n"


def test_lines_that_moved_say_where_they_went_and_came_from() -> None:
    one_side = modified("a.py", BLOCK + "x = 1\n" * 3, "x = 1\n" * 3)
    other_side = modified("b.py", "y = 2\n", "y = 2\n" + BLOCK)
    diff = Diff([one_side[0], other_side[0]], one_side[1] + other_side[1])
    gone = [row for row in diff.view(0).rows if isinstance(row, Line) and row.kind == "rem"]
    come = [row for row in diff.view(1).rows if isinstance(row, Line) and row.kind == "add"]
    assert [row.moved for row in gone] == [Moved(1, number) for number in (2, 3, 4)]
    assert [row.moved for row in come] == [Moved(0, number) for number in (1, 2, 3)]


@pytest.mark.parametrize(
    ("was", "now", "why"),
    [
        (BLOCK, BLOCK.replace("    ", "\t"), "indented anew: that may mean something else"),
        (BLOCK, BLOCK.replace("value * 2", "value * 3"), "one byte is another"),
        ("}\n\n", "}\n\n", "too few letters to tell"),
        (
            "a_single_line_that_is_long_enough = 1\n",
            "a_single_line_that_is_long_enough = 1\n",
            "one",
        ),
    ],
)
def test_nothing_counts_as_moved_that_a_reader_must_look_at(was: str, now: str, why: str) -> None:
    parts = [modified("a", was + "k\n", "k\n"), modified("b", "m\n", "m\n" + now)]
    diff = Diff([change for change, _ in parts], b"".join(data for _, data in parts))
    assert diff.moves() == {}, why


def test_what_stays_beside_a_change_did_not_move() -> None:
    """In one change, equal lines on both sides are an alignment that git did not find."""
    old, new = "a1\n" + BLOCK + "b1\n", "b1\n" + BLOCK + "a1\n"
    change, _ = modified("a", old, new)
    lines = [*(f"-{each}" for each in old.splitlines()), *(f"+{each}" for each in new.splitlines())]
    head = f"diff --git a/a b/a\nindex {change.old_blob}..{change.new_blob} 100644\n"
    head += "--- a/a\n+++ b/a\n@@ -1,5 +1,5 @@\n"
    changed = replace(change, added=5, removed=5)
    assert Diff([changed], "\n".join([head + lines[0], *lines[1:], ""]).encode()).moves() == {}


def test_text_far_to_the_right_is_noted() -> None:
    diff = one("x\n", "x" + " " * 400 + "; run()\n")
    (line,) = [row for row in diff.view(0).rows if isinstance(row, Line) and row.sign == "+"]
    assert line.note == "text stands after 400 blanks"
    assert any(s.kind == "gap" for stretch in line.stretches for s in stretch.segments)


def test_a_long_line_is_cut_around_what_changed_and_the_rest_is_at_hand() -> None:
    old = "a,b;" * 300_000
    new = old[:600_001] + "!" + old[600_002:]
    diff = one(old + "\n", new + "\n", "min.js")
    rows = [row for row in diff.view(0).rows if isinstance(row, Line)]
    assert [row.cut > 1_000_000 for row in rows] == [True, True]
    marked = [s.text for row in rows for t in row.stretches if t.changed for s in t.segments]
    assert marked == ["b", "!"] or marked == [",", "!"] or marked[-1] == "!"
    shown = sum(len(s.text) for row in rows for t in row.stretches for s in t.segments)
    assert shown < 3 * LINE_CHARS
    part = diff.whole_line(0, rows[1].side, offset=600_000, size=4)
    assert "!" in "".join(s.text for s in part.segments)
    assert (part.total, part.next_offset) == (1_200_000, 600_004)
    again = ""
    at: int | None = 0
    while at is not None:
        part = diff.whole_line(0, rows[1].side, offset=at, size=10**9)
        again += "".join(s.text for s in part.segments)
        at = part.next_offset
    assert again == new


@pytest.mark.parametrize("side", ["new-99", "old-0", "x", "new-1; drop", "new--1"])
def test_lines_that_are_not_there(side: str) -> None:
    with pytest.raises(NoSuchLines):
        one("a\n", "b\n").whole_line(0, side)


def test_a_huge_diff_is_paged_and_its_counts_are_right() -> None:
    old = "".join(f"row {i} open\n" for i in range(10_000))
    new = "".join(f"row {i} done\n" for i in range(10_000))
    header = (
        f"diff --git a/r.txt b/r.txt\nindex {blob(b'1')}..{blob(b'2')} 100644\n--- a/r.txt\n"
        "+++ b/r.txt\n@@ -1,10000 +1,10000 @@\n"
    )
    body = "".join(f"-{line}\n" for line in old.splitlines())
    body += "".join(f"+{line}\n" for line in new.splitlines())
    change = Change(
        b"r.txt", None, Status.MODIFIED, "100644", "100644", blob(b"1"), blob(b"2"), None, False,
        10_000, 10_000, 1, 1,
    )  # fmt: skip
    diff = Diff([change], (header + body).encode())
    view = diff.view(0)
    assert (len(view.rows), view.next_start, view.total) == (PAGE_ROWS, PAGE_ROWS, 20_001)
    assert diff.head(0).cut == "20,000 lines, shown 400 at a time"
    assert view.plain_because == "more than 2,000 lines"
    seen = 0
    at: int | None = 0
    while at is not None:
        view = diff.view(0, start=at)
        seen += len(view.rows)
        at = view.next_start
    assert seen == 20_001


def test_a_page_of_hostile_lines_stays_small() -> None:
    text = "".join("\u200b" * 11 + "x" + "\u202ey" * 500 + "\n" for _ in range(400))
    diff = one("x\n", "x\n" + text, "t.txt")
    view = diff.view(0)
    segments = sum(
        len(t.segments) for row in view.rows if isinstance(row, Line) for t in row.stretches
    )
    assert segments < 50_000
    assert view.next_start is not None
    assert diff.view(0, start=view.next_start).rows


def test_word_marks_stop_where_they_would_cost_too_much() -> None:
    """Lines made of one token over and over are the worst case for comparing words."""
    old = "".join(("a " * 190 + f"{i}\n") for i in range(200))
    new = "".join(("a " * 120 + "b " * 70 + f"{i}\n") for i in range(200))
    begin = time.monotonic()
    view = one(old, new).view(0)
    assert view.unmarked > 0
    assert time.monotonic() - begin < 30  # not a measure: it must only end


def test_colours_follow_the_text_and_survive_marks() -> None:
    old, new = 'def f():\n    return "a"\n', 'def f():\n    return "b"  # why\n'
    diff = one(old, new)
    kinds = {
        s.text: s.kind
        for row in diff.view(0).rows
        if isinstance(row, Line)
        for t in row.stretches
        for s in t.segments
    }
    assert kinds["def"] == kinds["return"] == "k"
    assert kinds["f"] == "fn"
    assert kinds["# why"] == "cm"
    plain = diff.view(0, highlight=False)
    assert all(
        s.kind == "" for row in plain.rows if isinstance(row, Line)
        for t in row.stretches for s in t.segments
    )  # fmt: skip


def test_colours_of_the_whole_file_keep_long_strings_right() -> None:
    head = 'x = """\n' + "".join(f"text {i}\n" for i in range(20))
    old, new = head + "if a\n" + '"""\n', head + "if b\n" + '"""\n'
    change, data = modified("a.py", old, new)
    blobs = {change.old_blob: old.encode(), change.new_blob: new.encode()}

    def kinds(view_blobs: dict[str, bytes]) -> set[str]:
        view = Diff([change], data).view(0, contents=view_blobs)
        return {
            s.kind for row in view.rows if isinstance(row, Line) and row.sign == "+"
            for t in row.stretches for s in t.segments
        }  # fmt: skip

    assert kinds(blobs) == {"st"}
    assert "k" in kinds({})


def test_text_is_given_back_exactly() -> None:
    """Colours, marks and cuts take nothing away: the plain segments are the line."""
    lines = ["def f(x):", "\treturn x  # a", "", "  ", "s = \"é\" + '<b>&amp;'", "x" * 1500]
    diff = one("q\n", "q\n" + "\n".join(lines) + "\n")
    shown = [flat(row, raw=True)[1:] for row in diff.view(0).rows if isinstance(row, Line)
             and row.sign == "+"]  # fmt: skip
    assert shown == lines


def test_masked_values_are_not_shown_in_any_view() -> None:
    old, new = "a = 1\nkeep()\n", "a = 1\ntoken = 'hunter2hunter2'\nkeep()\n"
    change, data = modified("a.py", old, new)
    masks = {change.new_blob: [Mask(2, 9, 23)]}
    diff = Diff([change], data, masks=masks)
    views = [
        diff.view(0).rows,
        diff.view(0, Options(mode="split")).rows,
        diff.view(0, highlight=False).rows,
    ]
    for rows in views:
        assert any("token = '<value not shown, 14 characters>'" in text for text in drawn(rows))
        assert not any("hunter2" in text for text in drawn(rows))
    part = diff.whole_line(0, "new-2")
    assert "hunter2" not in "".join(s.text for s in part.segments)
    assert not any(
        "hunter2" in text
        for text in drawn(
            diff.view(0, Options(whole=True), contents={change.new_blob: new.encode()}).rows
        )
    )


def test_every_path_is_listed_though_it_has_no_lines() -> None:
    def bare(path: bytes, status: Status, **facts: object) -> Change:
        base: dict[str, object] = {
            "path": path, "old_path": None, "status": status, "old_mode": "100644",
            "new_mode": "100644", "old_blob": blob(b"1"), "new_blob": blob(b"1"),
            "similarity": None, "binary": False, "added": 0, "removed": 0, "old_size": 1,
            "new_size": 1,
        }  # fmt: skip
        return Change(**{**base, **facts})  # type: ignore[arg-type]

    changes = [
        bare(b"run.sh", Status.MODIFIED, new_mode="100755"),
        bare(b"new.py", Status.RENAMED, old_path=b"old.py", similarity=100),
        bare(b"x.bin", Status.MODIFIED, binary=True, added=None, removed=None,
             new_blob=blob(b"2"), old_size=1, new_size=2048),
    ]  # fmt: skip
    data = (
        b"diff --git a/run.sh b/run.sh\nold mode 100644\nnew mode 100755\n"
        b"diff --git a/old.py b/new.py\nsimilarity index 100%\n"
        b"rename from old.py\nrename to new.py\n"
        b"diff --git a/x.bin b/x.bin\nindex "
        + f"{blob(b'1')}..{blob(b'2')}".encode()
        + b" 100644\nBinary files a/x.bin and b/x.bin differ\n"
    )
    diff = Diff(changes, data)
    assert [head.words for head in diff.heads()] == [
        ("mode 100644 → 100755, can now be executed",),
        ("renamed, content unchanged",),
        ("binary, 1 → 2,048 bytes",),
    ]
    assert all(head.empty for head in diff.heads())
    assert (diff.totals().files, diff.totals().binary) == (3, 1)


def test_a_patch_that_does_not_match_the_list_is_not_shown() -> None:
    change, data = modified("a.py", "a\n", "b\n")
    other, more = modified("b.py", "a\n", "c\n")
    with pytest.raises(DiffBroken, match="no section"):
        Diff([change, other], data)
    with pytest.raises(DiffBroken, match="no change"):
        Diff([change], data + more)
    with pytest.raises(DiffBroken, match="path differs"):
        Diff([other], data).head(0)
    with pytest.raises(DiffBroken, match="does not begin"):
        Diff([change], b"junk\n" + data)
    wrong = Change.from_data({**change.to_data(), "added": 2})
    with pytest.raises(DiffBroken, match="lines added"):
        Diff([wrong], data).head(0)


def test_words_for_kinds_of_files() -> None:
    def words(status: Status, old: str, new: str) -> tuple[str, ...]:
        return change_words(
            Change(b"x", None, status, old, new, "1" * 40, "2" * 40, None, False, 1, 1, None, None)
        )

    assert words(Status.ADDED, "000000", "120000") == ("new symbolic link",)
    assert words(Status.TYPE_CHANGED, "100644", "120000") == ("was a file, is now a symbolic link",)
    assert "submodule at 111111111111 → 222222222222" in words(
        Status.MODIFIED, "160000", "160000"
    )[0]  # fmt: skip
    assert words(Status.DELETED, "100755", "000000") == ("executable file deleted",)


def test_a_path_shows_all_of_itself() -> None:
    assert path_segments(b"a\nb\xff") == (
        Segment("a"),
        Segment("U+000A", "hid", "U+000A LINE FEED"),
        Segment("b"),
        Segment("\\xFF", "byte", "byte 0xFF, not UTF-8"),
    )


def test_a_mask_of_every_line_shows_none_of_the_file() -> None:
    change, data = modified("a.py", "a = 1\n", "a = 'hunter2hunter2'\n\nb\n")
    diff = Diff([change], data, masks={change.new_blob: [Mask(0, 0, 0)]})
    text = " ".join(drawn(diff.view(0).rows))
    assert "hunter2" not in text
    assert "+b" not in text
    assert "-a = " in text
