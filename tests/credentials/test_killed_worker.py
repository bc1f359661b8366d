"""A worker is killed while its secret is alive: another one takes it back."""

from __future__ import annotations

import pytest

from portal import vault
from runs.models import Credential, CredentialGrant, Event
from runs.states import CredentialState
from tests.acceptance.kit import contract_with
from tests.cast import ASKING, make_run, make_version, transcript
from tests.credentials.services import Authorization, serving
from tests.real_walk import RealWalk


@pytest.mark.bubblewrap
def test_inv08_a_killed_workers_secret_is_taken_back(real_walk: RealWalk) -> None:
    """SIGKILL in the middle of the call; the source is away at first, and is asked again."""
    with serving(Authorization(away=1)) as server:
        assert isinstance(server, Authorization)
        Credential.objects.create(
            tenant=real_walk.cast.acme,
            name="token",
            kind="oauth",
            config={
                "token_url": f"{server.url}/token",
                "revocation_url": f"{server.url}/revoke",
                "client": server.client,
            },
            sealed=vault.seal(server.secret.encode()),
            audience=["127.0.0.1"],
            actions=["issues.write"],
        )
        real_walk.web()
        worker = real_walk.worker()
        version = make_version(
            real_walk.cast, contract_with(credential="token"), recording=transcript(ASKING)
        )
        run = make_run(real_walk.cast, version)
        real_walk.tracker.manner = "hang"
        real_walk.decide(real_walk.until_asked(run, "call"))
        real_walk.until(lambda: real_walk.tracker.requests, "the request is on its way")
        use = CredentialGrant.objects.get(run=run)
        assert (use.state, len(server.alive)) == (CredentialState.LIVE, 1)

        worker.kill()
        assert len(server.alive) == 1
        real_walk.worker()
        real_walk.until(lambda: not server.alive, "another worker takes the secret back")

        def taken_back() -> bool:
            use.refresh_from_db()
            return use.state == CredentialState.REVOKED

        real_walk.until(taken_back, "the source's word is written down")
        assert use.revoke_attempts == 2
        assert Event.objects.filter(run=run, kind="credential.revoke_failed").count() == 1
        assert len(real_walk.tracker.requests) == 1
