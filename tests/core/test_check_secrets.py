"""Secrets are found by kind and place, and their value is nowhere in what the check gives."""

from __future__ import annotations

import base64
import json
import urllib.parse

import pytest

from approvals.checks import secrets, shapes
from approvals.diff import Mask
from tests.core.check_kit import ALNUM, HEX, URLSAFE, candidate, chars, found


def text_of(result: object) -> str:
    return repr(result) + json.dumps(getattr(result, "evidence", {}))


# Kind, and how such a value is written down. Assembled at run time from parts.
SPELLED = {
    "aws": lambda: f"AWS_ACCESS_KEY_ID={'AK' + 'IA'}{chars(16, 'ABCDEFGHJKLMNPQ234567')}",
    "aws temporary": lambda: f"id: {'AS' + 'IA'}{chars(16, 'ABCDEFGHJKLMNPQ234567')}",
    "aws secret": lambda: f"aws_secret_access_key = {chars(40, ALNUM + '+/')}",
    "github": lambda: f"T={'gh' + 'p_'}{chars(36)}",
    "github fine": lambda: f"T={'github' + '_pat_'}{chars(22)}_{chars(59)}",
    "gitlab": lambda: f"T={'gl' + 'pat-'}{chars(20, URLSAFE)}",
    "slack": lambda: f"T={'xo' + 'xb-'}{chars(12, '12345')}-{chars(12, '12345')}-{chars(24)}",
    "stripe": lambda: f"T={'sk_' + 'live_'}{chars(24)}",
    "stripe test": lambda: f"T={'sk_' + 'test_'}{chars(24)}",
    "google": lambda: f"T={'AI' + 'za'}{chars(35, URLSAFE)}",
    "google secret": lambda: f"T={'GO' + 'CSPX-'}{chars(28, URLSAFE)}",
    "telegram": lambda: f"T={chars(10, '123456789')}:AA{chars(33, URLSAFE)}",
    "sendgrid": lambda: f"T={'S' + 'G.'}{chars(22, URLSAFE)}.{chars(43, URLSAFE)}",
    "npm": lambda: f"//registry.example.invalid/:_authToken={'np' + 'm_'}{chars(36)}",
    "jwt": lambda: "T=" + ".".join(
        ["ey" + "JhbGciOiJIUzI1NiJ9", "ey" + "JzdWIiOiJ0ZXN0ZXIifQ", chars(43, URLSAFE)]
    ),
    "database": lambda: f"DATABASE_URL=postgres://app:{chars(20)}@db.example.invalid:5432/app",
    "jdbc": lambda: f"url=jdbc:postgresql://db/x?user=app&password={chars(16)}9",
    "connection": lambda: f"x = 'Server=db;User Id=sa;Password={chars(14)}7!;'",
    "password": lambda: f"password = '{chars(14)}7!'",
    "django": lambda: f"SECRET_KEY = \"{chars(48, ALNUM + '!@#%^&*(-_=+)')}7a\"",
    "json": lambda: json.dumps({"api_key": chars(30) + "7"}),
    "header": lambda: f"curl -H 'Authorization: Bearer {chars(39)}7' https://x.example.invalid",
    "azure storage": lambda: "C=DefaultEndpointsProtocol=https;AccountName=x;Account" + "Key="
    + base64.b64encode(bytes(range(64))).decode() + ";EndpointSuffix=core.example.invalid",
    "mailgun": lambda: f"T={'key' + '-'}{chars(32, HEX)}",
    "netrc": lambda: f"machine api.example.invalid login bot password {chars(20)}",
    "otp": lambda: f"otpauth://totp/x?secret={chars(32, 'ABCDEFGHIJKLMNOPQRSTUVWXYZ234567')}",
    "docker": lambda: json.dumps(
        {"auths": {"r": {"auth": base64.b64encode(f"user:{chars(20)}".encode()).decode()}}}
    ),
    "wrapped": lambda: "data: " + base64.b64encode(f"{'gh' + 'p_'}{chars(36)}".encode()).decode(),
}  # fmt: skip


@pytest.mark.parametrize("kind", SPELLED)
def test_a_new_secret_blocks_and_is_told_by_place_only(kind: str) -> None:
    line = SPELLED[kind]()
    result = secrets.check(candidate({"config.env": (b"# a\n", f"# a\n{line}\n# b\n".encode())}))
    assert result.outcome == "failed"
    assert {(severity, path, at) for severity, _, path, at in found(result)} == {
        ("blocking", "config.env", 2)
    }
    value = line.replace('"', " ").replace("'", " ").replace("=", " ").replace(":", " ").split()
    longest = max(value, key=len)
    assert longest not in text_of(result)
    (places,) = result.evidence["masks"].values()
    assert all(place[0] == 2 and place[1] < place[2] for place in places)


def test_a_private_key_is_masked_over_all_its_lines() -> None:
    body = "\n".join(chars(64, ALNUM + "+/") for _ in range(6))
    label = "RSA PRIVATE" + " KEY"
    key = f"-----BEGIN {label}-----\n{body}\n-----END {label}-----\n"
    result = secrets.check(candidate({"id_rsa": (None, b"# x\n" + key.encode())}))
    assert result.outcome == "failed"
    (places,) = result.evidence["masks"].values()
    assert [place[0] for place in places] == list(range(2, 10))
    assert body[:40] not in text_of(result)
    blob = next(iter(result.evidence["masks"]))
    assert secrets.masks_from(result.evidence)[blob][0] == Mask(*places[0])


