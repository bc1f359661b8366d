"""Whose sources a tenant's contracts can name, and whose commits they find without asking."""

from __future__ import annotations

import contextlib
import shutil
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runs import source
from runs.contract import Contract, Source
from runs.fetching import cache_of, fetch_source, repositories_of
from runs.lifecycle import contract_of
from runs.models import Run
from tests.cast import Cast, make_repository, make_run

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def run(tmp_path: Path, settings: Any) -> Run:
    """A run of Acme's on its own repository."""
    settings.SOURCE_ROOT = tmp_path / "repositories"
    settings.SOURCE_CACHE_DIR = tmp_path / "sources"
    cast = Cast()
    make_repository(repositories_of(cast.acme))
    make_repository(repositories_of(cast.globex), "secret", {"plan.txt": "buy Acme\n"})
    return make_run(cast)


def named(run: Run, *, ref: str = "main", **where: Any) -> Contract:
    """The run's contract with another source."""
    return replace(contract_of(run), source=Source(ref=ref, **where))


@pytest.mark.parametrize("path", ["secret.git", "globex/secret.git", "../globex/secret.git"])
def test_a_contract_names_no_repository_of_another_tenant(run: Run, path: str) -> None:
    assert fetch_source(run, contract_of(run)).commit
    with pytest.raises(source.SourceRefused):
        fetch_source(run, named(run, path=path))


def test_a_link_in_a_tenants_folder_leads_to_no_other_tenant(run: Run, settings: Any) -> None:
    (repositories_of(run.tenant) / "theirs.git").symlink_to(
        settings.SOURCE_ROOT / "globex" / "secret.git"
    )
    with pytest.raises(source.SourceRefused, match="leads out"):
        fetch_source(run, named(run, path="theirs.git"))


@pytest.fixture(autouse=True)
def _listed(settings: Any) -> None:
    settings.BROKER_PRIVATE_HOSTS = ["127.0.0.1"]


def _unreachable(run: Run, **more: Any) -> Contract:
    return named(run, git="https://127.0.0.1:9/private.git", **more)


def _cached(spec: Source, run: Run, tenant_id: int) -> str:
    """Put the commit of a local repository where that of the address would lie, once fetched."""
    resolved = fetch_source(run, contract_of(run))
    cache = cache_of(tenant_id)
    cache.mkdir(parents=True, exist_ok=True)
    fetched = resolved.repository(cache_of(run.tenant_id))
    there = cache / f"{source._key(spec, spec.git)}.git"
    shutil.rmtree(there, ignore_errors=True)
    fetched.rename(there)
    return resolved.commit


def test_a_commit_that_another_tenant_fetched_is_not_found(run: Run) -> None:
    """Its id is in every pull request; the right to read it is not."""
    public = _unreachable(run)
    commit = _cached(public.source, run, run.tenant_id + 1)
    with pytest.raises(source.SourceRefused):
        fetch_source(run, _unreachable(run, ref=commit))
    commit = _cached(public.source, run, run.tenant_id)
    assert fetch_source(run, _unreachable(run, ref=commit)).commit == commit


def test_what_was_fetched_with_a_credential_is_not_found_without(run: Run) -> None:
    private = _unreachable(run, credential="forge")
    commit = _cached(private.source, run, run.tenant_id)
    with pytest.raises(source.SourceRefused):
        fetch_source(run, _unreachable(run, ref=commit))


# --- Where a source's host is ---------------------------------------------------------------------


@pytest.fixture
def service() -> Iterator[tuple[int, list[bytes]]]:
    """A service of this machine that was not meant for tenants, and what reached it."""
    heard: list[bytes] = []
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection:
                    heard.append(connection.recv(4096))
                    connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield listener.getsockname()[1], heard
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


@pytest.mark.parametrize(
    ("scheme", "host"),
    [
        *(("http", "127.0.0.1"), ("http", "localhost"), ("https", "2130706433"), ("ssh", "127.1")),
        ("https", "[::ffff:127.0.0.1]"),
    ],
)
def test_a_source_leads_to_no_private_address_that_is_not_listed(
    run: Run, service: tuple[int, list[bytes]], scheme: str, host: str, settings: Any
) -> None:
    settings.BROKER_PRIVATE_HOSTS = []
    port, heard = service
    with pytest.raises(source.SourceRefused) as refused:
        fetch_source(run, named(run, git=f"{scheme}://{host}:{port}/private.git"))
    assert (refused.value.code, heard) == ("source.private_address", [])


def test_a_name_that_changes_its_answer_meanwhile_gains_nothing(
    run: Run, service: tuple[int, list[bytes]], settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What git is told is the address that was looked at, and not the name."""
    settings.BROKER_PRIVATE_HOSTS = ["rebound.test"]
    port, heard = service

    def resolved(host: str, port: int, **more: Any) -> list[Any]:
        assert host == "rebound.test"  # which no server of names knows
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    with pytest.raises(source.SourceRefused):
        fetch_source(run, named(run, git=f"https://rebound.test:{port}/x.git"))
    assert heard
    assert b"rebound.test" in heard[0], "the name its certificate must have"


def test_a_name_that_is_not_known_is_not_left_to_git_to_find(run: Run, settings: Any) -> None:
    with pytest.raises(source.SourceRefused, match="could not be resolved"):
        fetch_source(run, named(run, git="https://unknown.invalid/x.git"))
