"""Addresses that no sandbox reaches, whatever a name resolves to.

Written out as the registries list them, and not left to `ipaddress.is_global`, whose answer
depends on the version of Python and counts multicast as global.
"""

from __future__ import annotations

import ipaddress
from typing import TypeAlias
from urllib.parse import urlsplit

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

_V4 = {
    "unspecified": ("0.0.0.0/8",),
    "loopback": ("127.0.0.0/8",),
    "link-local": ("169.254.0.0/16",),
    "private": ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10"),
    # The address under which a large cloud shows each machine its own host.
    "host's own": ("168.63.129.16/32",),
    "documentation": ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24"),
    "reserved": ("192.0.0.0/24", "192.88.99.0/24", "198.18.0.0/15", "240.0.0.0/4"),
    "multicast": ("224.0.0.0/4",),
}
_V6 = {
    "unspecified": ("::/128",),
    "loopback": ("::1/128",),
    "link-local": ("fe80::/10", "fec0::/10"),
    "private": ("fc00::/7",),
    "multicast": ("ff00::/8",),
    "documentation": ("2001:db8::/32", "3fff::/20"),
    # Protocol assignments, among them Teredo, and 6to4: addresses that carry another one.
    "tunnel": ("2001::/23", "2002::/16"),
}
_REFUSED = [
    (ipaddress.ip_network(network), word)
    for table in (_V4, _V6)
    for word, networks in table.items()
    for network in networks
]
_GLOBAL_V6 = ipaddress.ip_network("2000::/3")
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
# The interface part of ISATAP, which carries an IPv4 address; two bits of it vary.
_ISATAP, _ISATAP_MASK = 0x00005EFE, 0xFCFFFFFF


def why_refused(text: str) -> str:
    """The kind of address that is refused, or an empty word for a public one."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return "unreadable"
    if isinstance(address, ipaddress.IPv6Address):
        if address.scope_id is not None:
            return "link-local"
        return _why_refused_v6(address)
    return _listed(address)


def pinned(url: str, address: str) -> str:
    """The http address `url` at an address that was checked instead of at its host's name."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    scheme, _, rest = url.partition("://")
    host = f"[{address}]" if ":" in address else address
    return f"{scheme}://{host}:{port}{rest[len(parts.netloc) :]}"


def _why_refused_v6(address: ipaddress.IPv6Address) -> str:
    if address.ipv4_mapped is not None:
        # Such an address is the IPv4 one in other letters: the system connects by IPv4.
        return _listed(address.ipv4_mapped) or "IPv4-mapped"
    number = int(address)
    if address in _NAT64:
        # Networks without IPv4 reach public IPv4 addresses this way.
        return _listed(ipaddress.IPv4Address(number & 0xFFFFFFFF))
    if word := _listed(address):
        return word
    if address not in _GLOBAL_V6:
        return "reserved"
    if (number >> 32) & _ISATAP_MASK == _ISATAP:
        return "tunnel"
    return ""


def _listed(address: Address) -> str:
    for network, word in _REFUSED:
        if address.version == network.version and address in network:
            return word
    return ""
