"""The portal's own keys: one file that only its owner may read.

The file has one `name = value` per line. `secret_key` signs sessions and links.
`field_key` encrypts secrets in the database and may stand several times: the
first one encrypts, all of them decrypt, so a key is replaced by putting a new
line above the old one. `signing_key` signs evidence and is replaced in the same
way; while both stand there, checkpoints are signed with both, so that whoever
trusts the old key learns the new one. Without any, and where a line says
`secret_key` in the place of a key, evidence is signed with one derived from that.
"""

from __future__ import annotations

import base64
import os
import secrets
import stat
from dataclasses import dataclass, field
from pathlib import Path

from portal.env import WrongValue, env_secret

# Stands for the signing key that is derived from the secret key.
DERIVED = "secret_key"


@dataclass(frozen=True)
class Keys:
    """Every kind of key; empty where nobody has made them yet."""

    secret_key: str = field(default="", repr=False)
    field_keys: tuple[str, ...] = field(default=(), repr=False)
    signing_keys: tuple[str, ...] = field(default=(), repr=False)


def load_keys(path: Path) -> Keys:
    """Keys from the environment (SECRET_KEY, FIELD_KEYS, SIGNING_KEYS) or else from the file.

    A missing file gives empty keys: tools that need none (migrations, type
    checking) then still start, and Django refuses the first use of an empty one.
    """
    secret_key, field_keys = env_secret("SECRET_KEY"), env_secret("FIELD_KEYS")
    if secret_key or field_keys:
        if not (secret_key and field_keys):
            missing = "FIELD_KEYS" if secret_key else "SECRET_KEY"
            raise WrongValue(missing, None, "Set SECRET_KEY and FIELD_KEYS together, or neither.")
        signing_keys = env_secret("SIGNING_KEYS")
        keys = Keys(secret_key, _several(field_keys), _several(signing_keys))
        return _checked(keys, "FIELD_KEYS", "SIGNING_KEYS")
    if env_secret("SIGNING_KEYS"):
        raise WrongValue("SECRET_KEY", None, "Set it, FIELD_KEYS and SIGNING_KEYS together.")
    try:
        text = path.read_text(encoding="ascii")
    except FileNotFoundError:
        return Keys()
    except (OSError, UnicodeDecodeError) as error:
        raise WrongValue("The key file", str(path), f"It cannot be read ({error}).") from error
    return _checked(_parse(text, path), str(path), str(path))


def make_keys(path: Path) -> None:
    """Write fresh keys to `path`, readable by its owner alone. Never replaces a file."""
    text = (
        "# Keys of this installation. Keep a copy: without them stored secrets are lost.\n"
        f"secret_key = {secrets.token_urlsafe(64)}\n"
        f"field_key = {_fresh_key()}\n"
        f"signing_key = {_fresh_key()}\n"
    )
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        # A link fails where the name exists, so two starts at once end with one key file.
        os.link(partial, path)
    finally:
        partial.unlink()


def readable_by_others(path: Path) -> bool:
    """Whether group or world may do anything with the file."""
    return bool(stat.S_IMODE(path.stat().st_mode) & 0o077)


def _fresh_key() -> str:
    return base64.urlsafe_b64encode(secrets.token_bytes(32)).decode("ascii")


def _several(value: str) -> tuple[str, ...]:
    return tuple(value.replace(",", " ").split())


def _parse(text: str, path: Path) -> Keys:
    secret_key, field_keys, signing_keys = "", [], []
    for number, line in enumerate(text.splitlines(), start=1):
        name, equals, value = (part.strip() for part in line.partition("="))
        if line.lstrip().startswith("#") or not line.strip():
            continue
        # A Fernet key ends in "=", which `partition` leaves in the value.
        if name == "secret_key" and equals:
            secret_key = value
        elif name == "field_key" and equals:
            field_keys.append(value)
        elif name == "signing_key" and equals:
            signing_keys.append(value)
        else:
            raise WrongValue(
                f"Line {number} of the key file",
                str(path),
                "Each line must be 'secret_key = …', 'field_key = …' or 'signing_key = …'.",
            )
    return Keys(secret_key, tuple(field_keys), tuple(signing_keys))


def _checked(keys: Keys, where: str, where_signing: str) -> Keys:
    if len(keys.secret_key) < 50:
        raise WrongValue("The secret key", None, f"{where} needs one of 50 characters or more.")
    remedy = "needs 32 random bytes in URL-safe base64 for each."
    if not all(map(_right_size, keys.field_keys)):
        raise WrongValue("A field key", None, f"{where} {remedy}")
    if not all(each == DERIVED or _right_size(each) for each in keys.signing_keys):
        raise WrongValue("A signing key", None, f"{where_signing} {remedy}")
    if not keys.field_keys:
        raise WrongValue("The field key", None, f"{where} needs at least one.")
    return keys


def _right_size(key: str) -> bool:
    try:
        return len(base64.urlsafe_b64decode(key)) == 32
    except ValueError:
        return False
