"""Signing in and out, people, settings, evidence, and what every page has in common."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connection
from django.urls import reverse
from redis.exceptions import ConnectionError

from portal import signin
from portal.models import AuditEntry, Membership, SignInLink, User
from portal.roles import Role
from tests.cast import Cast
from tests.visits import Page, Visitor, text_of

WRONG = "do not belong together"


@pytest.fixture
def ada(cast: Cast) -> User:
    """Ada with a password."""
    user = cast.ada.user
    user.set_password("a long enough phrase")
    user.save(update_fields=["password"])
    signin.forget_attempts(user.email)
    return user


def sign_in(visitor: Visitor, email: str, password: str, **fields: Any) -> Page:
    return visitor.post(reverse("portal:sign_in"), email=email, password=password, **fields)


# --- in and out --------------------------------------------------------------------------------


def test_signing_in_leads_back_to_the_page_and_nowhere_else(ada: User) -> None:
    wanted = "/t/acme/queue/"
    page = Visitor().get(wanted)
    assert page["Location"] == f"/signin/?next={wanted}"
    for given, leads_to in (
        (wanted, wanted),
        ("https://evil.example/", "/"),
        ("//evil.example/", "/"),
        ("javascript:alert(1)", "/"),
    ):
        answer = sign_in(Visitor(), ada.email.upper(), "a long enough phrase", next=given)
        assert (answer.status_code, answer["Location"]) == (302, leads_to), given


def test_a_stranger_a_wrong_password_and_a_closed_account_look_alike(cast: Cast, ada: User) -> None:
    User.objects.filter(pk=cast.bo.user_id).update(is_active=False)
    answers = [
        sign_in(Visitor(), email, "wrong")
        for email in (ada.email, "nobody@example.com", cast.bo.user.email)
    ]
    assert {answer.status_code for answer in answers} == {422}
    assert all(WRONG in text_of(answer) for answer in answers)


def test_guessing_is_stopped_for_a_while(ada: User) -> None:
    for _ in range(signin.ATTEMPTS_ALLOWED):
        sign_in(Visitor(), ada.email, "wrong")
    answer = sign_in(Visitor(), ada.email, "a long enough phrase")
    assert answer.status_code == 429
    signin.forget_attempts(ada.email)
    assert sign_in(Visitor(), ada.email, "a long enough phrase").status_code == 302


def test_guessing_is_counted_by_account_however_its_address_is_typed(ada: User) -> None:
    typed = [ada.email.upper(), ada.email.title(), f" {ada.email} ", ada.email]
    for number in range(signin.ATTEMPTS_ALLOWED):
        sign_in(Visitor(), typed[number % len(typed)], "wrong")
    assert sign_in(Visitor(), ada.email.upper(), "a long enough phrase").status_code == 429
    signin.forget_attempts(ada.email)


@pytest.mark.parametrize("cache_is_there", [True, False])
def test_guesses_at_the_same_moment_count_each_other(
    ada: User, cache_is_there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Away:
        def __getattr__(self, name: str) -> Any:
            raise ConnectionError

    if not cache_is_there:
        monkeypatch.setattr(signin, "cache", Away())
    with ThreadPoolExecutor(20) as guessers:
        answers = list(guessers.map(lambda _: tried(ada.email), range(40)))
    assert answers.count(True) == signin.ATTEMPTS_ALLOWED
    signin.forget_attempts(ada.email)


def tried(email: str) -> bool:
    """Whether a guess may be made, asked on a connection of the thread's own."""
    try:
        return signin.may_try(email)
    finally:
        connection.close()


