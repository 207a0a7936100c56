"""Hosts that a policy names: ``pypi.org``, ``*.npmjs.org``, ``git.example.org:8443``.

A rule names one host, or with ``*.`` at its beginning all names below a domain, but not the domain
itself; ``*`` alone is every host. Without a port it means 80 and 443. An address
(``10.1.2.3``, ``[fd00::1]:8080``) is a host too. Everything here is pure.

A name may lead anywhere: the owner of its entry in the DNS can make it an address of this
machine, of the local network or of a cloud's metadata service. So ``may_lead_to`` judges the
address as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from corral.errors import PolicyError

if TYPE_CHECKING:
    from ipaddress import IPv4Address, IPv6Address

PORTS = (80, 443)
"""The ports of a rule that names none."""
# Kept as text: re compiles it when first needed.
_RULE = (
    r"(?P<host>\[[0-9a-f:.]+\]|\*|(?:\*\.)?[a-z0-9_](?:[a-z0-9._-]*[a-z0-9_])?)"
    r"(?::(?P<port>[0-9]{1,5}))?"
)
_METADATA = ("169.254.169.254", "fd00:ec2::254", "100.100.100.200", "168.63.129.16")
"""Services of clouds that give away the credentials of the machine. Some have a public address."""


class HostRule(msgspec.Struct, frozen=True):
    host: str
    """In lower case, an address without brackets."""
    port: int | None = None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port is None else f"{host}:{self.port}"

    @property
    def is_pattern(self) -> bool:
        return self.host.startswith("*")

    @property
    def is_local(self) -> bool:
        """Whether it names this machine."""
        return self.host in ("localhost", "127.0.0.1", "::1")

    @property
    def ports(self) -> tuple[int, ...]:
        return PORTS if self.port is None else (self.port,)

    def matches(self, host: str, port: int) -> bool:
        """Whether the rule is about this host and port."""
        if port not in self.ports:
            return False
        name = host.lower().rstrip(".")
        if not self.is_pattern:
            return name == self.host
        return self.host == "*" or (name.endswith(self.host[1:]) and len(name) >= len(self.host))

    def may_lead_to(self, address: str) -> bool:
        """Whether the host of this rule may have this IP address. A rule that is an address means
        that address. Other names may have a public address, a name without ``*`` also one
        of a private network; never one of this machine, except ``localhost``, and never that of a
        cloud's metadata service."""
        from ipaddress import ip_address, ip_network

        found = _embedded(address)
        try:
            return found == ip_address(self.host)
        except ValueError:
            pass
        if self.host == "localhost":
            return found.is_loopback
        if found in map(ip_address, _METADATA) or found.is_multicast:
            return False
        private = ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7")
        inside = any(found in ip_network(each) for each in private)
        return found.is_global or (inside and not self.is_pattern)


def _embedded(address: str) -> IPv4Address | IPv6Address:
    """The address; of an IPv6 address that stands for an IPv4 address, the latter."""
    from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

    found = ip_address(address.partition("%")[0])
    if isinstance(found, IPv6Address):
        if found in ip_network("64:ff9b::/96"):
            return IPv4Address(int(found) & 0xFFFFFFFF)
        return found.ipv4_mapped or found.sixtofour or found
    return found


def parse_host_rule(text: str) -> HostRule:
    """Raises ``PolicyError``."""
    found = re.fullmatch(_RULE, text.strip().lower().removesuffix("."))
    port = int(found["port"]) if found and found["port"] else None
    if found is None or (port is not None and not 0 < port < 65536):
        url = re.match(r"[a-z]+://(?:[^@/]*@)?([^/]+)", text.strip().lower())
        raise PolicyError(
            f"not a host: {text!r}",
            hint=f"Name the host only: {url[1]!r}."
            if url
            else "For example: 'pypi.org', '*.npmjs.org', 'git.example.org:8443'.",
        )
    host = found["host"].strip("[]")
    if ":" in host or host.replace(".", "").isdigit():
        from ipaddress import ip_address

        try:
            ip_address(host)
        except ValueError as error:
            raise PolicyError(f"not an IP address: {text!r}") from error
    return HostRule(host, port)


def find_rule(rules: Iterable[HostRule], host: str, port: int) -> HostRule | None:
    """The rule for a host and port; one that names the host itself wins over a pattern."""
    found = [rule for rule in rules if rule.matches(host, port)]
    return min(found, key=lambda rule: rule.is_pattern, default=None)
