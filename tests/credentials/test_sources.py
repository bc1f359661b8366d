"""Every source speaks as its service does, gives what it got, and takes it back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from runs.credentials.scope import Scope
from runs.credentials.sources import (
    ConfigWrong,
    CredentialSource,
    MintRefused,
    MintUnknown,
    RevokeFailed,
    Secret,
    SourceSpec,
    source_for,
    wire,
)
from tests.credentials.services import (
    Authorization,
    GitHub,
    Vault,
    dripping,
    private_key,
    serving,
)

HERE = frozenset({"127.0.0.1"})


def source(kind: str, secret: str, *actions: str, **config: str) -> CredentialSource:
    """A source of that kind whose secrets may be sent to api.example.com."""
    spec = SourceSpec(config, actions, ("api.example.com",), secret, HERE)
    return source_for(kind, spec)


# --- Scope ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wider", "narrower", "more"),
    [
        (Scope(("contents:write",)), Scope(("contents:read",)), ["may do “contents:write”"]),
        (Scope(("contents:read",)), Scope(("contents:write",)), []),
        (Scope(("contents:read",)), Scope(("contents:admin",)), []),
        (Scope(("issues:read",)), Scope(("contents:write",)), ["may do “issues:read”"]),
        (Scope((), ("*",)), Scope((), ("acme/adder",)), ["reaches “*”"]),
        (Scope((), ("acme/adder",)), Scope((), ("*",)), []),
        (Scope((), ("ACME/adder",)), Scope((), ("acme/adder",)), []),
        (Scope((), (), ("a.example:8443",)), Scope((), (), ("a.example",)), []),
        (
            Scope((), (), ("a.example",)),
            Scope((), (), ("a.example:8443",)),
            ["goes to “a.example”"],
        ),
    ],
)
def test_what_one_scope_has_beyond_another(wider: Scope, narrower: Scope, more: list[str]) -> None:
    assert wider.beyond(narrower) == more
    assert wider.within(narrower).beyond(narrower) == []


# --- GitHub --------------------------------------------------------------------------------------


@pytest.fixture
def github() -> Iterator[GitHub]:
    with serving(GitHub()) as service:
        assert isinstance(service, GitHub)
        yield service


def app(github: GitHub, repositories: str = "acme/adder acme/other") -> CredentialSource:
    config = {"app": github.app, "installation": github.installation, "api": github.url}
    actions = ("contents:write", "pull_requests:write")
    return source("github_app", private_key(), *actions, repositories=repositories, **config)


def test_an_installation_token_for_one_repository_and_some_permissions(github: GitHub) -> None:
    made = app(github)
    wanted = made.scope_for("https://github.com/acme/adder.git", ("contents:read",))
    assert wanted == Scope(
        ("contents:read", "metadata:read"), ("acme/adder",), ("api.example.com",)
    )

    minted = made.mint(wanted)

    (asked,) = github.asked
    assert asked.headers["Accept"] == "application/vnd.github+json"
    assert asked.headers["Host"] == github.host
    assert asked.json == {
        "permissions": {"contents": "read", "metadata": "read"},
        "repositories": ["adder"],
    }
    assert minted.secret.value in github.alive
    assert minted.scope == wanted
    assert minted.seconds is not None
    assert 3500 < minted.seconds <= 3600

    made.revoke(minted.secret, {})
    assert github.alive == set()
    made.revoke(minted.secret, {})  # GitHub says 401 then: it is worthless already


@pytest.mark.parametrize(
    ("address", "repository"),
    [
        ("https://api.github.com/repos/acme/adder", "acme/adder"),
        ("https://api.github.com/repos/acme/adder/issues/3", "acme/adder"),
        ("https://git.example.com/api/v3/repos/acme/other/pulls", "acme/other"),
        ("https://github.com/acme/other.git", "acme/other"),
        ("https://github.com/acme/foreign.git", None),
    ],
)
def test_the_address_names_the_repository(
    github: GitHub, address: str, repository: str | None
) -> None:
    scope = app(github).scope_for(address, ())
    assert scope.resources == ((repository,) if repository else ())


@pytest.mark.parametrize(
    ("address", "actions"),
    [
        ("https://github.com/globex/other.git", ()),
        ("https://github.com/acme/adder", ("issues:write",)),
    ],
)
def test_nothing_is_never_sent_as_everything(
    github: GitHub, address: str, actions: tuple[str, ...]
) -> None:
    """A repository or a permission that the App lacks leaves none, and an empty list says all."""
    made = app(github)
    with pytest.raises(MintRefused, match="belongs to the App"):
        made.mint(made.scope_for(address, actions))
    assert github.asked == []


def test_what_github_does_not_say_counts_as_everything(github: GitHub) -> None:
    github.gives = lambda answer: {"token": answer["token"]}
    made = app(github)
    minted = made.mint(made.scope())
    assert minted.scope.resources == ("*",)
    assert "reaches “*”" in minted.scope.beyond(made.scope())


def test_another_key_than_the_apps_is_refused(github: GitHub, monkeypatch: Any) -> None:
    monkeypatch.setattr(GitHub, "signed", lambda self, token: False)
    with pytest.raises(MintRefused, match="GitHub answered 401"):
        app(github).mint(app(github).scope())


@pytest.mark.parametrize(
    ("field", "config"),
    [
        ("installation", {"installation": "ours"}),
        ("repositories", {"repositories": "adder"}),
        ("repositories", {"repositories": "acme/a globex/b"}),
        ("api", {"api": "https://user:password@api.github.com"}),
        ("app", {"app": " "}),
    ],
)
def test_an_app_that_is_described_wrongly(field: str, config: dict[str, str]) -> None:
    right = {"app": "1", "installation": "2", "repositories": "acme/a"}
    with pytest.raises(ConfigWrong) as wrong:
        source("github_app", "", "contents:read", **{**right, **config})
    assert wrong.value.name == field


# --- OAuth ---------------------------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[Authorization]:
    with serving(Authorization()) as service:
        assert isinstance(service, Authorization)
        yield service


def client(server: Authorization, **config: str) -> CredentialSource:
    config = {
        "token_url": f"{server.url}/token",
        "revocation_url": f"{server.url}/revoke",
        "client": server.client,
        **config,
    }
    return source("oauth", server.secret, "issues.read", "issues.write", **config)


@pytest.mark.parametrize("auth", ["basic", "post"])
def test_a_token_for_client_credentials(server: Authorization, auth: str) -> None:
    made = client(server, client_auth=auth)
    minted = made.mint(made.scope_for("https://api.example.com/issues", ("issues.read",)))

    (asked,) = server.asked
    assert asked.headers["Content-Type"] == "application/x-www-form-urlencoded"
    assert asked.form["grant_type"] == "client_credentials"
    assert asked.form["scope"] == "issues.read"
    assert (minted.scope.actions, minted.seconds) == (("issues.read",), 600.0)

    assert made.takes_back
    made.revoke(minted.secret, {})
    assert server.asked[-1].form["token_type_hint"] == "access_token"
    assert server.alive == set()


def test_a_server_that_gives_more_says_so(server: Authorization) -> None:
    server.gives = "issues.read admin"
    made = client(server)
    minted = made.mint(made.scope_for("https://api.example.com", ("issues.read",)))
    assert minted.scope.actions == ("issues.read", "admin")


def test_a_server_that_never_comes_to_an_end_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its owner is one tenant; the worker's threads are everybody's."""
    monkeypatch.setattr(wire, "WHOLE_SECONDS", 0.5)
    with dripping() as (url, hung_up):
        address = {"token_url": f"{url}/token", "revocation_url": f"{url}/revoke", "client": "c"}
        made = source("oauth", "s" * 20, "issues.read", **address)
        with pytest.raises(MintUnknown, match="did not answer"):
            made.mint(made.scope_for("https://api.example.com", ("issues.read",)))
        assert hung_up.wait(5)
        hung_up.clear()
        with pytest.raises(RevokeFailed, match="did not answer"):
            made.revoke(Secret("x" * 20), {})
        assert hung_up.wait(5)