def test_guessing_is_stopped_while_the_cache_is_away(
    ada: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each web process counts by itself then; nobody is let in or shut out because of it."""

    class Away:
        def __getattr__(self, name: str) -> Any:
            raise ConnectionError

    with monkeypatch.context() as away:
        away.setattr(signin, "cache", Away())
        for _ in range(signin.ATTEMPTS_ALLOWED):
            assert sign_in(Visitor(), ada.email, "wrong").status_code == 422
        assert sign_in(Visitor(), ada.email, "a long enough phrase").status_code == 429
        away.setattr(signin, "ATTEMPTS_KEPT", -1)  # the ten minutes are over
        assert sign_in(Visitor(), ada.email, "a long enough phrase").status_code == 302
    assert sign_in(Visitor(), ada.email, "a long enough phrase").status_code == 302


def test_a_link_is_used_by_its_button_and_not_by_being_looked_at(cast: Cast) -> None:
    address = signin.make_link(cast.ada.user)
    scanner, person = Visitor(), Visitor()
    for _ in range(3):
        page = scanner.get(address)
        assert (page.status_code, "Sign in as Ada Obi" in text_of(page)) == (200, True)
    assert SignInLink.objects.get().used_at is None
    assert person.post(address).status_code == 302
    assert person.get(reverse("portal:settings")).status_code == 200
    assert Visitor().post(address).status_code == 410
    spent = Visitor().get(address)
    assert spent.status_code == 410
    assert "manage.py signin_link" in text_of(spent)


def test_signing_out_is_a_form(cast: Cast) -> None:
    ada = Visitor(cast.ada)
    assert ada.get(reverse("portal:sign_out")).status_code == 405
    assert ada.get(reverse("portal:settings")).status_code == 200
    assert ada.post(reverse("portal:sign_out")).status_code == 302
    assert ada.get(reverse("portal:settings")).status_code == 302


def test_a_fragment_of_somebody_signed_out_is_not_the_sign_in_page(cast: Cast) -> None:
    address = reverse("runs:rows", args=["acme"])
    assert Visitor().get(address).status_code == 302
    answer = Visitor().get(address, htmx=True)
    assert (answer.status_code, answer.content) == (401, b"")


def test_the_first_page_leads_to_the_only_tenant(cast: Cast) -> None:
    assert Visitor(cast.ada).get("/")["Location"] == "/t/acme/queue/"
    Membership.objects.create(tenant=cast.globex, user=cast.ada.user, roles=[Role.VIEWER.value])
    assert Visitor(cast.ada).get("/")["Location"] == "/tenants/"
    page = text_of(Visitor(cast.ada).get("/tenants/"))
    assert page.index("Acme") < page.index("Globex")


# --- what every page has -------------------------------------------------------------------------


def test_pages_of_signed_in_people_are_kept_nowhere(cast: Cast) -> None:
    page = Visitor(cast.ada).get("/t/acme/queue/")
    assert page["Cache-Control"] == "no-store"


def test_nothing_inline_and_nothing_from_elsewhere(cast: Cast) -> None:
    page = Visitor(cast.ada).get("/t/acme/queue/")
    policy = page["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    text = text_of(page)
    assert "<script>" not in text
    assert " style=" not in text
    assert " onclick=" not in text
    assert "//cdn" not in text


def test_the_navigation_shows_what_one_may_open(cast: Cast) -> None:
    assert "/evidence/" not in text_of(Visitor(cast.vic).get("/t/acme/queue/"))
    assert "/evidence/" in text_of(Visitor(cast.aud).get("/t/acme/queue/"))


def test_a_refusal_says_what_to_do_next(cast: Cast) -> None:
    page = Visitor(cast.vic).get(reverse("runs:new", args=["acme"]))
    assert page.status_code == 403
    assert "Ask a tenant admin." in text_of(page)
    assert "portal.not_allowed" in text_of(page)
    fragment = Visitor(cast.vic).get(reverse("runs:new", args=["acme"]), htmx=True)
    assert "<!doctype" not in text_of(fragment)


def test_theme_and_keys_are_the_persons_own(cast: Cast) -> None:
    ada = Visitor(cast.ada)
    assert ada.post(reverse("portal:settings"), theme="dark").status_code == 302
    page = text_of(ada.get("/t/acme/queue/"))
    assert 'data-theme="dark"' in page
    assert 'data-keys="off"' in page
    assert ada.post(reverse("portal:settings"), theme="pink").status_code == 422


# --- people --------------------------------------------------------------------------------------


def test_an_admin_lets_people_in_and_out(cast: Cast) -> None:
    max_ = Visitor(cast.max)
    add = reverse("portal:member_add", args=["acme"])
    sent = max_.post(add, name="Nia New", email="nia@example.com", roles=["viewer", "operator"])
    assert sent.status_code == 302
    nia = Membership.objects.get(user__email="nia@example.com")
    assert nia.roles == ["viewer", "operator"]
    assert max_.post(add, name="Nia", email="NIA@example.com", roles=["viewer"]).status_code == 409

    roles = reverse("portal:member_roles", args=["acme", nia.pk])
    assert max_.post(roles, roles=["auditor"]).status_code == 302
    nia.refresh_from_db()
    assert nia.roles == ["auditor"]
    assert max_.post(roles, roles=["king"]).status_code == 422
    assert max_.post(reverse("portal:member_remove", args=["acme", nia.pk])).status_code == 302
    assert not Membership.objects.filter(pk=nia.pk).exists()
    actions = AuditEntry.objects.filter(tenant=cast.acme, action__startswith="member.")
    assert list(actions.order_by("seq").values_list("action", flat=True)) == [
        "member.added",
        "member.roles_changed",
        "member.removed",
    ]


def test_the_last_admin_stays(cast: Cast) -> None:
    max_ = Visitor(cast.max)
    roles = reverse("portal:member_roles", args=["acme", cast.max.pk])
    page = max_.post(roles, roles=["viewer"])
    assert (page.status_code, "only tenant admin" in text_of(page)) == (409, True)
    remove = reverse("portal:member_remove", args=["acme", cast.max.pk])
    assert max_.post(remove).status_code == 409
    cast.max.refresh_from_db()
    assert cast.max.roles == ["admin"]


def test_people_of_another_tenant_are_not_there(cast: Cast) -> None:
    roles = reverse("portal:member_roles", args=["acme", cast.eve.pk])
    assert Visitor(cast.max).get(roles).status_code == 404
    assert Visitor(cast.max).post(roles, roles=["viewer"]).status_code == 404
    cast.eve.refresh_from_db()
    assert "admin" in cast.eve.roles


@pytest.mark.parametrize("name", ["Ada\u200b Obi", "\u202eibO adA", "Ada\x1b[8m Obi"])
def test_inv13_nobody_is_let_in_under_a_name_that_hides_something(cast: Cast, name: str) -> None:
    page = Visitor(cast.max).post(
        reverse("portal:member_add", args=["acme"]),
        name=name,
        email="ada.two@example.com",
        roles=["viewer"],
    )
    assert page.status_code == 422
    assert "cannot be seen" in text_of(page)
    assert not User.objects.filter(email="ada.two@example.com").exists()


def test_a_name_is_spelled_as_its_script_has_it(cast: Cast) -> None:
    name = "\u0639\u0644\u06cc\u200c\u0631\u0636\u0627"
    sent = Visitor(cast.max).post(
        reverse("portal:member_add", args=["acme"]),
        name=name,
        email="ali@example.com",
        roles=["viewer"],
    )
    assert sent.status_code == 302
    assert f"<bdi>{name}</bdi>" in text_of(Visitor(cast.max).get("/t/acme/people/"))


def test_inv13_what_hides_in_a_name_that_was_stored_before_is_drawn(cast: Cast) -> None:
    User.objects.filter(pk=cast.vic.user_id).update(name="\u202e<b>Vic</b>\u200b Moreau")
    vic, max_ = Visitor(cast.vic), Visitor(cast.max)
    for page in (
        max_.get("/t/acme/people/"),
        max_.get(reverse("portal:member_roles", args=["acme", cast.vic.pk])),
        max_.post(reverse("portal:member_roles", args=["acme", cast.vic.pk]), roles=["viewer"]),
        max_.get("/t/acme/people/"),  # with the words of what was just done
        vic.get("/t/acme/queue/"),
    ):
        assert not {"\u202e", "\u200b"} & set(text_of(page))
        assert "<b>Vic" not in text_of(page)
    assert "U+202E" in text_of(max_.get("/t/acme/people/"))
    cast.vic.user.refresh_from_db()
    assert cast.vic.user.initials == "<M"
