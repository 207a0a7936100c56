"""A policy as the Gemini CLI's own rules.

The rules are read here as its engine reads them: the highest priority whose tool
and arguments match decides, the arguments as one text with a NUL around each.
"""

from __future__ import annotations

import json
import re
import tomllib
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import msgspec
import pytest
from goldens import check_golden
from hypothesis import given
from hypothesis import strategies as st
from laws import unhurried

from corral.agents.gemini_policy import (
    HARMLESS,
    KINDS,
    NETWORK,
    OTHER,
    READ,
    SHELL,
    WRITE,
    compile_policy,
)
from corral.agents.profile import Compiled, Place
from corral.errors import PolicyError
from corral.options import Run
from corral.policy import Action, Policy, decide, policy_from
from corral.shell import split

GOLDENS = Path(__file__).parent / "goldens"
PLACE = Place(program=("gemini",), version=None, cwd="/work/repo", home="/s/home", tmp="/s/tmp")

POLICIES: dict[str, Policy] = {
    "default": Policy(),
    "read_only": Policy.read_only(),
    "edits": Policy.edits(),
    "full": Policy.full(),
    "plan": Policy.plan(),
    "shell_rules": Policy(shell_rules=("allow git status", "deny git push *", "allow pytest *")),
    "allow_tools": Policy(allow_tools=("read_file", "run_shell_command", "mcp_probe_add")),
    "nothing": Policy(allow_tools=()),
    "deny_tools": msgspec.structs.replace(Policy.full(), deny_tools=("web_fetch", "mcp_x_y")),
}


def compiled(policy: Policy, place: Place | None = PLACE, **options: Any) -> Compiled:
    return compile_policy(policy, Run(agent="gemini-cli", policy=policy, **options), place)


def rules_of(policy: Policy, **options: Any) -> list[dict[str, Any]]:
    found = tomllib.loads(compiled(policy, **options).files["policy.toml"])
    assert set(found) == {"rule"}
    return found["rule"]  # type: ignore[no-any-return]


def serialised(arguments: dict[str, Any]) -> str:
    """As the CLI writes a call's arguments before it matches a rule."""
    pairs = [
        f"\0{json.dumps(name)}:{json.dumps(arguments[name], ensure_ascii=False)}\0"
        for name in sorted(arguments)
    ]
    return "{" + ",".join(pairs) + "}"


def engine(rules: list[dict[str, Any]], tool: str, arguments: dict[str, Any]) -> str:
    for rule in sorted(rules, key=lambda rule: -rule["priority"]):
        named: Any = rule["toolName"]
        names: list[str] = [named] if isinstance(named, str) else named
        pattern = rule.get("argsPattern")
        if any(name == "*" or fnmatchcase(tool, name) for name in names) and (
            pattern is None or re.search(pattern, serialised(arguments))
        ):
            return str(rule["decision"])
    raise AssertionError("no rule at all matched")


def runs(policy: Policy, command: str, **more: Any) -> str:
    return engine(rules_of(policy), "run_shell_command", {"command": command, **more})


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_the_rules_of_a_policy_are_these(name: str) -> None:
    check_golden(GOLDENS / f"policy_{name}.toml", compiled(POLICIES[name]).files["policy.toml"])


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_every_rule_is_one_that_the_cli_takes(name: str) -> None:
    """It drops a rule that is not, with a warning, and goes on without."""
    known = {"toolName", "decision", "priority", "argsPattern", "allowRedirection", "denyMessage"}
    for rule in rules_of(POLICIES[name]):
        assert set(rule) <= known | {"mcpName"}
        assert rule["decision"] in ("allow", "deny")
        assert 0 <= rule["priority"] <= 999
        assert re.compile(rule.get("argsPattern", ""))
        assert taken(rule.get("argsPattern", ""))


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_what_no_rule_grants_is_denied(name: str) -> None:
    rules = rules_of(POLICIES[name])
    assert engine(rules, "a_tool_of_the_next_version", {}) == "deny"
    (base,) = [rule for rule in rules if rule["toolName"] == "*"]
    assert base["decision"] == "deny"
    assert all(rule["priority"] > base["priority"] for rule in rules if rule is not base)


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_the_mode_never_grants_anything(name: str) -> None:
    flags = compiled(POLICIES[name]).flags
    assert flags == ("--approval-mode", "plan" if name == "plan" else "default")


