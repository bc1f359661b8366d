"""Which machines brokered tools may talk to: public addresses, and what the deployment lists."""

from __future__ import annotations

import socket

from django.conf import settings

from runs.broker.answers import BrokerRefused
from runs.egress.addresses import why_refused


def checked_address(host: str, port: int) -> str:
    """The address to connect to: private ones only where the deployment lists the host.

    The caller connects to exactly this address, so that a name that changes its answer between
    looking and connecting gains nothing. Raises `BrokerRefused`.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise BrokerRefused(f"The name {host} could not be resolved: {error}.") from error
    address = str(found[0][4][0])
    if is_listed(host, port):
        return address
    if why_refused(address):
        raise BrokerRefused(
            f"{host} resolves to {address}, which is not a public address. "
            "List it in BROKER_PRIVATE_HOSTS if this deployment means it."
        )
    return address


def is_listed(host: str, port: int) -> bool:
    """Does the deployment mean this host, wherever its name leads?"""
    listed = settings.BROKER_PRIVATE_HOSTS
    return host in listed or f"{host}:{port}" in listed
