"""What an assertion must be before anybody believes it."""

from __future__ import annotations

from typing import Any

import pytest
from fido2.webauthn import AuthenticatorData, CollectedClientData
from hypothesis import given
from hypothesis import strategies as st

from portal.webauthn import Assertion, NotSigned, checked, from_base64url, key_of, to_base64url
from tests.softkeys import PRESENT, VERIFIED, SoftKey

CHALLENGE = to_base64url(b"c" * 32)
KINDS = ("es256", "eddsa", "rs256")
KEYS = {kind: SoftKey(kind=kind) for kind in KINDS}


def count_of(key: SoftKey, data: dict[str, str], **other: Any) -> int:
    asked = {
        "public_key": key.public_key,
        "challenge": CHALLENGE,
        "rp_id": "localhost",
        "origins": ("http://localhost:8000",),
    }
    return checked(Assertion.read(data), **(asked | other))


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_key_signed_holds_and_another_library_agrees(kind: str) -> None:
    key = KEYS[kind]
    data = key.signed(CHALLENGE)
    assert count_of(key, data) == key.count

    said = CollectedClientData(from_base64url(data["client_data"]))
    signed = AuthenticatorData(from_base64url(data["authenticator_data"])) + said.hash
    key.cose.verify(signed, from_base64url(data["signature"]))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("part", ["authenticator_data", "client_data", "signature"])
def test_no_bit_of_it_can_be_changed(kind: str, part: str) -> None:
    key = KEYS[kind]
    data = key.signed(CHALLENGE)
    raw = from_base64url(data[part])
    for at in range(0, len(raw), 7):
        changed = raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]
        with pytest.raises(NotSigned):
            count_of(key, data | {part: to_base64url(changed)})


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (KEYS["es256"].signed(CHALLENGE, kind="webauthn.create"), "another kind"),
        (KEYS["es256"].signed(to_base64url(b"d" * 32)), "something else"),
        (KEYS["es256"].signed(CHALLENGE, origin="http://localhost:8001"), "page of another site"),
        (KEYS["es256"].signed(CHALLENGE, origin="https://localhost:8000"), "page of another site"),
        (KEYS["es256"].signed(CHALLENGE, crossOrigin=True), "page of another site"),
        (KEYS["es256"].signed(CHALLENGE, flags=PRESENT), "PIN or biometrics"),
        (KEYS["es256"].signed(CHALLENGE, flags=VERIFIED), "PIN or biometrics"),
        (KEYS["eddsa"].signed(CHALLENGE), "not this key"),
    ],
)
def test_what_is_signed_in_another_way_is_refused(data: dict[str, str], said: str) -> None:
    with pytest.raises(NotSigned, match=said):
        count_of(KEYS["es256"], data)


def test_a_signature_for_another_site_is_refused() -> None:
    with pytest.raises(NotSigned, match="another site"):
        count_of(KEYS["es256"], KEYS["es256"].signed(CHALLENGE), rp_id="example.com")


@given(st.one_of(st.none(), st.text(), st.dictionaries(st.text(), st.text()), st.binary()))
def test_anything_else_is_no_assertion(data: object) -> None:
    with pytest.raises(NotSigned):
        Assertion.read(data)


@given(st.binary(max_size=120))
def test_bytes_that_are_no_key_are_refused_and_never_fail_otherwise(data: bytes) -> None:
    with pytest.raises(NotSigned):
        key_of(to_base64url(data))


@given(st.data())
def test_a_key_with_a_changed_byte_is_another_key_or_none(data: st.DataObject) -> None:
    raw = from_base64url(KEYS["es256"].public_key)
    at = data.draw(st.integers(0, len(raw) - 1))
    changed = raw[:at] + bytes([raw[at] ^ data.draw(st.integers(1, 255))]) + raw[at + 1 :]
    with pytest.raises(NotSigned):
        count_of(KEYS["es256"], KEYS["es256"].signed(CHALLENGE), public_key=to_base64url(changed))


@given(st.binary())
def test_bytes_have_one_spelling(data: bytes) -> None:
    assert from_base64url(to_base64url(data)) == data


@pytest.mark.parametrize("text", ["YQ==", "YR", "Y", "YQ\n", "Y+8", "é"])
def test_another_spelling_is_refused(text: str) -> None:
    """`YR` and `YQ` are the same byte to a lenient reader: a signature would have two names."""
    with pytest.raises(NotSigned):
        from_base64url(text)
