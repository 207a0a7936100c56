"""Hosts that a policy names: what a rule matches, and which addresses a name may have."""

from __future__ import annotations

import pytest

from corral import Policy
from corral._core.host_rules import HostRule, find_rule, parse_host_rule
from corral.errors import PolicyError
from corral.policy import is_narrower, policy_from_table


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("pypi.org", "pypi.org", None),
        ("PyPI.org.", "pypi.org", None),
        ("*.npmjs.org", "*.npmjs.org", None),
        ("*", "*", None),
        ("localhost:5432", "localhost", 5432),
        ("10.1.2.3:8080", "10.1.2.3", 8080),
        ("[fd00::1]:8080", "fd00::1", 8080),
    ],
)
def test_a_rule_names_a_host_and_perhaps_a_port(text: str, host: str, port: int | None) -> None:
    assert parse_host_rule(text) == HostRule(host, port)


@pytest.mark.parametrize(
    "text",
    ["https://pypi.org/simple", "pypi.org/x", "a b", "x:0", "x:70000", "x:y", "*x.org", "a.*.org",
     "10.0.0.999", "[zz]", "user@host", "-x", "x\ny"],
)  # fmt: skip
def test_what_is_not_a_host_is_an_error(text: str) -> None:
    with pytest.raises(PolicyError, match="network_hosts"):
        Policy(network_hosts=(text,))


def test_the_error_for_a_url_names_the_host() -> None:
    with pytest.raises(PolicyError) as raised:
        Policy(network_hosts=("https://pypi.org/simple",))
    assert "'pypi.org'" in (raised.value.hint or "")


@pytest.mark.parametrize(
    ("rule", "host", "port", "expected"),
    [
        ("pypi.org", "pypi.org", 443, True),
        ("pypi.org", "PYPI.ORG.", 80, True),
        ("pypi.org", "pypi.org", 22, False),
        ("pypi.org", "evil-pypi.org", 443, False),
        ("pypi.org", "pypi.org.evil.example", 443, False),
        ("pypi.org:8443", "pypi.org", 8443, True),
        ("pypi.org:8443", "pypi.org", 443, False),
        ("*.npmjs.org", "registry.npmjs.org", 443, True),
        ("*.npmjs.org", "a.b.npmjs.org", 443, True),
        ("*.npmjs.org", "npmjs.org", 443, False),
        ("*.npmjs.org", ".npmjs.org", 443, False),
        ("*.npmjs.org", "xnpmjs.org", 443, False),
        ("*", "anything.example", 443, True),
        ("*", "anything.example", 22, False),
    ],
)
def test_a_rule_matches_a_host_and_port(rule: str, host: str, port: int, expected: bool) -> None:
    assert parse_host_rule(rule).matches(host, port) is expected


@pytest.mark.parametrize(
    ("rule", "address", "expected"),
    [
        ("pypi.org", "151.101.0.223", True),
        ("intranet.example", "10.0.0.5", True),
        ("intranet.example", "fd12::5", True),
        ("*.example", "10.0.0.5", False),
        ("*", "192.168.1.1", False),
        ("pypi.org", "127.0.0.1", False),
        ("pypi.org", "::1", False),
        ("pypi.org", "0.0.0.0", False),
        ("pypi.org", "169.254.169.254", False),
        ("pypi.org", "::ffff:169.254.169.254", False),
        ("pypi.org", "::ffff:127.0.0.1", False),
        ("pypi.org", "64:ff9b::7f00:1", False),
        ("pypi.org", "2002:7f00:1::", False),
        ("pypi.org", "fd00:ec2::254", False),
        ("pypi.org", "100.100.100.200", False),
        ("pypi.org", "168.63.129.16", False),
        ("pypi.org", "fe80::1%eth0", False),
        ("pypi.org", "224.0.0.1", False),
        ("localhost", "127.0.0.1", True),
        ("localhost", "10.0.0.1", False),
        ("169.254.169.254", "169.254.169.254", True),
        ("10.1.2.3", "10.1.2.4", False),
    ],
)
def test_a_name_may_not_lead_to_this_machine_or_to_metadata(
    rule: str, address: str, expected: bool
) -> None:
    assert parse_host_rule(rule).may_lead_to(address) is expected


def test_a_rule_for_the_host_itself_wins_over_a_pattern() -> None:
    rules = tuple(map(parse_host_rule, ("*", "intranet.example")))
    assert find_rule(rules, "intranet.example", 443) == rules[1]
    assert find_rule(rules, "intranet.example", 22) is None


def test_hosts_deny_the_rest_of_the_network() -> None:
    policy = Policy(shell="allow", network="allow", network_hosts=["pypi.org"])
    assert policy.network == "deny"
    assert policy.network_hosts == ("pypi.org",)
    table: dict[str, object] = {"preset": "all", "network_hosts": ["pypi.org"]}
    assert policy_from_table(table, "x").network == "deny"


def test_fewer_hosts_are_a_narrower_policy() -> None:
    one, two = (Policy(network_hosts=hosts) for hosts in (("a.org",), ("a.org", "b.org")))
    assert is_narrower(one, two)
    assert not is_narrower(two, one)
    assert is_narrower(two, Policy(network="allow"))
    assert not is_narrower(one, Policy(network="deny"))