@pytest.mark.parametrize(
    "line",
    [
        "password = 'changeme'",
        "password = os.environ['DB_PASSWORD']",
        "password: ${DB_PASSWORD}",
        "token = get_token(request)",
        "secret_name = 'projects/app/secrets/db-2'",
        "DATABASE_URL=postgres://user:password@localhost/app",
        "redis://[[username]:[password]]@localhost:6379/0",
        "commit 2fd4e1c67a2d28fced849ee1bb76e7391b93eb12",
        "id = '550e8400-e29b-41d4-a716-446655440000'",
        "tokenizer = 'bert-base-uncased-v2'",
        "max_tokens: 128000000",
        "integrity sha512-" + "A" * 60,
        "Authorization: Bearer <your-token-here>",
        "PASSWORD_HASHERS = ['django.contrib.auth.hashers.MD5PasswordHasher']",
        "# set the API_KEY=xxxxxxxxxxxxxxxxxxxx in your shell",
        "next_token = parser.next_token2()",
    ],
)
def test_what_only_looks_like_a_secret_does_not_block(line: str) -> None:
    result = secrets.check(candidate({"app.py": (b"", line.encode() + b"\n")}))
    assert result.outcome == "passed", found(result)


def test_what_was_there_before_is_a_note_and_is_still_masked() -> None:
    line = f"T={'gh' + 'p_'}{chars(36)}\n".encode()
    result = secrets.check(candidate({"a.env": (line, line + b"# more\n")}))
    assert [severity for severity, *_ in found(result)] == ["note"]
    assert len(result.evidence["masks"]) == 2


def test_a_removed_secret_is_masked_on_the_old_side() -> None:
    line = f"T={'gh' + 'p_'}{chars(36)}\n".encode()
    gone = candidate({"a.env": (line, None), "b.env": (line + b"#\n", b"# safe\n")})
    result = secrets.check(gone)
    assert result.outcome == "passed"
    assert set(result.evidence["masks"]) == {change.old_blob for change in gone.changes}


def test_values_that_are_known_are_found_in_every_spelling() -> None:
    value = f"k3y/{chars(18)}+="
    wrapped = base64.b64encode(b"prefix " + value.encode() + b" and more").decode()
    for text in (
        value,
        urllib.parse.quote(value, safe=""),
        base64.b64encode(value.encode()).decode(),
        value.encode().hex(),
        wrapped,
        value[::-1],
    ):
        result = secrets.check(
            candidate(tray={"report.md": f"see {text} here\n".encode()}, known={"forge": value})
        )
        assert ("blocking", "known value", "output/report.md", 1) in found(result), text
        assert value not in text_of(result)


def test_a_secret_in_a_file_name_is_not_told_by_its_path() -> None:
    token = f"{'gh' + 'p_'}{chars(36)}"
    result = secrets.check(candidate({f"docs/{token}.txt": (None, b"x\n")}))
    assert result.outcome == "failed"
    assert token not in text_of(result.findings[0])


def test_comments_for_scanners_are_not_obeyed() -> None:
    line = (
        f"T={'gh' + 'p_'}{chars(36)}  # kingfisher:ignore gitleaks:allow nosec pragma: allowlist\n"
    )
    assert secrets.check(candidate({"a.env": (b"", line.encode())})).outcome == "failed"


def test_text_in_other_encodings_is_scanned() -> None:
    line = f"T={'gh' + 'p_'}{chars(36)}\r\n"
    assert secrets.check(candidate({"w.ps1": (None, line.encode("utf-16"))})).outcome == "failed"
    assert secrets.check(candidate({"b": (None, b"\0\1" + line.encode())})).outcome == "failed"


def test_a_scanner_that_gives_up_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    class Tired:
        def scan(self, *_: object, **__: object) -> list[object]:
            raise TimeoutError("too long: hunter2")

    monkeypatch.setattr(secrets, "_scanner", lambda *_: Tired())
    result = secrets.check(candidate({"a": (None, b"x\n")}))
    assert ("blocking", "not scanned", "a", None) in found(result)
    assert "hunter2" not in text_of(result)


def test_placeholders_and_words_are_told_from_values() -> None:
    assert shapes.is_placeholder(b"your-api-key")
    assert shapes.is_placeholder(b"[password]")
    assert not shapes.looks_secret(b"bert-base-uncased-v2")
    assert not shapes.looks_secret(b"MY_OTHER_NAME_2")
    assert shapes.looks_secret(chars(12).encode() + b"7!a")


def test_a_flood_of_secrets_hides_the_whole_file_from_the_page() -> None:
    lines = b"".join(f"password = '{chars(12)}7!'\n".encode() for _ in range(2_100))
    flood = candidate({"a.py": (None, lines)})
    result = secrets.check(flood)
    assert result.outcome == "failed"
    assert result.evidence["masks"] == {flood.changes[0].new_blob: [[0, 0, 0]]}
    assert result.evidence["counts"]["blocking"] > 2_000
    assert len(result.findings) <= 200