def test_without_an_address_to_revoke_nothing_is_taken_back(server: Authorization) -> None:
    assert not client(server, revocation_url="").takes_back


def test_a_wrong_client_is_told_without_its_secret(server: Authorization) -> None:
    made = client(server, client="somebody else")
    with pytest.raises(MintRefused, match="invalid_client") as refused:
        made.mint(made.scope())
    assert server.secret not in str(refused.value)


def test_an_answer_that_never_came_is_not_known(server: Authorization) -> None:
    server.drops = True
    made = client(server)
    with pytest.raises(MintUnknown):
        made.mint(made.scope())
    assert len(server.given) == 1  # there is one, and nobody has it


def test_a_server_that_is_away_is_asked_again_later(server: Authorization) -> None:
    made = client(server)
    minted = made.mint(made.scope())
    server.away = 1
    with pytest.raises(RevokeFailed, match="503"):
        made.revoke(minted.secret, {})
    made.revoke(minted.secret, {})
    assert server.alive == set()


# --- Vault ---------------------------------------------------------------------------------------


@pytest.fixture
def vault() -> Iterator[Vault]:
    with serving(Vault()) as service:
        assert isinstance(service, Vault)
        yield service


def test_a_stored_secret_is_read_for_each_use(vault: Vault) -> None:
    config = {"address": vault.url, "mount": "team", "path": "service", "field": "password"}
    made = source("vault_kv", vault.token, **config, namespace="acme")

    minted = made.mint(made.scope())

    assert minted.secret.value == vault.data["password"]
    assert minted.scope.resources == ("team/service",)
    assert vault.asked[0].headers["X-Vault-Namespace"] == "acme"
    assert not made.takes_back
    with pytest.raises(MintRefused, match="no field “key”"):
        source("vault_kv", vault.token, **{**config, "field": "key"}).mint(made.scope())


