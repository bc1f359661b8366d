"""One byte string for one value: RFC 8785 JSON and its SHA-256, written and read."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

import rfc8785

# Among the integers beyond this, many have no double of their own.
_EXACT = 2**53 - 1
_encode = json.JSONEncoder(
    ensure_ascii=False, check_circular=False, sort_keys=True, separators=(",", ":")
).encode


def canonical(value: Any) -> bytes:
    """`value` as RFC 8785 JSON. Raises `ValueError` for what JSON cannot say exactly."""
    if _plain(value):
        return _encode(value).encode()
    try:
        return rfc8785.dumps(_with_doubles(value))
    except (rfc8785.CanonicalizationError, OverflowError) as error:
        raise ValueError(str(error)) from error


def digest(value: Any) -> str:
    """SHA-256 of the canonical form, 64 hexadecimal characters."""
    return hashlib.sha256(canonical(value)).hexdigest()


def parsed(data: bytes) -> Any:
    """The value of bytes that are RFC 8785 JSON to the letter. Raises `ValueError` for any others.

    Whoever reads such bytes reads the same: no name stands twice, no number is rounded, and no
    other bytes say the same. So what was hashed is what is read.
    """
    try:
        return _parsed(data)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _parsed(data: bytes) -> Any:
    text = data.decode()
    # What stands behind the value is none of it, so the comparison misses it.
    value, _ = _decode(text)
    if (text.isascii() or not _SORTED_OTHERWISE.search(text)) and _encode(value) == text:
        return value
    value = json.loads(text)
    if canonical(value) != data:
        raise ValueError("it is not written as RFC 8785 says")
    return value


def _number(text: str) -> int | None:
    # Fifteen digits always have an exact double.
    return int(text) if len(text) <= 15 else None


def _unread(_: str) -> None:
    """For a number that the standard encoder may not spell as RFC 8785 does.

    None is written otherwise than any number, so the quick way ends at the comparison.
    """


_decode = json.JSONDecoder(
    parse_int=_number, parse_float=_unread, parse_constant=_unread
).raw_decode
# Up to these characters the order of code points is that of UTF-16 units, too.
_SORTED_OTHERWISE = re.compile("[\ue000-\U0010ffff]")


def _with_doubles(value: Any) -> Any:
    """The same value, its large integers as the doubles that RFC 8785 takes numbers for.

    Raises `ValueError` for one that would be written with other digits: it was rounded.
    """
    if isinstance(value, dict):
        return {name: _with_doubles(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_with_doubles(each) for each in value]
    if isinstance(value, int) and not -_EXACT <= value <= _EXACT:
        double = float(value)
        if rfc8785.dumps(double) != str(value).encode():
            raise ValueError("an integer has no double with the same digits")
        return double
    return value


def _plain(value: Any) -> bool:
    """Whether the standard encoder, ten times as fast, writes the same bytes.

    It escapes strings as RFC 8785 does. It spells floats in its own way, sorts names by code
    points and not by UTF-16 units, and takes names that are no strings: those are left to rfc8785.
    """
    kind = type(value)
    if kind is str or kind is bool or value is None:
        return True
    if kind is int:
        return bool(-_EXACT <= value <= _EXACT)
    if kind is dict:
        for name, each in value.items():
            if type(name) is not str or not name.isascii() or not _plain(each):
                return False
        return True
    if kind is list or kind is tuple:
        return all(map(_plain, value))
    return False
