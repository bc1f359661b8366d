"""An approved publication: claimed, compared, done once, or ended with its reason."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from approvals import errors, publishing
from approvals.models import Publication
from approvals.publishers import (
    OutcomeUnknown,
    PublishError,
    RateLimited,
    TargetUnavailable,
    registry,
)
from approvals.receipt import verify
from approvals.states import PublicationState
from portal.errors import NotAllowed
from portal.handoff import Job
from portal.signing import signing_key
from runs.states import RunStatus
from tests.cast import git
from tests.walk import Walk, publication_packets


def answer_with(monkeypatch: pytest.MonkeyPatch, *failures: PublishError) -> list[str]:
    """The publisher fails with these, one after the other, and works after that."""
    real, waiting, acts = registry.publisher_for, list(failures), list[str]()

    class Moody:
        def __init__(self, target: Any) -> None:
            self.real = real(target)
            self.look = self.real.look

        def publish(self, *given: Any) -> Any:
            acts.append("publish")
            if waiting:
                raise waiting.pop(0)
            return self.real.publish(*given)

    monkeypatch.setattr(publishing, "publisher_for", Moody)
    return acts


def test_the_published_tree_is_the_approved_tree(walk: Walk) -> None:
    publication = walk.to_publish()
    walk.drain()

    store = walk.root / "adder.git"
    assert walk.tree(publication.branch) == publication.packet.page["candidate"]["tree"]
    assert git("rev-parse", publication.branch, cwd=store) == publication.commit
    assert git("rev-parse", "main", cwd=store) == walk.commit  # nobody's branch moved
    message = git("log", "-1", "--format=%B", publication.branch, cwd=store)
    assert publication.marker in message


def test_the_receipt_says_from_what_to_what_and_is_signed(walk: Walk) -> None:
    publication = walk.to_publish()
    walk.drain()

    statement = walk.fresh(publication).statement
    assert statement is not None
    key = signing_key().public_key()
    content = verify(statement, [key])
    whole, *files = content["subject"]
    assert whole["digest"] == {"gitCommit": publication.commit, "gitTree": publication.tree}
    store = walk.root / "adder.git"
    for each in files:  # the bytes, as git itself names them
        path = f"{publication.branch}:{each['name']}"
        assert each["digest"] == {"gitBlob": git("rev-parse", path, cwd=store)}
    assert [each["name"] for each in files] == ["adder.py"]
    predicate = content["predicate"]
    assert predicate["source_commit"] == walk.commit
    assert predicate["packet_digest"] == publication.packet.digest
    assert [each["person"] for each in predicate["decisions"]] == ["Ada Obi"]
    assert predicate["decisions"][0]["digest"] == publication.packet.digest
    forged = json.loads(json.dumps(statement))
    forged["payload"] = forged["payload"][:-8] + "AAAAAAA="
    with pytest.raises(ValueError, match="no signature fits"):
        verify(forged, [key])


def test_the_receipt_is_checked_without_the_portal(walk: Walk, tmp_path: Path) -> None:
    """A stranger needs the envelope, the public key, and a library for Ed25519."""
    publication = walk.to_publish()
    walk.drain()
    envelope = tmp_path / "receipt.json"
    envelope.write_text(json.dumps(walk.fresh(publication).statement))
    key = signing_key().public_key().public_bytes(Encoding.Raw, PublicFormat.Raw).hex()
    assert isinstance(Ed25519PublicKey.from_public_bytes(bytes.fromhex(key)), Ed25519PublicKey)
    script = (
        "import base64, json, sys\n"
        "from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey\n"
        "e = json.load(open(sys.argv[1])); body = base64.b64decode(e['payload'])\n"
        "kind = e['payloadType'].encode()\n"
        "pae = b'DSSEv1 %d %s %d %s' % (len(kind), kind, len(body), body)\n"
        "Ed25519PublicKey.from_public_bytes(bytes.fromhex(sys.argv[2])).verify("
        "base64.b64decode(e['signatures'][0]['sig']), pae)\n"
        "print(json.loads(body)['predicate']['commit'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", script, str(envelope), key],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == publication.commit


@pytest.mark.parametrize(
    "error",
    [
        RateLimited(target="the forge", retry_after=0),
        TargetUnavailable(target="the forge", reason="it is asleep"),
    ],
)
def test_what_is_safe_to_try_again_is_tried_again(
    walk: Walk, monkeypatch: pytest.MonkeyPatch, error: PublishError
) -> None:
    publication = walk.to_publish()
    acts = answer_with(monkeypatch, error)
    walk.drain()
    assert walk.fresh(publication).state == PublicationState.INTENDED
    assert publication.retry_safe is True

    Publication.objects.update(not_before=None)
    walk.sweep()

    assert walk.fresh(publication).state == PublicationState.DONE
    assert (publication.error_code, acts) == ("", ["publish"] * 2)


def test_it_is_not_tried_before_its_time(walk: Walk, monkeypatch: pytest.MonkeyPatch) -> None:
    publication = walk.to_publish()
    acts = answer_with(monkeypatch, RateLimited(target="the forge", retry_after=3600))
    walk.drain()
    walk.sweep()
    assert walk.deliver(Job.PUBLISH, publication.pk) == "skipped"
    assert acts == ["publish"]


def test_it_is_not_tried_for_ever(walk: Walk, monkeypatch: pytest.MonkeyPatch) -> None:
    publication = walk.to_publish()
    away = [TargetUnavailable(target="the forge", reason="it is asleep") for _ in range(20)]
    acts = answer_with(monkeypatch, *away)
    for _ in range(10):
        walk.deliver(Job.PUBLISH, publication.pk)
        Publication.objects.update(not_before=None)
    assert len(acts) == publishing.MAX_ATTEMPTS
    assert walk.status(publication.run) == RunStatus.FAILED


def test_an_error_of_our_own_around_the_act_is_unknown(
    walk: Walk, monkeypatch: pytest.MonkeyPatch
) -> None:
    publication = walk.to_publish()
    answer_with(monkeypatch, ZeroDivisionError())  # type: ignore[arg-type]
    walk.drain()
    assert walk.fresh(publication).state == PublicationState.UNKNOWN
    assert "does not know how far it got" in publication.note


def unknown(walk: Walk, monkeypatch: pytest.MonkeyPatch) -> Publication:
    """A publication of which nothing is there and nobody knows why."""
    publication = walk.to_publish()
    lost = OutcomeUnknown(act="the push", target="the target", reason="no answer")
    answer_with(monkeypatch, lost)
    walk.drain()
    assert walk.fresh(publication).state == PublicationState.UNKNOWN
    return publication


def test_who_settles_an_unknown_outcome(walk: Walk, monkeypatch: pytest.MonkeyPatch) -> None:
    publication = unknown(walk, monkeypatch)
    public_id = publication.public_id
    for member in (walk.cast.vic, walk.cast.olu, walk.cast.max, walk.cast.mona):
        for settle in (
            lambda who=member: publishing.reconcile(public_id, member=who),
            lambda who=member: publishing.try_again(public_id, member=who),
            lambda who=member: publishing.give_up(public_id, member=who, note="no"),
        ):
            with pytest.raises(NotAllowed):
                settle()
    assert publishing.reconcile(public_id, member=walk.cast.ada) == "absent"
    assert walk.fresh(publication).state == PublicationState.UNKNOWN


def test_an_unknown_outcome_that_a_person_gives_up(
    walk: Walk, monkeypatch: pytest.MonkeyPatch
) -> None:
    publication = unknown(walk, monkeypatch)
    publishing.give_up(publication.public_id, member=walk.cast.ada, note="It is not there.")

    assert walk.fresh(publication).state == PublicationState.FAILED
    assert walk.status(publication.run) == RunStatus.FAILED
    assert "Ada Obi settled it as not done. It is not there." in publication.run.failure_text
    for settle in (publishing.reconcile, publishing.try_again):
        with pytest.raises(errors.NotUnknown):
            settle(publication.public_id, member=walk.cast.ada)
    assert walk.branches() == ["main"]


def test_an_unknown_outcome_that_a_person_has_done_again(
    walk: Walk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same intent, the same names; twice asked for is once done."""
    publication = unknown(walk, monkeypatch)
    publishing.try_again(publication.public_id, member=walk.cast.ada)
    with pytest.raises(errors.NotUnknown):
        publishing.try_again(publication.public_id, member=walk.cast.bo)
    walk.drain()

    assert walk.fresh(publication).state == PublicationState.DONE
    assert walk.branches() == sorted(["main", publication.branch])
    assert len(publication_packets(publication.run)) == 1


def test_a_target_that_cannot_be_looked_at_leaves_it_unknown(
    walk: Walk, monkeypatch: pytest.MonkeyPatch
) -> None:
    publication = unknown(walk, monkeypatch)

    class Silent:
        def __init__(self, target: Any) -> None:
            pass

        def look(self, *given: Any) -> None:
            raise TargetUnavailable(target="the forge", reason="it is asleep")

    monkeypatch.setattr(publishing, "publisher_for", Silent)
    with pytest.raises(errors.LookFailed):
        publishing.reconcile(publication.public_id, member=walk.cast.ada)
    assert walk.fresh(publication).state == PublicationState.UNKNOWN
