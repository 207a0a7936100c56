"""The verdicts of a policy, and the order in which its rules decide."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.stream_checks import no_deadline

from corral._core import shell_patterns
from corral.errors import PolicyError
from corral.events import ToolKind
from corral.policy import (
    CAPABILITIES,
    CAPABILITY_OF,
    PRESETS,
    Action,
    Policy,
    ShellRule,
    Verdict,
    policy_from_table,
)

KINDS: tuple[ToolKind, ...] = get_args(ToolKind)


def verdicts(policy: Policy) -> list[Verdict]:
    return [policy.verdict(capability) for capability in CAPABILITIES]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (Policy(), ["allow", "ask", "ask", "ask", "ask"]),
        (Policy.reads(), ["allow", "deny", "deny", "deny", "deny"]),
        (Policy.edits(), ["allow", "allow", "deny", "deny", "ask"]),
        (Policy.all(), ["allow", "allow", "allow", "allow", "allow"]),
        (Policy.plan(), ["allow", "deny", "deny", "deny", "deny"]),
        (Policy.native(), ["ask", "ask", "ask", "ask", "ask"]),
    ],
)
def test_the_presets_have_these_verdicts(policy: Policy, expected: list[Verdict]) -> None:
    assert verdicts(policy) == expected


def test_only_full_is_unlimited() -> None:
    assert Policy.all().is_unlimited
    for policy in (Policy(), Policy.edits(), Policy.reads(), Policy.native()):
        assert not policy.is_unlimited
    assert not msgspec.structs.replace(Policy.all(), deny_tools=("x",)).is_unlimited


def test_the_callers_own_tools_follow_own_mcp_and_else_mcp() -> None:
    ours = Action("t", "mcp", own=True)
    theirs = Action("t", "mcp")
    assert Policy.edits().evaluate(ours).verdict == "allow"
    assert Policy.edits().evaluate(theirs).verdict == "ask"
    assert Policy(mcp="deny").evaluate(ours).verdict == "deny"
    assert Policy(mcp="allow", own_mcp="deny").evaluate(ours).verdict == "deny"


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_tool_has_its_capability(kind: ToolKind) -> None:
    capability = CAPABILITY_OF[kind]
    if capability is None:
        assert kind == "think"
        assert Policy.reads().evaluate(Action("t", kind)).verdict == "allow"
        return
    for verdict in ("allow", "ask", "deny"):
        given: dict[str, Any] = {capability: verdict}
        policy = Policy(**given)
        ruling = policy.evaluate(Action("t", kind))
        assert (ruling.verdict, ruling.rule) == (verdict, f"{capability}={verdict}")


def test_an_unknown_kind_counts_as_shell() -> None:
    assert Policy(write="allow", shell="deny").evaluate(Action("t", "other")).verdict == "deny"


def test_an_empty_list_of_allowed_tools_means_none() -> None:
    for kind in KINDS:
        ruling = msgspec.structs.replace(Policy.all(), allow_tools=()).evaluate(Action("t", kind))
        assert ruling.verdict == "deny"


def test_deny_tools_wins_over_allow_tools() -> None:
    policy = Policy(allow_tools=("t",), deny_tools=("t",))
    assert policy.evaluate(Action("t")) == Policy(deny_tools=("t",)).evaluate(Action("t"))
    assert policy.evaluate(Action("t")).rule == "deny_tools: t"


RULES = ("deny git push *", "allow git *", "deny git log", "deny rm *")


@pytest.mark.parametrize(
    ("command", "verdict", "rule"),
    [
        ("git push origin", "deny", "shell_rules: deny git push *"),
        ("git log", "allow", "shell_rules: allow git *"),
        ("git status; rm x", "deny", "shell_rules: deny rm *"),
        ("git status; ls", "ask", "shell=ask"),
        ("git status > x", "ask", "shell=ask"),
        ("PATH=. git status", "ask", "shell=ask"),
        ("echo $(rm x)", "deny", "shell_rules: deny rm *"),
        ("ls", "ask", "shell=ask"),
    ],
)
def test_the_first_shell_rule_that_matches_decides(
    command: str, verdict: Verdict, rule: str
) -> None:
    action = Action("run", "execute", command)
    ruling = Policy(shell_rules=RULES).evaluate(action)
    assert (ruling.verdict, ruling.rule) == (verdict, rule)


def test_a_deny_shell_rule_wins_over_allow_tools() -> None:
    policy = Policy(allow_tools=("run",), shell_rules=("deny rm *",))
    assert policy.evaluate(Action("run", "execute", "rm x")).verdict == "deny"
    assert policy.evaluate(Action("run", "execute", "ls")).verdict == "allow"


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("execute", "think")])
def test_an_allow_rule_for_a_command_does_not_allow_another_tool_with_that_argument(
    kind: ToolKind,
) -> None:
    denying = Policy(read="deny", write="deny", shell="deny", network="deny", mcp="deny")
    policy = msgspec.structs.replace(denying, shell_rules=("allow make *", "deny rm *"))
    assert policy.evaluate(Action("t", kind, "make")).verdict == "deny"
    allowing = msgspec.structs.replace(Policy.all(), shell_rules=policy.shell_rules)
    assert allowing.evaluate(Action("t", kind, "rm x")).verdict == "deny"


VERDICT = st.none() | st.sampled_from(["allow", "ask", "deny"])
NAMES = st.sampled_from(["a", "b", "c"])
PATTERNS = st.sampled_from(["git *", "git push *", "rm *", "*", "ls"])
POLICIES = st.builds(
    Policy,
    read=VERDICT,
    write=VERDICT,
    shell=VERDICT,
    network=VERDICT,
    mcp=VERDICT,
    own_mcp=VERDICT,
    allow_tools=st.none() | st.lists(NAMES, max_size=2),
    deny_tools=st.lists(NAMES, max_size=2),
    shell_rules=st.lists(
        st.builds("{} {}".format, st.sampled_from(["allow", "deny"]), PATTERNS), max_size=3
    ),
)
COMMANDS = st.none() | st.sampled_from(
    ["git push", "git status", "rm x", "ls", "ls; rm x", "git log > x", "echo $(rm x)", ""]
)
ACTIONS = st.builds(Action, NAMES, st.sampled_from(KINDS), COMMANDS, st.booleans())


@no_deadline
@given(policy=POLICIES, action=ACTIONS)
def test_the_order_is_deny_rules_allow_rules_capability_ask(policy: Policy, action: Action) -> None:
    """An oracle that asks the questions in the order of the specification."""
    assert policy.evaluate(action).verdict == expected(policy, action)


def first_match(rules: tuple[ShellRule, ...], command: str) -> str | None:
    for rule in rules:
        test = shell_patterns.matches if rule.verdict == "deny" else shell_patterns.covers
        if test(rule.pattern, command):
            return rule.verdict
    return None


def expected(policy: Policy, action: Action) -> str:
    if action.tool in policy.deny_tools:
        return "deny"
    if policy.allow_tools is not None and action.tool not in policy.allow_tools:
        return "deny"
    parts = shell_patterns.parse(action.command or "")
    texts = [part.text for part in parts] if parts else [action.command or ""]
    if action.command is not None:
        verdicts = [first_match(policy.rules, text) for text in texts]
        if "deny" in verdicts:
            return "deny"
        if None not in verdicts and action.kind == "execute":
            return "allow"
    if policy.allow_tools is not None or action.kind == "think":
        return "allow"
    name = CAPABILITY_OF[action.kind]
    assert name is not None
    if name == "mcp" and action.own and policy.own_mcp:
        return policy.own_mcp
    value: str | None = getattr(policy, name)
    return value or "ask"


@no_deadline
@given(policy=POLICIES, action=ACTIONS)
def test_denying_one_more_tool_never_allows_anything(policy: Policy, action: Action) -> None:
    stricter = msgspec.structs.replace(policy, deny_tools=(*policy.deny_tools, "a"))
    if policy.evaluate(action).verdict != "allow":
        assert stricter.evaluate(action).verdict != "allow"


@no_deadline
@given(policy=POLICIES, action=ACTIONS)
def test_a_deny_rule_added_first_never_allows_anything(policy: Policy, action: Action) -> None:
    stricter = msgspec.structs.replace(policy, shell_rules=("deny rm *", *policy.shell_rules))
    if policy.evaluate(action).verdict != "allow":
        assert stricter.evaluate(action).verdict != "allow"


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"read": "yes"}, "read must be allow, ask or deny, got: 'yes'"),
    ({"own_mcp": True}, "own_mcp must be allow, ask or deny, got: True"),
    ({"shell": ["allow"]}, "shell must be allow, ask or deny, got: ['allow']"),
    ({"mode": "yolo"}, "mode must be native or plan, got: 'yolo'"),
    ({"allow_tools": "write_file"}, "allow_tools must be a list, got: str"),
    ({"deny_tools": [1]}, "deny_tools must contain names, got: 1"),
    ({"deny_tools": [" "]}, "deny_tools must contain names, got: ' '"),
    (
        {"shell_rules": ["git status"]},
        "shell_rules: a shell rule must be 'allow PATTERN' or 'deny PATTERN'",
    ),
    ({"shell_rules": ["allow"]}, "shell_rules: a shell rule must be"),
    ({"shell_rules": ["Deny rm"]}, "shell_rules: a shell rule must be"),
    (
        {"shell_rules": ["allow \ud800 *"]},
        "shell_rules contains text that cannot be passed to a program",
    ),
    ({"deny_tools": ["a\udfff"]}, "deny_tools contains text that cannot be passed to a program"),
    ({"writable": ["a\0b"]}, "writable contains text that cannot be passed to a program"),
    ({"writable": {"a": 1}}, "writable must be a list, got: dict"),
    ({"shell_rules": {"deny rm *"}}, "shell_rules must be a list, got: set"),
    ({"shell_rules": ["allow git\nrm -r x"]}, "shell_rules: a shell rule must be one line"),
    ({"shell_rules": ["allow git\u00a0status"]}, "shell_rules: a shell rule must be one line"),
    ({"shell_rules": ["allow echo 'a  b'"]}, "shell_rules: a shell rule with quotes"),
    ({"allow_tools": ["mcp__x,Bash"]}, "allow_tools: not the name of a tool: 'mcp__x,Bash'"),
    ({"deny_tools": ["Bash(git *)"]}, "deny_tools: names, not patterns"),
    ({"deny_tools": ["Bash(git)"]}, "deny_tools: not the name of a tool"),
    ({"deny_tools": ["a\nb"]}, "deny_tools: not the name of a tool"),
    ({"writable": ["./ x"]}, "writable: a path that begins or ends with a blank: './ x'"),
    ({"writable": [" /tmp"]}, "writable: a path that begins or ends with a blank: ' /tmp'"),
    ({"network_hosts": ["a b"]}, "network_hosts: not a host: 'a b'"),
]


@pytest.mark.parametrize(("values", "message"), WRONG)
def test_a_wrong_value_is_rejected_at_once(values: dict[str, Any], message: str) -> None:
    with pytest.raises(PolicyError) as raised:
        Policy(**values)
    assert raised.value.message.startswith(message)
    with pytest.raises(PolicyError) as raised:
        policy_from_table(dict(values), "policy.toml")
    assert raised.value.message.startswith(f"policy.toml: {message}")


def test_lists_of_a_file_become_tuples_and_the_policy_stays_hashable() -> None:
    names: Any = ["a", "b"]
    policy = Policy(allow_tools=names, shell_rules=("allow  git   status",))
    assert policy.allow_tools == ("a", "b")
    assert len({policy}) == 1
    assert policy.rules == (ShellRule("allow", "git status"),)


ODD_SPELLINGS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"shell_rules": [" deny rm *"]}, {"shell_rules": ("deny rm *",)}),
    ({"shell_rules": ["\tallow  git\tstatus \n"]}, {"shell_rules": ("allow git status",)}),
    ({"shell_rules": ["deny rm *", "deny  rm *"]}, {"shell_rules": ("deny rm *",)}),
    ({"shell_rules": ["allow echo 'a b' "]}, {"shell_rules": ("allow echo 'a b'",)}),
    ({"allow_tools": [" Bash", "Read\n", "Bash"]}, {"allow_tools": ("Bash", "Read")}),
    ({"writable": ["./out/", "a//b", "/ c", "..", "./"]},
     {"writable": ("out", "a/b", "/ c", "..", ".")}),
    ({"writable": ["//srv/./x/"]}, {"writable": ("/srv/x",)}),
    ({"network_hosts": [" PyPI.org. ", "[::1]:80"]}, {"network_hosts": ("pypi.org", "[::1]:80")}),
]  # fmt: skip


@pytest.mark.parametrize(("written", "normal"), ODD_SPELLINGS)
def test_lists_are_normalized_when_the_policy_is_made(
    written: dict[str, Any], normal: dict[str, Any]
) -> None:
    policy = Policy(**written)
    assert policy == Policy(**normal)
    [(name, value)] = normal.items()
    assert getattr(policy, name) == value
    assert msgspec.structs.replace(Policy(), **written) == policy
    assert msgspec.convert({name: [*written[name]]}, Policy) == policy


@pytest.mark.parametrize("preset", ["reads", "edits", "all"])
def test_a_file_may_start_from_a_preset(preset: Any) -> None:
    policy = policy_from_table({"preset": preset, "deny_tools": ["x"]}, "p")
    assert policy == msgspec.structs.replace(PRESETS[preset], deny_tools=("x",))


@pytest.mark.parametrize("preset", ["everything", ["reads"], 1, True])
def test_an_unknown_preset_is_rejected(preset: Any) -> None:
    with pytest.raises(PolicyError, match="preset must be reads, edits or all"):
        policy_from_table({"preset": preset}, "p")


def test_the_error_for_a_misspelled_key_suggests_the_nearest_name() -> None:
    with pytest.raises(PolicyError, match="p: unknown key 'denytools'") as raised:
        policy_from_table({"denytools": ["x"]}, "p")
    assert raised.value.hint == "Did you mean 'deny_tools'?"
    with pytest.raises(PolicyError) as raised:
        policy_from_table({"zzz": 1}, "p")
    assert "own_mcp" in (raised.value.hint or "")


LINES = [
    ("cd x && pytest -q", ("allow cd *", "allow pytest *"), "allow"),
    ("cd x && pytest -q", ("allow pytest *",), "ask"),
    ("pytest; git push", ("allow pytest *", "allow git *"), "allow"),
    ("pytest; git push", ("allow pytest *", "deny git push*", "allow git *"), "deny"),
    ("git status && git push", ("allow git status", "deny git *"), "deny"),
    ("git status | cat", ("allow git status", "deny git *"), "ask"),
    ("git status", ("allow git status", "deny git *"), "allow"),
    ("git status # x", ("allow git status", "deny git *"), "deny"),
    ("pytest # '\ntouch x #'", ("allow pytest *",), "ask"),
    ("source a && pytest", ("allow source a", "allow pytest *"), "allow"),
    ("source b && pytest", ("allow source a", "allow pytest *"), "ask"),
    ("make > log", ("allow make > log",), "allow"),
    ("make > log", ("deny make *", "allow make > log"), "deny"),
    ("make > log", ("deny make > log",), "deny"),
    ("x" * 17_000, ("allow *",), "deny"),
    ("x" * 17_000, ("deny y",), "deny"),
    ("x" * 17_000, (), "ask"),
]


@pytest.mark.parametrize(("command", "rules", "verdict"), LINES)
def test_the_first_matching_rule_decides_about_each_command_of_a_line(
    command: str, rules: tuple[str, ...], verdict: str
) -> None:
    action = Action("shell", "execute", command)
    assert Policy(shell_rules=rules).evaluate(action).verdict == verdict
