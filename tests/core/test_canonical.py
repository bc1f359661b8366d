"""One value has one canonical form, whichever of the two encoders writes it."""

from __future__ import annotations

import hashlib
import json
from typing import Any, NoReturn

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from portal.canonical import canonical, digest, parsed

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


@given(JSON)
def test_the_fast_way_writes_what_the_standard_wants(value: Any) -> None:
    written = canonical(value)
    assert written == rfc8785.dumps(value)
    assert canonical(parsed(written)) == written


@pytest.mark.parametrize(
    "value",
    [
        {"\U0001f600": 1, "\uffff": 2},  # UTF-16 sorts the other way round than code points
        [1e21, 1e-7, 1.0, -0.0, 10.0**16],
        {"a": 1.0},
        {"a": {"b": [1.0]}},
        '\b\t\n\f\r\x00\x1f\x7f\u2028"\\/',
        {"b": (1, [True, None]), "a": {}},
    ],
)
def test_where_encoders_differ(value: Any) -> None:
    assert canonical(value) == rfc8785.dumps(value)


@pytest.mark.parametrize(
    "value",
    [
        *(2**53 + 1, -(2**53) - 1, 2**60, 10**400),
        *(float("nan"), float("inf"), {1: 2}, "\ud800", {"\ud800": 1}, {1, 2}),
    ],
)
def test_what_json_cannot_say_exactly_is_refused(value: Any) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the message is the encoder's
        canonical(value)


def test_a_large_integer_is_written_where_its_double_has_the_same_digits() -> None:
    assert canonical([2**53, {"n": -(10**16)}]) == b'[9007199254740992,{"n":-10000000000000000}]'
    assert parsed(b"[9007199254740992]") == [2**53]


@pytest.mark.parametrize(
    "data",
    [
        *(b'{"a":1,"a":2}', b'{"a":2,"a":2}', b'{"b":1,"a":2}', b"[ 1]", b"[1]\n", b"[1][2]", b""),
        *(b"[1.0]", b"[1E2]", b"[-0]", b"[1e400]", b"[NaN]", b"[Infinity]", b"[9007199254740993]"),
        *(b'["\\ud800"]', b'["\\u0041"]', b'["\\/"]', b'["\\u001F"]', b"\xff", b"\xef\xbb\xbf[]"),
        # UTF-16 sorts these two the other way round.
        b'{"\xee\x80\x80":2,"\xf0\x9f\x98\x80":1}',
    ],
)
def test_what_is_not_written_as_the_standard_says_is_not_read(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the message is the decoder's
        parsed(data)


@pytest.mark.parametrize(
    "value",
    [
        *("a", True, False, None, 0, 2**53 - 1, -(2**53) + 1),
        *(["a", 1, [None]], ("a", (True,)), {}, {"a": "ü", "b": {"c": [False, 3]}}),
    ],
)
def test_what_pages_and_logs_hold_is_written_the_quick_way(
    value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = rfc8785.dumps(value)
    monkeypatch.setattr(rfc8785, "dumps", unneeded)

    assert canonical(value) == expected


@pytest.mark.parametrize(
    "data",
    [
        *(b"null", b'["a",true,0]', b"[999999999999999,-99999999999999]"),
        *('{"ä":"\u2028\ud7ff"}'.encode(), b'{"a":{"b":[]},"c":""}'),
    ],
)
def test_what_pages_and_logs_hold_is_read_the_quick_way(
    data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = json.loads(data)
    monkeypatch.setattr(json, "loads", unneeded)

    assert parsed(data) == expected


def unneeded(*_: object) -> NoReturn:
    raise AssertionError("the slow way was taken")


def test_what_is_too_deep_or_too_long_is_not_read() -> None:
    for data in (b"[" * 100_000, b"[1.5," + b"[" * 100_000, b"[1" + b"0" * 5000 + b"]"):
        with pytest.raises(ValueError):  # noqa: PT011 - the message is the decoder's
            parsed(data)


def test_a_digest_is_the_sha256_of_the_canonical_form() -> None:
    written = b'{"a":[1,true,null],"b":"\xc3\xbc"}'
    assert canonical({"b": "ü", "a": (1, True, None)}) == written
    assert digest({"b": "ü", "a": (1, True, None)}) == hashlib.sha256(written).hexdigest()
