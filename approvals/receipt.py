"""The signed statement at the end of the walk: from source revision to published thing.

An in-toto Statement (predicate type of our own) in a DSSE envelope, signed with
Ed25519, so that strangers can check it with tools they have.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from approvals.changes import GITLINK, NO_MODE
from portal import dsse

PAYLOAD_TYPE = "application/vnd.in-toto+json"
# What git names a submodule's place by is a commit, anything else a blob.
_DIGESTS = {GITLINK: "gitCommit"}
PREDICATE_TYPE = "https://imprimatur.invalid/publication/v1"


def subjects(
    *, name: str, commit: str, tree: str, changes: Iterable[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """What was published, by its bytes: the commit with its tree, and every file that changed.

    A file that was removed has no bytes; that it is gone is what the tree says.
    """
    files = [
        {
            "name": each["path"],
            "digest": {_DIGESTS.get(each["new_mode"], "gitBlob"): each["new_blob"]},
        }
        for each in changes
        if each["new_mode"] != NO_MODE
    ]
    return [{"name": name, "digest": {"gitCommit": commit, "gitTree": tree}}, *files]


def statement(
    *, subject: Sequence[Mapping[str, Any]], predicate: Mapping[str, Any]
) -> dict[str, Any]:
    """The statement about one publication. The subjects are what was published."""
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [dict(each) for each in subject],
        "predicateType": PREDICATE_TYPE,
        "predicate": dict(predicate),
    }


def sign(content: Mapping[str, Any], key: Ed25519PrivateKey) -> dict[str, Any]:
    """The DSSE envelope of a statement."""
    return dsse.sign(content, PAYLOAD_TYPE, key)


def verify(envelope: Mapping[str, Any], keys: Iterable[Ed25519PublicKey]) -> dict[str, Any]:
    """The statement inside, if one of the keys signed it. Raises `ValueError`."""
    content, signers = dsse.opened(envelope, PAYLOAD_TYPE)
    if not signers & {dsse.key_id(each) for each in keys}:
        raise ValueError("it is signed with none of these keys")
    return content
