"""The key file: made once, private, and refused when it cannot be right."""

from __future__ import annotations

import base64
import secrets
import stat
from pathlib import Path

import pytest
from cryptography.fernet import Fernet, InvalidToken, MultiFernet

from portal.env import WrongValue
from portal.keys import load_keys, make_keys, readable_by_others


@pytest.fixture(autouse=True)
def _no_keys_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SECRET_KEY", raising=False)
    monkeypatch.delenv("FIELD_KEYS", raising=False)


def field_key() -> str:
    return base64.urlsafe_b64encode(secrets.token_bytes(32)).decode()


def test_made_keys_are_private_and_usable(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    assert load_keys(path).secret_key == ""  # nobody made them yet

    make_keys(path)

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not readable_by_others(path)
    keys = load_keys(path)
    assert len(keys.secret_key) >= 50
    assert Fernet(keys.field_keys[0]).decrypt(Fernet(keys.field_keys[0]).encrypt(b"it")) == b"it"
    assert keys.secret_key not in repr(keys)
    assert [each.name for each in tmp_path.iterdir()] == ["keys"]


def test_keys_are_never_replaced(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    make_keys(path)
    before = path.read_bytes()
    with pytest.raises(FileExistsError):
        make_keys(path)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["keys"]


def test_a_new_first_line_rotates_the_field_key(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    make_keys(path)
    old = load_keys(path).field_keys[0]
    token = Fernet(old).encrypt(b"it")

    path.write_text(f"field_key = {field_key()}\n" + path.read_text())

    box = MultiFernet([Fernet(key) for key in load_keys(path).field_keys])
    assert box.decrypt(token) == b"it"
    with pytest.raises(InvalidToken):
        Fernet(old).decrypt(box.encrypt(b"it"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("secret_key = short\n", "50 characters or more"),
        ("secret_key = " + "x" * 60 + "\n", "needs at least one"),
        ("secret_key = " + "x" * 60 + "\nfield_key = dG9vIHNob3J0\n", "32 random bytes"),
        ("secret_key = " + "x" * 60 + "\nfield_key = not base64!\n", "32 random bytes"),
        ("password = it\n", "Each line must be"),
        ("secret_key\n", "Each line must be"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "keys"
    path.write_text(text)
    with pytest.raises(WrongValue, match=words):
        load_keys(path)


def test_half_of_the_keys_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SECRET_KEY", "x" * 60)
    with pytest.raises(WrongValue, match="FIELD_KEYS is not set"):
        load_keys(tmp_path / "keys")
    monkeypatch.setenv("FIELD_KEYS", f"{field_key()}, {field_key()}")
    assert len(load_keys(tmp_path / "keys").field_keys) == 2
