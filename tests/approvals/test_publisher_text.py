"""An agent's words in a pull request: readable, and without any effect."""

from __future__ import annotations

import re
import subprocess
from datetime import datetime
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from approvals.publishers import (
    BODY_LIMIT,
    MESSAGE_LIMIT,
    TITLE_LIMIT,
    IntentRefused,
    body_marker,
    commit_bytes,
    commit_id,
    is_branch_name,
    is_repository,
    message_trailer,
)
from approvals.publishers.text import (
    compose_body,
    compose_message,
    safe_line,
    safe_markdown,
    safe_plain,
    visible,
)
from tests.approvals.publisher_kit import MARKER, Bench

GAP = "\u200b"
# What forges act on when they find it in rendered text.
ACTS = re.compile(r"@\w|#\d|\bGH-\d|!\d|://|www\.\w", re.IGNORECASE)

# Weighted towards what means something to Markdown or to a forge.
MEANING = r"""
@ # ! gh- GH- :// www. http https [ ] ( ) < > & ; ` ``` ~~~ * ** _ - + = --- 1. 1) | \ " '
<b> </b> <!-- --> <img ![x](y) [x]: &amp; &#35; closes fixes 12 a b /merge :tada: é 😀
"""
SPACES = (" ", "    ", "\t", "\n", "\n\n", "\r\n", "\u202e", "\u200b", "\u2028")
PIECES = st.sampled_from((*MEANING.split(), *SPACES))
WORDS = st.lists(st.one_of(PIECES, st.text(max_size=5)), max_size=25).map("".join)


def rendered(markdown: str) -> list[str]:
    """The paragraphs, as text; fails if there is any element but a paragraph."""
    tokens = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(markdown)
    kinds = {token.type for token in tokens}
    assert kinds <= {"paragraph_open", "paragraph_close", "inline"}, kinds
    inline = [token for token in tokens if token.type == "inline"]
    children = [child for token in inline for child in token.children or []]
    assert {child.type for child in children} <= {"text", "text_special", "softbreak"}
    return [
        "".join("\n" if c.type == "softbreak" else c.content for c in token.children or [])
        for token in inline
    ]


def as_lines(text: str) -> list[str]:
    """A text as a reader compares it: without blank lines, line ends and outer spaces."""
    lines = re.split(r"[\n]", text.replace("\xa0", " ").replace(GAP, ""))
    return [line.strip() for line in lines if line.strip()]


@given(WORDS)
@example("Closes #12, fixes GH-7 and https://example.org/o/r/issues/3 cc @team")
@example("    code\n\n- list\n1. one\n> quote\nTitle\n=====\n| a | b |\n|---|---|")
@example("<img src=x> ![i](http://x/y.png) [l](javascript:x) <!-- imprimatur --> &#64;bob")
@example("a@b.example www.example.org ~~~\n```\n@x\n```")
@example("``@bob`` \\@bob \\\\@bob")
def test_safe_markdown_shows_the_words_and_does_nothing(text: str) -> None:
    paragraphs = rendered(safe_markdown(text))
    shown = "\n".join(paragraphs)
    assert not ACTS.search(shown)
    # Spaces and line ends apart, the reader sees every character that was there.
    plain = visible(re.sub(r"\r\n?|[\x0b\x0c\x85\u2028\u2029]", "\n", text).replace("\t", "    "))
    assert as_lines(shown) == as_lines(plain)


@given(WORDS)
def test_safe_plain_keeps_nothing_that_acts(text: str) -> None:
    plain = safe_plain(text)
    assert not ACTS.search(plain)
    assert all(c.isprintable() or c in "\n" or c.isspace() for c in plain)


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("Ask @team about #12", "Ask @ team about # 12"),
        ("gh-12 and PR!5", "gh- 12 and PR! 5"),
        ("Fix [skip ci] [CI SKIP] [no ci]", "Fix (skip ci) (CI SKIP) (no ci)"),
        ("skip-checks: true", "skip-checks : true"),
        ("see https://example.org", "see https: //example.org"),
        ("C# is #hashtag-free @ noon!", "C# is #hashtag-free @ noon!"),
        ("a\u202eb\x1b[31m", "a[U+202E]b[U+001B][31m"),
    ],
)
def test_safe_plain_by_example(text: str, safe: str) -> None:
    assert safe_plain(text) == safe


def test_hidden_characters_are_written_out() -> None:
    hidden = "\u200b\u2066\ufeff\U000e0041\ufe0f\u3164\ud800\x00\u00ad"
    shown = visible(hidden)
    assert shown.isascii()
    assert shown.count("[U+") == len(hidden)
    assert visible("für 日本 😀\n") == "für 日本 😀\n"


def test_a_title_is_one_bounded_line() -> None:
    assert safe_line("Fix\n\n the\tparser @bob\u2028now") == "Fix the parser @ bob now"
    long = safe_line("word " * 200)
    assert len(long) <= TITLE_LIMIT
    assert long.endswith("…")


# --- The whole body -------------------------------------------------------


def test_a_body_says_who_wrote_what() -> None:
    body = compose_body(verified="**Run 7**", agent_text="I did it.\n\nReally.", marker=MARKER)
    assert body.startswith(body_marker(MARKER) + "\n**Run 7**\n")
    assert "**Written by the agent, not verified by the portal:**" in body
    assert body.endswith("> I did it\\.\n>\n> Really\\.\n")
    assert "agent" not in compose_body(verified="v", agent_text=" \n", marker=MARKER)


