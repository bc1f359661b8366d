"""Adding, using and losing one's passkeys."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import call_command
from django.urls import reverse
from django.utils import timezone

from portal import passkey_account, passkeys, signin
from portal.env import WebAddress, env_address
from portal.models import AuditEntry, Passkey, PasskeyChallenge, RecoveryCode, User
from tests.cast import Cast
from tests.races.crowd import at_once
from tests.softkeys import PRESENT, SoftKey, fresh
from tests.visits import Page, Visitor, text_of

CODE = re.compile(r"<code>((?:[2-9A-Z]{4}-){3}[2-9A-Z]{4})</code>")


def at(name: str, *parts: object) -> str:
    return reverse(f"portal:passkey{name}", args=parts)


def add(visitor: Visitor, key: SoftKey, name: str = "Laptop", **made: Any) -> Page:
    options = visitor.post(at("_begin"))
    assert options.status_code == 200, text_of(options)
    answer = json.dumps(key.made(options.json(), **made))
    return visitor.post(at("_add"), name=name, passkey=answer)


def prove(visitor: Visitor, key: SoftKey) -> Page:
    options = visitor.post(at("_ask")).json()
    return visitor.post(at("_prove"), passkey=json.dumps(key.signed(options["challenge"])))


def told(cast: Cast) -> list[str]:
    lines = AuditEntry.objects.filter(tenant=cast.acme, action__startswith="passkey.")
    return [each.action for each in lines.order_by("seq")]


@pytest.mark.both_databases
def test_the_first_passkey_comes_with_recovery_codes_that_nobody_can_read(
    cast: Cast, database: str
) -> None:
    ada, key = fresh(Visitor(cast.ada)), SoftKey()
    page = add(ada, key)
    codes = CODE.findall(text_of(page))
    assert (page.status_code, len(codes)) == (200, passkey_account.CODES)
    assert page["Cache-Control"] == "no-store"

    stored = Passkey.objects.get()
    assert (stored.user, stored.name) == (cast.ada.user, "Laptop")
    assert (stored.credential, stored.public_key) == (key.credential, key.public_key)
    assert (stored.sign_count, stored.last_used_at) == (1, None)
    assert not set(codes) & set(RecoveryCode.objects.values_list("code_hash", flat=True))
    listed = text_of(ada.get(at("s")))
    assert "Laptop" in listed
    assert "not yet" in listed
    assert not CODE.search(listed)
    # The next one brings no new codes.
    assert add(ada, SoftKey(kind="eddsa"), "Phone")["Location"] == at("s")
    assert told(cast) == ["passkey.added", "passkey.codes_made", "passkey.added"]
    entry = AuditEntry.objects.filter(action="passkey.added").first()
    assert entry is not None
    assert (entry.actor, entry.facts["key"]) == (cast.ada.user, stored.fingerprint)


def test_a_sign_in_of_some_time_ago_changes_nothing(cast: Cast) -> None:
    ada = Visitor(cast.ada)
    addresses = (at("_begin"), at("_add"), at("_codes"), at("_remove", 1))
    assert {ada.post(each).status_code for each in addresses} == {409}
    session = fresh(ada).client.session
    session["keys_proof"] = {**session["keys_proof"], "at": 0}
    session.save()
    assert {ada.post(each).status_code for each in addresses} == {409}
    assert not PasskeyChallenge.objects.exists()


@pytest.mark.parametrize("by_link", [True, False])
def test_signing_in_is_the_proof_for_the_first_one(cast: Cast, by_link: bool) -> None:
    user, ada = cast.ada.user, Visitor()
    if by_link:
        ada.post(signin.make_link(user))
    else:
        user.set_password("a long enough phrase")
        user.save(update_fields=["password"])
        ada.post(reverse("portal:sign_in"), email=user.email, password="a long enough phrase")
    assert CODE.search(text_of(add(ada, SoftKey())))


def test_with_a_passkey_a_password_or_a_link_is_not_enough(cast: Cast) -> None:
    """Whoever gets hold of a mailbox or a password must not come to a key of their own."""
    user, key = cast.ada.user, SoftKey()
    key.kept_by(user)
    user.set_password("a long enough phrase")
    user.save(update_fields=["password"])
    ada = Visitor()
    ada.post(signin.make_link(user))
    assert ada.post(at("_begin")).status_code == 409
    assert ada.post(at("_prove"), password="a long enough phrase").status_code == 409
    assert ada.post(at("_begin")).status_code == 409

    assert prove(ada, key).status_code == 302
    assert add(ada, SoftKey(), "Phone").status_code == 200


def test_a_password_stands_for_a_sign_in_and_guesses_are_counted(cast: Cast) -> None:
    user, ada = cast.ada.user, Visitor(cast.ada)
    user.set_password("a long enough phrase")
    user.save(update_fields=["password"])
    ada.client.force_login(user)
    assert ada.post(at("_prove"), password="wrong").status_code == 422
    assert ada.post(at("_begin")).status_code == 409
    assert ada.post(at("_prove"), password="a long enough phrase").status_code == 302
    assert ada.post(at("_begin")).status_code == 200
    for _ in range(signin.ATTEMPTS_ALLOWED):
        ada.post(at("_prove"), code="AAAA-AAAA-AAAA-AAAA")
    assert ada.post(at("_prove"), password="a long enough phrase").status_code == 429
    signin.forget_attempts(user.email)


@pytest.mark.both_databases
def test_a_lost_key_is_removed_with_a_recovery_code_that_works_once(
    cast: Cast, database: str
) -> None:
    code = CODE.findall(text_of(add(fresh(Visitor(cast.ada)), SoftKey())))[0]
    ada, lost = Visitor(cast.ada), Passkey.objects.get()
    assert ada.post(at("_prove"), code="2222-3333-4444-5555").status_code == 422
    assert ada.post(at("_remove", lost.pk)).status_code == 409
    # Bo's account takes none of Ada's codes.
    assert fresh(Visitor(cast.bo)).post(at("_prove"), code=code).status_code == 422
    assert ada.post(at("_prove"), code=f" {code.lower()} ").status_code == 302
    assert add(ada, SoftKey(), "New").status_code == 302
    assert ada.post(at("_remove", lost.pk)).status_code == 302
    assert [each.name for each in passkeys.passkeys_of(cast.ada.user)] == ["New"]
    assert Visitor(cast.ada).post(at("_prove"), code=code).status_code == 422
    assert told(cast)[2:] == ["passkey.code_used", "passkey.added", "passkey.removed"]
    for each in (cast.ada, cast.bo):
        signin.forget_attempts(each.user.email)


def test_new_codes_end_the_earlier_ones_and_the_last_key_ends_them_all(cast: Cast) -> None:
    ada = fresh(Visitor(cast.ada))
    first = CODE.findall(text_of(add(ada, SoftKey())))
    second = CODE.findall(text_of(ada.post(at("_codes"))))
    assert len(set(first) | set(second)) == 2 * passkey_account.CODES
    assert Visitor(cast.ada).post(at("_prove"), code=first[0]).status_code == 422
    assert ada.post(at("_remove", Passkey.objects.get().pk)).status_code == 302
    assert not RecoveryCode.objects.exists()
    assert ada.post(at("_codes")).status_code == 409
    signin.forget_attempts(cast.ada.user.email)


def test_a_key_of_somebody_else_is_not_there(cast: Cast) -> None:
    key = SoftKey().kept_by(cast.bo.user)
    assert fresh(Visitor(cast.ada)).post(at("_remove", key.pk)).status_code == 404
    assert Passkey.objects.filter(pk=key.pk).exists()


def test_whoever_lost_everything_begins_anew(cast: Cast, capsys: Any) -> None:
    add(fresh(Visitor(cast.ada)), SoftKey())
    call_command("forget_passkeys", "ADA@example.com")
    assert "1 removed" in capsys.readouterr().out
    assert not Passkey.objects.exists()
    assert not RecoveryCode.objects.exists()
    entry = AuditEntry.objects.filter(action="passkey.removed").get()
    assert entry.actor is None
    assert CODE.search(text_of(add(fresh(Visitor(cast.ada)), SoftKey())))


# --- what a browser should never return ---------------------------------------------------------


def test_a_made_key_is_taken_once_by_the_one_who_asked_and_in_time(cast: Cast) -> None:
    ada, bo = fresh(Visitor(cast.ada)), fresh(Visitor(cast.bo))
    options = ada.post(at("_begin")).json()
    answer = json.dumps(SoftKey().made(options))
    assert bo.post(at("_add"), name="Mine", passkey=answer).status_code == 422
    assert ada.post(at("_add"), name="Mine", passkey=answer).status_code == 200
    again = json.dumps(SoftKey().made(options))
    assert ada.post(at("_add"), name="Mine", passkey=again).status_code == 422

    late = json.dumps(SoftKey().made(ada.post(at("_begin")).json()))
    PasskeyChallenge.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    page = ada.post(at("_add"), name="Late", passkey=late)
    assert (page.status_code, "five minutes" in text_of(page)) == (422, True)
    assert Passkey.objects.count() == 1


@pytest.mark.parametrize(
    ("key", "made"),
    [
        (SoftKey(origin="http://localhost:9"), {}),
        (SoftKey(origin="https://evil.example"), {}),
        (SoftKey(rp_id="evil.example"), {}),
        (SoftKey(), {"flags": PRESENT}),
    ],
)
def test_a_key_for_another_site_or_without_its_holder_is_none(
    cast: Cast, key: SoftKey, made: dict[str, Any]
) -> None:
    page = add(fresh(Visitor(cast.ada)), key, **made)
    assert (page.status_code, "not accepted" in text_of(page)) == (422, True)
    assert not Passkey.objects.exists()


def test_one_key_is_on_one_account(cast: Cast) -> None:
    key = SoftKey()
    key.kept_by(cast.bo.user)
    assert add(fresh(Visitor(cast.ada)), key).status_code == 422


@pytest.mark.parametrize("name", ["", "   ", "x" * 61, "Lap\u202etop"])
def test_a_key_has_a_name_that_can_be_read(cast: Cast, name: str) -> None:
    assert add(fresh(Visitor(cast.ada)), SoftKey(), name).status_code == 400


@pytest.mark.parametrize(
    "sent", ["", "null", "[]", "{", '{"response": 1}', '{"response": {"clientDataJSON": "e30"}}']
)
def test_what_is_no_key_is_refused(cast: Cast, sent: str) -> None:
    ada = fresh(Visitor(cast.ada))
    assert ada.post(at("_add"), name="Laptop", passkey=sent).status_code == 422


def test_bytes_that_are_no_attestation_are_refused(cast: Cast) -> None:
    ada = fresh(Visitor(cast.ada))
    for attested in (
        "",
        "oA",
        "AAAA",
        "_" * 400,
        "n" * 300,
        "o2NmbXRkbm9uZWdhdHRTdG10oGhhdXRoRGF0YUA",
    ):
        answer = SoftKey().made(ada.post(at("_begin")).json())
        answer["response"]["attestationObject"] = attested
        page = ada.post(at("_add"), name="Laptop", passkey=json.dumps(answer))
        assert page.status_code == 422, attested


def test_a_copied_key_is_noticed(cast: Cast) -> None:
    key = SoftKey()
    key.kept_by(cast.ada.user)
    ada = Visitor(cast.ada)
    key.count = 40
    assert prove(ada, key).status_code == 302
    key.count = 40 - 1
    page = prove(Visitor(cast.ada), key)
    assert (page.status_code, "may be a copy" in text_of(page)) == (409, True)


@pytest.mark.both_databases
def test_race_one_proof_is_taken_once(cast: Cast, database: str) -> None:
    key = SoftKey()
    key.kept_by(cast.ada.user)
    visitors = [Visitor(cast.ada) for _ in range(4)]
    options = visitors[0].post(at("_ask")).json()
    answer = json.dumps(key.signed(options["challenge"]))

    def send(visitor: Visitor) -> Callable[[], Page]:
        return lambda: visitor.post(at("_prove"), passkey=answer)

    pages = at_once([send(each) for each in visitors])
    assert sorted(each.status_code for each in pages) == [302, 422, 422, 422]


# --- where ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("http://127.0.0.1:8000", ("localhost", "http://localhost:8000")),
        ("http://[::1]", ("localhost", "http://localhost")),
        ("https://imprimatur.example.com", ("imprimatur.example.com",)),
        ("https://imprimatur.example.com:443", ("imprimatur.example.com",)),
    ],
)
def test_keys_are_made_for_the_configured_name(
    settings: Any, monkeypatch: pytest.MonkeyPatch, address: str, expected: tuple[str, ...]
) -> None:
    monkeypatch.setenv("SOME_URL", address)
    settings.PUBLIC_ADDRESS = env_address("SOME_URL", "")
    where = passkeys.party()
    assert where.id == expected[0]
    assert where.origin == (expected[1] if len(expected) > 1 else f"https://{expected[0]}")


def test_an_address_without_a_name_says_so(settings: Any, cast: Cast) -> None:
    settings.PUBLIC_ADDRESS = WebAddress("https", "10.1.2.3", None)
    page = fresh(Visitor(cast.ada)).get(at("s"))
    assert "sets PUBLIC_URL to a name" in text_of(page)
    assert fresh(Visitor(cast.ada)).post(at("_begin")).status_code == 409


def test_at_another_address_the_page_names_the_right_one(cast: Cast) -> None:
    assert "http://localhost:8000" in text_of(fresh(Visitor(cast.ada)).get(at("s")))


def test_a_stranger_to_all_tenants_may_have_a_key_and_tells_nobody(cast: Cast) -> None:
    user = User.objects.create_user("lone@example.com", "Lone")
    visitor = Visitor()
    visitor.client.force_login(user)
    assert add(fresh(visitor), SoftKey()).status_code == 200
    assert told(cast) == []
