"""``is_narrower``: what it accepts is never wider, and common policies are accepted."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from corral.events import ToolKind
from corral.policy import VERDICTS, Action, Policy, is_narrower

TOOLS: dict[str, ToolKind] = {
    "read_file": "read",
    "write_file": "edit",
    "run": "execute",
    "fetch": "fetch",
    "think": "think",
}
RULES = ["allow git *", "allow git status", "deny git push *", "deny rm *", "allow rm a", "deny ls"]
COMMANDS = ["git status", "git push x", "rm a", "ls", "git log && rm a", "git x; ls", "$(x)"]
verdicts = st.sampled_from([None, *VERDICTS])
names = st.lists(st.sampled_from([*TOOLS, "unknown"]), max_size=3, unique=True)
policies = st.builds(
    Policy,
    read=verdicts,
    write=verdicts,
    shell=verdicts,
    network=verdicts,
    mcp=verdicts,
    own_mcp=verdicts,
    allow_tools=st.none() | names,
    deny_tools=names,
    shell_rules=st.lists(st.sampled_from(RULES), max_size=3),
    writable=st.lists(st.sampled_from(["/a", "/b"]), max_size=2),
    mode=st.sampled_from([None, None, None, "plan", "native"]),
)


def actions() -> list[Action]:
    kinds: dict[str, ToolKind] = {**TOOLS, "unknown": "other", "mcp_x": "mcp"}
    found = [
        Action(name, kind, command, own=own)
        for name, kind in kinds.items()
        for command in (COMMANDS if kind in ("execute", "other") else [None])
        for own in (False, True)
    ]
    return [*found, Action("run", "execute"), Action("run", "execute", "x" * 20_000)]


ACTIONS = actions()


def wider_at(policy: Policy, than: Policy) -> list[Action]:
    """What ``policy`` allows or asks about, although ``than`` is stricter."""

    def strictness(one: Policy, action: Action) -> int:
        return VERDICTS.index(one.evaluate(action).verdict)

    return [each for each in ACTIONS if strictness(policy, each) < strictness(than, each)]


@settings(max_examples=250)
@given(policies, policies)
def test_a_narrower_policy_allows_nothing_more(policy: Policy, than: Policy) -> None:
    if is_narrower(policy, than, TOOLS):
        assert wider_at(policy, than) == []
        assert set(policy.writable) <= set(than.writable)


@settings(max_examples=150)
@given(policies, st.data())
def test_a_policy_with_one_stricter_setting_is_narrower_or_rejected(
    than: Policy, data: st.DataObject
) -> None:
    """Pairs that differ a little: these are accepted far more often than two at random."""
    step = data.draw(
        st.fixed_dictionaries(
            {},
            optional={
                "write": verdicts,
                "shell": verdicts,
                "deny_tools": names.map(lambda more: (*than.deny_tools, *more)),
                "allow_tools": names,
                "shell_rules": st.lists(st.sampled_from([*RULES, *than.shell_rules]), max_size=4),
            },
        )
    )
    policy = replace(than, **step)
    if is_narrower(policy, than, TOOLS):
        assert wider_at(policy, than) == []


@given(policies)
def test_every_policy_is_narrower_than_itself(policy: Policy) -> None:
    assert is_narrower(policy, policy)


RULED = Policy(shell="ask", shell_rules=("allow git *", "deny rm *"))
EDITS = Policy.edits()


@pytest.mark.parametrize(
    ("policy", "than"),
    [
        (Policy.reads(), EDITS),
        (EDITS, Policy.all()),
        (Policy.plan(), Policy.reads()),
        (Policy.reads(), replace(Policy.all(), deny_tools=())),
        (replace(EDITS, deny_tools=("write_file",)), EDITS),
        (replace(EDITS, allow_tools=("read_file", "write_file")), EDITS),
        (replace(EDITS, allow_tools=()), EDITS),
        (replace(EDITS, writable=("/a/b",)), replace(EDITS, writable=("/a",))),
        (replace(EDITS, writable=("/b",)), replace(EDITS, writable=("/",))),
        (replace(Policy.all(), allow_tools=("unknown",)), Policy.all()),
        (Policy.reads(), RULED),
        (replace(RULED, shell_rules=("deny rm *",)), RULED),
        (replace(RULED, shell_rules=("deny ls", *RULED.shell_rules)), RULED),
        (replace(Policy.all(), shell_rules=("deny rm *",)), Policy.all()),
    ],
)
def test_common_narrower_policies_are_accepted(policy: Policy, than: Policy) -> None:
    assert is_narrower(policy, than, TOOLS)


@pytest.mark.parametrize(
    ("policy", "than"),
    [
        (EDITS, Policy.reads()),
        (Policy.all(), EDITS),
        (Policy.all(), replace(Policy.all(), own_mcp="allow")),  # no workspace any more
        (Policy.reads(), Policy.plan()),
        (Policy.native(), Policy.reads()),
        (Policy.reads(), Policy.native()),
        (replace(EDITS, writable=("/etc",)), EDITS),
        (replace(Policy.all(), writable=("/etc",)), Policy.all()),
        (replace(EDITS, writable=("/a/../b",)), replace(EDITS, writable=("/a",))),
        (replace(EDITS, writable=("/ab",)), replace(EDITS, writable=("/a",))),
        (replace(EDITS, allow_tools=("run",)), EDITS),
        (replace(EDITS, allow_tools=("unknown",)), EDITS),
        (EDITS, replace(EDITS, deny_tools=("write_file",))),
        (EDITS, replace(EDITS, allow_tools=("write_file",))),
        (replace(EDITS, mcp="allow", own_mcp=None), EDITS),
        (replace(RULED, shell_rules=()), RULED),
        (replace(RULED, shell_rules=("deny rm *", "allow git *", "allow ls")), RULED),
        (replace(RULED, shell_rules=("allow git *",)), RULED),
        (replace(Policy.reads(), shell_rules=("allow ls",)), Policy.reads()),
    ],
)
def test_a_wider_policy_is_not_accepted(policy: Policy, than: Policy) -> None:
    assert not is_narrower(policy, than, TOOLS)
