"""What a policy means for a run: defaults and exceptions, before any agent is looked at."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.odd_policies import ODD_POLICIES, PRESETS
from support.stream_checks import no_deadline

from corral._agents.grants import Grant, Grants, compute_grants
from corral.events import ToolKind
from corral.options import RunOptions
from corral.policy import CAPABILITIES, CAPABILITY_OF, Action, Policy

RUN = RunOptions(agent="any")
TOOLS: dict[str, ToolKind] = {
    "look": "read",
    "find": "search",
    "edit": "edit",
    "patch": "edit",
    "run": "execute",
    "wait": "execute",
    "agent": "other",
    "fetch": "fetch",
    "plan": "think",
}


def grants(policy: Policy, *, answered: bool = False, run: RunOptions = RUN) -> Grants:
    return compute_grants(policy, run, TOOLS, answered=answered)


def shown(grant: Grant) -> list[str]:
    found = (f"{each.subject}: {each.verdict}" for each in grant.exceptions)
    return [grant.default, *found]


@pytest.mark.parametrize(
    ("policy", "capability", "expected"),
    [
        (Policy(), "write", ["deny"]),
        (Policy.edits(), "write", ["allow", "protected names: deny"]),
        (Policy.all(), "write", ["allow"]),
        (
            Policy(write="allow", writable=("more",)),
            "write",
            ["allow", "protected names: deny", "more: allow"],
        ),
        (Policy(write="deny", writable=("more",)), "write", ["deny"]),
        (
            Policy(shell="deny", shell_rules=("deny git push *", "allow git *")),
            "shell",
            ["deny", "git push *: deny", "git *: allow"],
        ),
        (Policy(shell="deny", shell_rules=("deny rm *",)), "shell", ["deny"]),
        (Policy(shell_rules=("deny rm *",)), "shell", ["deny"]),
        (Policy(shell="allow", shell_rules=(" deny rm *",)), "shell", ["allow", "rm *: deny"]),
        (Policy(shell="allow", deny_tools=("wait",)), "shell", ["allow", "wait: deny"]),
        (Policy(shell="allow", deny_tools=("run", "wait", "agent")), "shell", ["deny"]),
        (
            Policy(shell_rules=("allow ls",), deny_tools=("run", "wait", "agent")),
            "shell",
            ["deny"],
        ),
        (Policy(shell="deny", deny_tools=("wait",)), "shell", ["deny"]),
        (Policy(allow_tools=("look", "edit")), "read", ["deny", "look: allow"]),
        (
            Policy(allow_tools=("look", "edit")),
            "write",
            ["deny", "edit: allow", "protected names: deny"],
        ),
        (Policy(allow_tools=("look",)), "shell", ["deny"]),
        (Policy(allow_tools=("look",), shell_rules=("allow ls",)), "shell", ["deny"]),
        (
            Policy(allow_tools=("run",), shell_rules=("deny rm *",)),
            "shell",
            ["deny", "rm *: deny", "run: allow"],
        ),
        (Policy(allow_tools=("edit",), deny_tools=("edit",)), "write", ["deny"]),
        (Policy(allow_tools=("server_tool",)), "mcp", ["deny", "server_tool: allow"]),
        (Policy(shell="allow", network="deny"), "network", ["deny", "commands: deny"]),
        (Policy(shell="allow"), "network", ["deny"]),
        (Policy(shell="deny", network="deny"), "network", ["deny"]),
        (
            Policy(shell_rules=("allow pip *",), network_hosts=("pypi.org",)),
            "network",
            ["deny", "commands: deny", "pypi.org: allow"],
        ),
        (Policy(network_hosts=("pypi.org",)), "network", ["deny", "pypi.org: allow"]),
        (Policy.edits(), "mcp", ["deny", "your own functions: allow"]),
        (Policy(mcp="allow"), "mcp", ["allow"]),
    ],
)
def test_a_grant_has_a_default_and_exceptions_in_the_order_in_which_they_decide(
    policy: Policy, capability: str, expected: list[str]
) -> None:
    assert shown(getattr(grants(policy), capability)) == expected


def test_ask_is_deny_if_no_one_can_answer() -> None:
    for name in ("write", "shell", "network", "mcp"):
        alone, asked = grants(Policy()).of(name), grants(Policy(), answered=True).of(name)
        assert (alone.default, alone.would_ask) == ("deny", True)
        assert (asked.default, asked.would_ask) == ("ask", True)
    assert not grants(Policy.reads()).write.would_ask
    assert not grants(Policy(deny_tools=("edit", "patch"))).write.would_ask  # denied in any case


def test_a_rule_can_allow_a_command_of_a_denied_shell() -> None:
    one = grants(Policy(shell="deny", shell_rules=("allow ls",)))
    assert not one.shell.is_denied
    assert one.offered("shell", ("run", "wait")) == ("run", "wait")
    none = grants(Policy(shell="deny", shell_rules=("deny ls",)))
    assert none.shell.is_denied
    assert none.rules == ()
    assert none.offered("shell", ("run", "wait")) == ()


@pytest.mark.parametrize(
    ("policy", "free"),
    [
        (Policy(shell="allow"), True),
        (Policy(shell="ask"), False),
        (Policy(shell="deny", shell_rules=("allow ls",)), False),
        (Policy(allow_tools=("run",)), True),
        (Policy(allow_tools=("agent",)), False),
        (Policy(shell="allow", deny_tools=("run", "wait", "agent")), False),
    ],
)
def test_a_shell_is_free_if_commands_are_allowed_that_no_rule_decides(
    policy: Policy, free: bool
) -> None:
    assert grants(policy, answered=True).free_shell is free
    auto = replace(RUN, permission_mode="auto")
    asks = policy.shell == "ask"
    assert grants(policy, answered=True, run=auto).free_shell is (free or asks)


def test_every_odd_policy_has_grants_and_only_native_and_full_are_not_limited() -> None:
    for name, policy in {**PRESETS, **ODD_POLICIES}.items():
        found = grants(policy)
        assert found.is_limited is (name not in ("native", "all")), name
        for capability in CAPABILITIES:
            assert found.of(capability).default != "ask", name


VERDICT = st.none() | st.sampled_from(["allow", "ask", "deny"])
NAMES = st.sampled_from([*TOOLS, "server_tool"])
POLICIES = st.builds(
    Policy,
    read=VERDICT,
    write=VERDICT,
    shell=VERDICT,
    network=VERDICT,
    mcp=VERDICT,
    own_mcp=VERDICT,
    allow_tools=st.none() | st.lists(NAMES, max_size=3),
    deny_tools=st.lists(NAMES, max_size=3),
    shell_rules=st.lists(st.sampled_from(["allow ls", "deny ls", "allow *", "deny x"]), max_size=2),
)


@no_deadline
@given(policy=POLICIES, tool=NAMES, answered=st.booleans(), command=st.booleans())
def test_the_grants_say_what_the_policy_says_about_each_call(
    policy: Policy, tool: str, answered: bool, command: bool
) -> None:
    """``Policy.evaluate``, which answers permission requests, is the oracle."""
    kind = TOOLS.get(tool, "mcp")
    capability = CAPABILITY_OF[kind]
    if capability is None:
        return
    text = "ls" if command and kind == "execute" else None
    verdict = policy.evaluate(Action(tool, kind, text)).verdict
    verdict = "deny" if verdict == "ask" and not answered else verdict
    found = grants(policy, answered=answered)
    grant = found.of(capability)
    if tool not in found.offered(capability, (tool,)):
        assert verdict == "deny"
        return
    if text is not None and found.rules:
        rule = next((r for r in found.rules if r.pattern in ("ls", "*")), None)
        expected = grant.verdict if rule is None else rule.verdict
    else:
        expected = grant.verdict
    assert verdict == expected