def dynamic(vault: Vault, **config: str) -> CredentialSource:
    return source(
        "vault_dynamic", vault.token, address=vault.url, mount="database", role="reader", **config
    )


def test_a_secret_with_a_lease_is_ended_by_its_lease(vault: Vault) -> None:
    made = dynamic(vault)
    minted = made.mint(made.scope())
    assert (minted.secret.value, minted.secret.username) == (vault.given[0], "v-reader")
    assert minted.seconds == 3600.0

    made.revoke(minted.secret, minted.handle)
    assert vault.asked[-1].json == {"lease_id": "database/creds/reader/0"}
    assert vault.alive == set()


def test_a_secret_that_cannot_be_used_is_given_back_at_once(vault: Vault) -> None:
    with pytest.raises(MintRefused, match="no field “token”"):
        dynamic(vault, field="token").mint(dynamic(vault).scope())
    assert vault.alive == set()


def test_a_vault_that_refuses_the_portal(vault: Vault) -> None:
    config = {"address": vault.url, "mount": "database", "role": "reader"}
    made = source("vault_dynamic", "another", **config)
    with pytest.raises(MintRefused, match="permission denied"):
        made.mint(made.scope())


# --- All of them ---------------------------------------------------------------------------------


def test_a_private_address_is_only_asked_where_the_deployment_means_it(vault: Vault) -> None:
    spec = SourceSpec(
        {"address": vault.url, "mount": "database", "role": "reader"}, (), (), vault.token
    )
    with pytest.raises(MintRefused, match="BROKER_PRIVATE_HOSTS"):
        source_for("vault_dynamic", spec).mint(Scope())
    assert vault.asked == []


def test_a_secret_is_in_no_repr(vault: Vault) -> None:
    minted = dynamic(vault).mint(dynamic(vault).scope())
    assert vault.given[0] not in repr(minted)
    assert vault.given[0] not in repr(Secret(vault.given[0]))
    assert "t" * 20 not in repr(SourceSpec({}, secret=vault.token))