def test_native_says_nothing_and_writes_no_rules() -> None:
    assert compiled(Policy.native()).files == {}
    assert compiled(Policy.native()).flags == ("--approval-mode", "default")


GROUPS = {"read": READ, "write": WRITE, "shell": SHELL + OTHER, "network": NETWORK}
ARGUMENTS = {"command": "ls", "file_path": "/work/repo/a.txt"}


@pytest.mark.parametrize("capability", sorted(GROUPS))
@pytest.mark.parametrize("verdict", ["allow", "ask", "deny"])
def test_a_capability_grants_its_own_tools_and_no_others(capability: str, verdict: Any) -> None:
    given: dict[str, Any] = {"read": "deny", capability: verdict}
    rules = rules_of(Policy(**given))
    granted = {name for name in KINDS if engine(rules, name, ARGUMENTS) == "allow"}
    assert granted == {*HARMLESS, *(GROUPS[capability] if verdict == "allow" else ())}
    assert engine(rules, "mcp_server_tool", {}) == "deny"


def test_every_known_tool_belongs_to_one_group() -> None:
    grouped = [*READ, *WRITE, *SHELL, *OTHER, *NETWORK, *HARMLESS]
    assert sorted(grouped) == sorted(KINDS)


def test_mcp_tools_are_granted_by_mcp_alone() -> None:
    assert engine(rules_of(Policy(mcp="allow")), "mcp_server_tool", {}) == "allow"
    assert engine(rules_of(Policy(mcp="allow")), "write_file", {}) == "deny"


def test_a_list_of_allowed_tools_is_exact() -> None:
    rules = rules_of(POLICIES["allow_tools"])
    names = {name for name in KINDS if engine(rules, name, ARGUMENTS) == "allow"}
    assert names == {"read_file", "run_shell_command"}
    assert engine(rules, "mcp_probe_add", {}) == "allow"
    assert engine(rules, "mcp_probe_sub", {}) == "deny"
    assert not any(engine(rules_of(POLICIES["nothing"]), name, {}) == "allow" for name in KINDS)


def test_a_denied_tool_is_denied_in_any_policy() -> None:
    rules = rules_of(msgspec.structs.replace(Policy.full(), deny_tools=tuple(KINDS)))
    assert {engine(rules, name, ARGUMENTS) for name in KINDS} == {"deny"}


def test_a_tool_name_that_is_nearly_one_is_refused() -> None:
    for where in ("allow_tools", "deny_tools"):
        with pytest.raises(PolicyError, match="no tool 'write_files'; did you mean 'write_file'"):
            compiled(policy_from({where: ["write_files"]}, "a file"))


def test_denying_what_the_agent_has_not_is_refused_rather_than_dropped() -> None:
    with pytest.raises(PolicyError, match="denying it would do nothing"):
        compiled(Policy(deny_tools=("Bash",)))
    with pytest.raises(PolicyError, match="names, not patterns"):
        compiled(Policy(deny_tools=("*",)))


def test_another_agents_tool_name_grants_nothing() -> None:
    assert not any(
        engine(rules_of(Policy(allow_tools=("Bash",))), name, {}) == "allow" for name in KINDS
    )


@pytest.mark.parametrize(
    "path",
    [
        ".gemini/settings.json",
        "/work/repo/.gemini/settings.json",
        "sub/.gemini/x",
        "./.gemini/x",
        "a/../.gemini/x",
        ".gemini",
        "%2egemini/settings.json",
        ".gem\0ini/settings.json",
    ],
)
def test_the_clis_own_settings_are_never_written(path: str) -> None:
    rules = rules_of(Policy.full())
    for tool in WRITE:
        assert engine(rules, tool, {"file_path": path, "content": "x"}) == "deny"


