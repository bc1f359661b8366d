"""Hints that something changed. The database is the truth; a lost hint changes nothing.

One Redis channel carries the names of changed topics. Each web process
subscribes once (`portal.hub`) and tells its own sockets, because a Channels
group costs a copy and a queue per socket: 171 ms at the 99th percentile for 500
sockets, against about 11 ms this way (measured on two cores).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

import redis
from django.conf import settings
from django.db import connection, transaction

from portal.afterwards import afterwards

logger = logging.getLogger(__name__)

CHANNEL = "imprimatur:live"
_clients: dict[str, redis.Redis] = {}


def run_topic(run_id: int) -> str:
    """Everything about one run."""
    return f"run.{run_id}"


def queue_topic(tenant_id: int) -> str:
    """The tenant's list of open packets."""
    return f"queue.{tenant_id}"


def packet_topic(packet_id: int) -> str:
    """One packet."""
    return f"packet.{packet_id}"


def handed_topic(member_id: int) -> str:
    """What others of the tenant handed to one member: in whose names they may decide."""
    return f"handed.{member_id}"


def members_topic(tenant_id: int) -> str:
    """Who belongs to the tenant: sockets ask again whether they may stay."""
    return f"members.{tenant_id}"


def person_topic(user_id: int) -> str:
    """One person signed out or was changed: their sockets ask again."""
    return f"person.{user_id}"


def client() -> redis.Redis:
    """The connection that hints are sent over."""
    url = settings.CHANNEL_URL
    if url not in _clients:
        _clients[url] = redis.Redis.from_url(url, socket_timeout=2, socket_connect_timeout=2)
    return _clients[url]


def changed(*topics: str) -> None:
    """Publish at once. A broker that is down is logged, not raised: pages ask by themselves too."""
    try:
        pipe = client().pipeline(transaction=False)
        for topic in topics:
            pipe.publish(CHANNEL, topic)
        pipe.execute()
    except redis.RedisError as error:
        logger.warning("live hint not sent: %s", error)


def changed_on_commit(*topics: str) -> None:
    """Publish when the change is there to be read; all of one transaction in one go."""
    for *_, waiting, _ in connection.run_on_commit:
        if isinstance(waiting, _Hints):
            waiting.topics.update(dict.fromkeys(topics))
            return
    transaction.on_commit(_Hints(topics), robust=True)


class _Hints:
    """What a transaction publishes once it is committed, each topic once."""

    def __init__(self, topics: Iterable[str]) -> None:
        self.topics = dict.fromkeys(topics)

    def __call__(self) -> None:
        afterwards(lambda: changed(*self.topics))