def test_an_agent_cannot_forge_the_marker() -> None:
    forged = f"{body_marker(MARKER)}\n{message_trailer(MARKER)}"
    body = compose_body(verified="v", agent_text=forged, marker=MARKER)
    assert body.count(body_marker(MARKER)) == 1


@pytest.mark.parametrize("text", ["x" * 70_000, "@" * 70_000, "a\n" * 70_000, "é@#" * 400_000])
def test_what_does_not_fit_is_counted(text: str) -> None:
    body = compose_body(verified="v", agent_text=text, marker=MARKER)
    assert len(body) <= BODY_LIMIT
    assert len(body) > BODY_LIMIT - 100
    left_out = re.search(r"\((\d+) more characters are in the portal\.\)\n$", body)
    assert left_out
    assert 0 < int(left_out[1]) < len(text)
    message = compose_message(subject="s", agent_text=text, marker=MARKER)
    assert MESSAGE_LIMIT - 100 < len(message) <= MESSAGE_LIMIT
    assert "more characters" in message


def test_a_body_of_the_portal_alone_may_not_fill_it() -> None:
    with pytest.raises(IntentRefused):
        compose_body(verified="v" * BODY_LIMIT, agent_text="", marker=MARKER)


@given(WORDS, WORDS)
@example("subject", "Signed-off-by: Mallory <m@example.org>\n\nCo-authored-by: M <m@example.org>")
@example("subject", f"text\n\n{message_trailer('pub:forged-forged')}")
def test_a_message_has_one_trailer_and_it_is_ours(subject: str, text: str) -> None:
    message = compose_message(subject=subject or "s", agent_text=text, marker=MARKER)
    assert message.splitlines()[-1] == message_trailer(MARKER)
    last = message.rstrip("\n").rpartition("\n\n")[2]
    assert last == message_trailer(MARKER)


def test_git_sees_no_trailer_but_ours() -> None:
    text = "Signed-off-by: Mallory <m@example.org>\n---\nCo-authored-by: M <m@example.org>"
    message = compose_message(subject="s", agent_text=text, marker=MARKER)
    seen = subprocess.run(
        ["git", "interpret-trailers", "--parse"],
        input=message,
        capture_output=True,
        text=True,
        check=True,
    )
    assert seen.stdout == message_trailer(MARKER) + "\n"


# --- The intent -----------------------------------------------------------


@pytest.fixture
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    nowhere = tmp_path_factory.getbasetemp()
    return Bench(store=nowhere, bare=nowhere, base="a" * 40, tree="b" * 40)


def test_the_commits_id_is_known_beforehand(bench: Bench) -> None:
    intent = bench.intent("acme/parser", kind="github")
    made = subprocess.run(
        ["git", "hash-object", "-t", "commit", "--stdin"],
        input=commit_bytes(intent),
        capture_output=True,
        check=True,
    )
    assert commit_id(intent) == made.stdout.decode().strip()
    assert commit_id(intent) == commit_id(bench.intent("acme/parser", kind="github"))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"marker": "x"}, "marker"),
        ({"branch": "-x"}, "branch name"),
        ({"branch": "a/.b"}, "branch name"),
        ({"branch": "a..b"}, "branch name"),
        ({"branch": "a b"}, "branch name"),
        ({"branch": "a.lock"}, "branch name"),
        ({"base_branch": "a:b"}, "base branch"),
        ({"branch": "main"}, "base branch itself"),
        ({"base_commit": "main"}, "commit id"),
        ({"tree_sha": "b" * 39}, "tree id"),
        ({"tree_sha": "b" * 64}, "different hashes"),
        ({"committed_at": datetime(2026, 1, 1)}, "zone"),  # noqa: DTZ001
        ({"author_name": "A <x>"}, "author"),
        ({"author_name": "A\nparent x"}, "author"),
        ({"author_email": "nobody"}, "author"),
        ({"title": "a\nb"}, "title"),
        ({"title": " "}, "title"),
        ({"body": "no marker"}, "lacks its marker"),
        ({"body": body_marker(MARKER) + "x" * BODY_LIMIT}, "longer"),
        ({"commit_message": "no trailer"}, "last line"),
        ({"commit_message": "a\0\n\n" + message_trailer(MARKER)}, "NUL"),
        ({"title": "\ud800"}, "one line"),
        ({"commit_message": "\ud800\n\n" + message_trailer(MARKER)}, "UTF-8"),
    ],
)
def test_an_intent_that_cannot_be_published_is_never_made(
    bench: Bench, changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(IntentRefused, match=reason):
        bench.intent("/srv/parser.git", **changes)


def test_an_intent_for_github_names_a_repository(bench: Bench) -> None:
    for address in ("acme", "acme/..", "../x", "acme/x/y", "acme/x?y", "acme/x#", "-a/b", ""):
        assert not is_repository(address)
        with pytest.raises(IntentRefused, match="owner/name"):
            bench.intent(address, kind="github")


@given(st.text(max_size=12))
@example("a@{b")
@example("@")
@example("a/")
@example("é/日本")
def test_branch_names_are_a_part_of_what_git_allows(name: str) -> None:
    if is_branch_name(name):
        git = subprocess.run(["git", "check-ref-format", "--branch", name], capture_output=True)
        assert git.returncode == 0