@pytest.mark.parametrize("path", ["a.txt", "/work/repo/gemini/x", ".geminix", "my.gemini.txt"])
def test_other_files_are_written_where_writing_is_allowed(path: str) -> None:
    assert engine(rules_of(Policy.edits()), "write_file", {"file_path": path}) == "allow"


@pytest.mark.parametrize(
    ("path", "verdict"),
    [
        ("/work/repo/a.txt", "allow"),
        ("a.txt", "allow"),
        ("/work/more/a.txt", "allow"),
        ("/work/other/a.txt", "deny"),
        ("/work/repo/../other/a.txt", "deny"),
        ("../other/a.txt", "deny"),
        ("/work/repository/a.txt", "deny"),
        ("/work/repo/%2e%2e/other/a.txt", "deny"),
    ],
)
def test_a_folder_to_read_is_not_one_to_write(path: str, verdict: str) -> None:
    policy = msgspec.structs.replace(Policy.edits(), writable=("../more",))
    rules = rules_of(policy, include_directories=("/work/other",))
    assert engine(rules, "write_file", {"file_path": path, "content": "x"}) == verdict


@pytest.mark.parametrize(
    ("command", "verdict"),
    [
        ("git status", "allow"),
        ("pytest", "allow"),
        ("pytest -q tests", "allow"),
        ("pytest -k \"a b\" 'c' \\\\x", "allow"),
        ("git push", "deny"),
        ("git push origin main", "deny"),
        ("git  push", "deny"),
        ("git\tpush origin", "deny"),
        ("ls", "deny"),
    ],
)
def test_shell_rules_decide_by_the_command(command: str, verdict: str) -> None:
    assert runs(POLICIES["shell_rules"], command) == verdict


HOSTILE = [
    "pytest; rm -rf /",
    "pytest && rm -rf /",
    "pytest || rm",
    "pytest | sh",
    "pytest & rm",
    "pytest\nrm -rf /",
    "pytest x\nrm -rf /",
    "pytest $(rm -rf /)",
    'pytest "$(rm -rf /)"',
    "pytest `rm -rf /`",
    "pytest > /etc/passwd",
    "pytest < /etc/shadow",
    "pytest <(rm)",
    "pytest \\\nrm",
    "pytest\r\nrm",
    "PATH=. pytest",
    " pytest",
    "xpytest",
    "pytestx",
    "/tmp/pytest",
    "git statusx",
    "git status x",
    'git status"',
    'git status",',
    'rm -rf /","command":"git status',
    'rm -rf /\0"command":"git status',
    'rm -rf / # \\u0000"command":"git status"\\u0000',
    "",
]


@pytest.mark.parametrize("command", HOSTILE)
def test_an_allow_rule_lets_no_second_command_through(command: str) -> None:
    assert runs(POLICIES["shell_rules"], command) == "deny"


@pytest.mark.parametrize(
    "more",
    [
        {"description": "git status"},
        {"description": '\0"command":"git status"\0'},
        {"description": '"command":"git status"'},
        {"a": {"command": "git status"}},
        {"z": ['\0"command":"git status"\0']},
        {"Command": "git status"},
        {'x"\0,\0"command': "git status"},
    ],
)
def test_another_argument_cannot_stand_in_for_the_command(more: dict[str, Any]) -> None:
    assert runs(POLICIES["shell_rules"], "rm -rf /", **more) == "deny"


def test_the_first_shell_rule_wins_and_stands_above_the_capability() -> None:
    rules = ("deny git push *", "allow git *", "deny git log")
    for shell in ("allow", "deny", None):
        policy = Policy(shell=shell, shell_rules=rules)
        assert runs(policy, "git push x") == "deny"
        assert runs(policy, "git log") == "allow"
        assert runs(policy, "ls") == ("allow" if shell == "allow" else "deny")


def test_rules_beyond_what_fits_are_refused() -> None:
    with pytest.raises(PolicyError, match="more than 150 shell rules"):
        compiled(Policy(shell_rules=tuple(f"allow x{n}" for n in range(151))))
    most = Policy(shell="allow", shell_rules=tuple(f"allow x{n}" for n in range(150)))
    shell = [rule for rule in rules_of(most) if rule["toolName"] == "run_shell_command"]
    assert len({rule["priority"] for rule in shell}) == len(shell) == 151


