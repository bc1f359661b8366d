"""Hidden characters: alarms where something hides, none on honest text."""

from __future__ import annotations

import pytest

from approvals.checks import CheckResult, hidden_characters
from tests.core.check_kit import candidate, found, rules


def check(old: str, new: str, path: str = "a.py") -> CheckResult:
    data = new.encode("utf-8", "surrogateescape")
    return hidden_characters.check(candidate({path: (old.encode(), data)}))


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ("bidi", "/* \u202e } \u2066 if (is_admin) \u2069 */"),
        ("bidi", "x\u200f = 1"),
        ("zero width", "if role == 'review\u200ber':"),
        ("zero width", "api.exam\u00adple.invalid"),
        ("zero width", "mid\ufefffile"),
        ("zero width", "a\u200db"),
        ("tag", "hello\U000e0069\U000e0067\U000e006e"),
        ("variation", "x\ufe00\ufe01\ufe02"),
        ("control", "\x1b[2J\x1b[H passed"),
        ("control", "rm -rf /\b\b\bls"),
        ("control", "lone\rreturn"),
        ("blank", "const \u3164 = 1"),
        ("combining", "z" + "\u0321" * 9),
        ("look-alike", "def is_\u0430llowed():"),
        ("look-alike", "\U0001d41e\U0001d42f\U0001d41a\U0001d425(x)"),
        ("out of sight", "import sys" + " " * 300 + "; run()"),
    ],
)
def test_what_hides_in_a_new_line_is_a_warning_to_acknowledge(rule: str, text: str) -> None:
    result = check("x = 1\n", f"x = 1\n{text}\n")
    assert result.outcome == "warned"
    assert ("warning", rule, "a.py", 2) in found(result)
    assert all(each.acknowledge for each in result.findings if each.severity == "warning")


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("po/he.po", 'msgid "Approve"\nmsgstr "\u05d0\u05d9\u05e9\u05d5\u05e8"\n'),
        ("docs/a.md", "# \U0001f468\u200d\U0001f469 \U0001f44d\U0001f3fd 1\ufe0f\u20e3\n"),
        ("docs/fa.md", "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645\n"),
        ("docs/hi.md", "\u0915\u094d\u200d\u0937\n"),
        ("a.py", "# \u041f\u0440\u0438\u0432\u0435\u0442, \u0432\u0441\u0435\u043c\n"),
        ("sci.py", "\u0394t = \u03c1_max * \u03b1  # m\u00b2\n"),
        ("a.c", "int a;\n\f\nint b;\n"),
        ("crlf.txt", "one\r\ntwo\r\n"),
        ("bom.cs", "\ufeffusing System;\n"),
        ("fr.po", "Bonjour\u00a0!\n"),
        ("de.md", "\u201eStra\u00dfe\u201c \u2014 na\u00efve caf\u00e9 \u6392\u67e5\n"),
        ("flag.md", "\U0001f3f4\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f\n"),
        ("ja.md", "\u4f55\U000e0100 \uff21\uff22\uff23\n"),
    ],
)  # fmt: skip
def test_honest_text_gives_no_warning(path: str, text: str) -> None:
    result = check("", text, path)
    assert result.outcome == "passed", found(result)


def test_only_new_lines_are_judged() -> None:
    old = "x = '\u200b'\n"
    assert check(old, f"# head\n{old}# tail\n").outcome == "passed"
    assert check(old, "x = '\u200b' \n").outcome == "warned"


def test_a_word_of_another_script_that_shadows_a_name_of_the_file() -> None:
    text = "scope = 1\n\u0455\u0441\u043e\u0440\u0435 = 2\n"
    assert ("warning", "look-alike", "a.py", 2) in found(check("", text))
    assert check("", "\u0455\u0441\u043e\u0440\u0435 = 2\n").outcome == "passed"
    assert check("", text, "a.md").outcome == "passed"


def test_names_are_judged_too() -> None:
    result = hidden_characters.check(
        candidate(
            {
                "invoice_\u202egpj.exe": (None, b"x"),
                "\u0455rc/app.py": (None, b"x"),
                "docs/\U0001f468\u200d\U0001f469.md": (None, b"x"),
            },
            tray={"re\\u{200b}port.md": b"x"},
            paths=(b"src/app.py", "\u0455rc/app.py".encode()),
        )
    )
    assert rules(result) == {"bidi", "look-alike", "zero width"}
    texts = [each.text for each in result.findings]
    assert any("looks like the other name “src”" in text for text in texts)
    assert not any("1f468" in each.path for each in result.findings)


def test_bytes_that_are_not_utf8_are_noted_and_binary_is_left_to_others() -> None:
    assert found(check("", "caf\udce9\n", "l.txt")) == [("note", "not UTF-8", "l.txt", None)]
    binary = hidden_characters.check(candidate({"a.bin": (None, b"\0\xe2\x80\x8b")}))
    assert binary.findings == ()


def test_a_flood_of_characters_is_bounded() -> None:
    result = check("", "\n".join("\u200b" * 50 for _ in range(5000)) + "\n" + "\u202e" * 200_000)
    assert result.outcome == "warned"
    assert len(result.findings) <= 600
    assert result.evidence["not_listed"] > 0