TEXT = st.text(alphabet="ab \t;&|()`'\"\\<>\n\0.*+?[]{}^/-é\x7f\u2028", max_size=12)
PLAIN = st.text(alphabet="ab .*+?[]^/-é", min_size=1, max_size=8).filter(str.strip)
MARKS = "ab .*+?[]{}()^$|/-\"'\\é\x7f"
PATTERN = st.text(alphabet=MARKS, min_size=1, max_size=8).filter(str.strip)


@unhurried
@given(pattern=PLAIN, command=st.builds("{}{}".format, st.sampled_from(["a", "b", ""]), TEXT))
def test_what_an_allow_rule_lets_run_the_policy_allows_too(pattern: str, command: str) -> None:
    """The compiled rule may be stricter than ``decide``; it may never be laxer."""
    policy = Policy(shell="deny", shell_rules=(f"allow {pattern}",))
    if split(command) and runs(policy, command) == "allow":  # a blank, or a lone {, runs nothing
        ruling = decide(policy, Action("run_shell_command", "execute", command))
        assert ruling.verdict == "allow"


@unhurried
@given(pattern=PATTERN.filter(lambda pattern: "(" not in pattern), description=TEXT)
def test_any_pattern_matches_itself_and_stays_valid(pattern: str, description: str) -> None:
    plain = pattern.replace("*", "a")
    clean = " ".join(plain.split())
    policy = Policy(shell="deny", shell_rules=(f"allow {plain}",))
    assert runs(policy, clean, description=description) == "allow"
    denied = Policy(shell="allow", shell_rules=(f"deny {pattern}",))
    assert runs(denied, " ".join(pattern.replace("*", "; x").split())) == "deny"


def taken(pattern: str) -> bool:
    """The CLI's own test of a pattern, as its source has it."""
    return len(pattern) <= 2048 and not re.search(r"\([^)]*[*+?{].*\)[*+?{]", pattern)


@unhurried
@given(pattern=PATTERN, verb=st.sampled_from(["allow", "deny"]))
def test_a_shell_rule_that_the_cli_would_drop_is_refused(pattern: str, verb: str) -> None:
    try:
        rules = rules_of(Policy(shell_rules=(f"{verb} {pattern}",)))
    except PolicyError as error:
        assert "would not take" in error.message  # noqa: PT017
        assert "(" in pattern
    else:
        assert all(taken(rule.get("argsPattern", "")) for rule in rules)


@pytest.mark.parametrize("rule", ["allow f(a+b) *", "deny f (a* b c", f"allow {'x' * 2100}"])
def test_rules_that_the_cli_drops_are_refused_before_it_starts(rule: str) -> None:
    with pytest.raises(PolicyError, match="would not take the shell rule"):
        compiled(Policy(shell_rules=(rule,)))


def report(policy: Policy) -> dict[str, tuple[str, str]]:
    return {row.capability: (row.verdict, row.enforcement) for row in compiled(policy).report}


def test_every_capability_is_enforced_by_the_cli_itself() -> None:
    for name, policy in POLICIES.items():
        rows = report(policy)
        assert list(rows) == ["read", "write", "shell", "network", "mcp"], name
        assert {enforcement for _, enforcement in rows.values()} == {"native"}, name


def test_ask_is_reported_as_deny_with_nobody_to_ask() -> None:
    rows = {row.capability: row for row in compiled(Policy()).report}
    assert rows["write"].verdict == "ask"
    assert "ask→deny" in rows["write"].note


def test_no_network_beside_a_free_shell_is_impossible() -> None:
    assert report(Policy(shell="allow", network="deny"))["network"] == ("deny", "impossible")
    assert report(Policy(allow_tools=("run_shell_command",), network="deny"))["network"] == (
        "deny",
        "impossible",
    )
    assert report(Policy(shell="allow"))["network"] == ("ask", "native")
    assert report(Policy(shell="deny", network="deny"))["network"] == ("deny", "native")


def test_the_report_needs_no_place() -> None:
    assert compiled(Policy.full(), None).report == compiled(Policy.full()).report
