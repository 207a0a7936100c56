"""A policy in the Gemini CLI's own rules.

The rules are read here as its engine reads them: the highest priority whose tool
and arguments match decides, the arguments as one text with a NUL around each.
"""

from __future__ import annotations

import json
import random
import re
import subprocess
import tomllib
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from support.agent_launch import NOT_COMPILED, compile_policy, decisions
from support.goldens import check_golden
from support.stream_checks import no_deadline

from corral._agents import registry
from corral._agents.gemini.controls import (
    HARMLESS,
    KINDS,
    NETWORK,
    OTHER,
    READ,
    SHELL,
    WRITE,
)
from corral._agents.report import CompiledPolicy
from corral._agents.spec import AgentControls, LaunchContext
from corral._core.protected_paths import NAMES, Link, Links
from corral._core.shell_patterns import allow_regex, covers, split_commands
from corral.errors import PolicyError, PolicyNotEnforceable
from corral.options import RunOptions
from corral.policy import Action, Policy, parse_shell_rule, policy_from_table

GOLDENS = Path(__file__).parent / "goldens"
PLACE = LaunchContext(
    program=("gemini",),
    version=None,
    **NOT_COMPILED,
    cwd="/work/repo",
    home="/s/home",
    tmp="/s/tmp",
)

POLICIES: dict[str, Policy] = {
    "default": Policy(),
    "read_only": Policy.reads(),
    "edits": Policy.edits(),
    "full": Policy.all(),
    "plan": Policy.plan(),
    "shell_rules": Policy(shell_rules=("allow git status", "deny git push *", "allow pytest *")),
    "allow_tools": Policy(allow_tools=("read_file", "run_shell_command", "mcp_probe_add")),
    "nothing": Policy(allow_tools=()),
    "deny_tools": msgspec.structs.replace(Policy.all(), deny_tools=("web_fetch", "mcp_x_y")),
}


HEADLESS, ACP = registry.find("gemini-cli"), registry.find("gemini-acp")


def compiled(policy: Policy, place: LaunchContext = PLACE, **options: Any) -> AgentControls:
    """With the rules that name paths, as a launch in ``place`` adds them."""
    found = compile_policy(HEADLESS, policy, RunOptions(agent=HEADLESS.name, **options)).controls
    files = {name: str(text) for name, text in found.folder_rules(place).items()}
    return msgspec.structs.replace(found, files=files)


def rules_of(policy: Policy, **options: Any) -> list[dict[str, Any]]:
    found = tomllib.loads(compiled(policy, **options).files["policy.toml"])
    assert set(found) == {"rule"}
    return found["rule"]  # type: ignore[no-any-return]


def serialised(arguments: dict[str, Any]) -> str:
    """A call's arguments in the form in which the CLI matches rules."""
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
def test_a_policy_compiles_to_its_golden_rules(name: str) -> None:
    check_golden(GOLDENS / f"policy_{name}.toml", compiled(POLICIES[name]).files["policy.toml"])


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_every_rule_is_one_that_the_cli_takes(name: str) -> None:
    """The CLI drops other rules with a warning and continues."""
    known = {"toolName", "decision", "priority", "argsPattern", "allowRedirection", "denyMessage"}
    for rule in rules_of(POLICIES[name]):
        assert set(rule) <= known | {"mcpName"}
        assert rule["decision"] in ("allow", "deny")
        assert 0 <= rule["priority"] <= 999
        assert rule["priority"] != 950  # those it ignores where "always" is not offered
        assert re.compile(rule.get("argsPattern", ""))
        assert taken(rule.get("argsPattern", ""))


@pytest.mark.parametrize(
    ("pattern", "verdict"),
    [
        ("**/*.py", "allow"),
        ("src/*.{ts,tsx}", "allow"),
        ("{src,tests}/**/[a-z]*.d.ts", "allow"),
        (".github/**", "allow"),
        ("/etc/*", "deny"),
        ("../out/*", "deny"),
        ("src/../../out/*", "deny"),
        ("{src,/etc}/*", "deny"),
        ("{..,src}/out/*", "deny"),
        (".{.,x}/out/*", "deny"),
        ("{.,x}./out/*", "deny"),
        ("{,x}.{,y}./out/*", "deny"),
        ("\\.\\./out/*", "deny"),
        ("[.][.]/out/*", "deny"),
    ],
)
def test_a_glob_pattern_cannot_name_a_folder_outside(pattern: str, verdict: str) -> None:
    policy = Policy.edits()
    acp = compile_policy(ACP, policy).controls
    for rules in (rules_of(policy), tomllib.loads(str(acp.files["policy.toml"]))["rule"]):
        assert engine(rules, "glob", {"pattern": pattern}) == verdict
    assert engine(rules_of(Policy.all()), "glob", {"pattern": pattern}) == "allow"


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_what_no_rule_allows_is_denied(name: str) -> None:
    rules = rules_of(POLICIES[name])
    assert engine(rules, "a_tool_of_the_next_version", {}) == "deny"
    (base,) = [rule for rule in rules if rule["toolName"] == "*"]
    assert base["decision"] == "deny"
    assert all(rule["priority"] > base["priority"] for rule in rules if rule is not base)


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_the_mode_never_grants_anything(name: str) -> None:
    flags = compiled(POLICIES[name]).flags
    assert flags == ("--approval-mode", "plan" if name == "plan" else "default")


def test_native_has_no_rules_and_no_rule_file() -> None:
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


def test_mcp_tools_are_allowed_only_by_mcp() -> None:
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
    rules = rules_of(msgspec.structs.replace(Policy.all(), deny_tools=tuple(KINDS)))
    assert {engine(rules, name, ARGUMENTS) for name in KINDS} == {"deny"}


def test_a_similar_tool_name_is_refused() -> None:
    for where in ("allow_tools", "deny_tools"):
        with pytest.raises(PolicyError, match="no tool 'write_files'; did you mean 'write_file'"):
            compiled(policy_from_table({where: ["write_files"]}, "a file"))


def test_denying_an_unknown_tool_is_refused() -> None:
    with pytest.raises(PolicyError, match="denying it would do nothing"):
        compiled(Policy(deny_tools=("Bash",)))
    with pytest.raises(PolicyError, match="names, not patterns"):
        compiled(Policy(deny_tools=("*",)))


def test_another_agents_tool_name_is_refused() -> None:
    with pytest.raises(PolicyError, match="'Bash'; did you mean 'run_shell_command'"):
        rules_of(Policy(allow_tools=("Bash",)))


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
    rules = rules_of(Policy.all())
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
def test_a_readable_folder_is_not_writable(path: str, verdict: str) -> None:
    policy = msgspec.structs.replace(Policy.edits(), writable=("../more",))
    rules = rules_of(policy, include_directories=("/work/other",))
    assert engine(rules, "write_file", {"file_path": path, "content": "x"}) == verdict


@pytest.mark.parametrize(
    ("command", "verdict"),
    [
        ("git status", "allow"),
        ("pytest", "allow"),
        ("pytest -q tests", "allow"),
        ("pytest -k \"a b\" 'c'", "allow"),
        ("pytest \\\\x", "deny"),
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
def test_an_allow_rule_does_not_allow_a_second_command(command: str) -> None:
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
def test_another_argument_cannot_be_taken_for_the_command(more: dict[str, Any]) -> None:
    assert runs(POLICIES["shell_rules"], "rm -rf /", **more) == "deny"


def test_the_first_shell_rule_wins_over_others_and_over_the_capability() -> None:
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
PLAIN = st.builds("{}{}".format, st.sampled_from("ab"), st.text(alphabet="ab .*+/-é", max_size=8))
MARKS = "ab .*+?[]{}()^$|/-\"'\\é"
PATTERN = st.text(alphabet=MARKS, min_size=1, max_size=8).filter(
    lambda text: text.strip() and "  " not in text
)


@no_deadline
@given(pattern=PLAIN, command=st.builds("{}{}".format, st.sampled_from(["a", "b", ""]), TEXT))
def test_a_command_that_an_allow_rule_accepts_is_allowed_by_the_policy(
    pattern: str, command: str
) -> None:
    """The compiled rule may be stricter than ``Policy.evaluate``, but never less strict."""
    policy = Policy(shell="deny", shell_rules=(f"allow {pattern}",))
    assume(allow_regex(parse_shell_rule(f"allow {pattern}").pattern) is not None)
    if (
        split_commands(command) and runs(policy, command) == "allow"
    ):  # a blank, or a lone {, runs nothing
        ruling = policy.evaluate(Action("run_shell_command", "execute", command))
        assert ruling.verdict == "allow"


@no_deadline
@given(pattern=PATTERN.filter(lambda pattern: "(" not in pattern), description=TEXT)
def test_any_pattern_matches_itself_and_stays_valid(pattern: str, description: str) -> None:
    plain = pattern.replace("*", "a")
    clean = " ".join(plain.split())
    policy = Policy(shell="deny", shell_rules=(f"allow {plain}",))
    assert runs(policy, clean, description=description) == "allow"
    denied = Policy(shell="allow", shell_rules=(f"deny {pattern}",))
    assert runs(denied, " ".join(pattern.replace("*", "; x").split())) == "deny"


def taken(pattern: str) -> bool:
    """The CLI's own test of a pattern, from its source."""
    return len(pattern) <= 2048 and not re.search(r"\([^)]*[*+?{].*\)[*+?{]", pattern)


@no_deadline
@given(pattern=PATTERN, verb=st.sampled_from(["allow", "deny"]))
def test_a_shell_rule_that_the_cli_would_drop_is_refused(pattern: str, verb: str) -> None:
    try:
        rules = rules_of(Policy(shell="allow", shell_rules=(f"{verb} {pattern}",)))
    except PolicyError as error:
        assert "would not take" in error.message  # noqa: PT017
        assert "(" in pattern
        assert verb == "deny"
    else:
        assert all(taken(rule.get("argsPattern", "")) for rule in rules)


@pytest.mark.parametrize("rule", ["deny f (a* b c", f"deny {'x' * 2100}"])
def test_deny_rules_that_the_cli_would_ignore_are_refused_before_it_starts(rule: str) -> None:
    with pytest.raises(PolicyError, match="would not take the shell rule"):
        compiled(Policy(shell="allow", shell_rules=(rule,)))


@pytest.mark.parametrize(
    "rule", ["allow f(a+b) *", "allow printf *", "allow *", f"allow {'x' * 2100}"]
)
def test_allow_rules_that_cannot_be_expressed_are_denied_and_named(rule: str) -> None:
    policy = Policy(shell_rules=(rule, "allow ls"))
    assert runs(policy, rule.removeprefix("allow ").replace("*", "x")) == "deny"
    assert runs(policy, "ls") == "allow"
    pattern = rule.removeprefix("allow ")
    assert report(policy)["shell"] == f"deny (native) · {pattern}: not offered · ls: allow (native)"
    assert any(f"have no place for it: {rule}" in note for note in compiled(policy).notes)


def report(policy: Policy) -> dict[str, str]:
    return decisions(compile_policy(HEADLESS, policy))


def test_every_capability_is_enforced_by_the_cli_itself() -> None:
    for name, policy in POLICIES.items():
        rows = compile_policy(HEADLESS, policy).report
        assert {enforcer for row in rows for enforcer in row.enforcers} == {"native"}, name


def test_ask_is_reported_as_deny_if_no_one_can_answer() -> None:
    assert report(Policy())["write"] == "deny (native)"
    assert "ask→deny" in compile_policy(HEADLESS, Policy()).report[1].note


def test_denying_the_network_with_a_free_shell_is_impossible() -> None:
    refused = "deny (native) · commands: deny (not enforced)"
    assert report(Policy(shell="allow", network="deny"))["network"] == refused
    listed = Policy(allow_tools=("run_shell_command",), network="deny")
    assert report(listed)["network"] == refused
    assert report(Policy(shell="allow"))["network"] == "deny (native)"
    assert report(Policy(shell="deny", network="deny"))["network"] == "deny (native)"


# The persistent CLI


def asking(policy: Policy, *, interactive: bool, **options: Any) -> CompiledPolicy:
    run = RunOptions(agent=ACP.name, interactive=interactive, **options)
    return compile_policy(ACP, policy, run)


def asking_rules(policy: Policy, *, interactive: bool) -> list[dict[str, Any]]:
    found = tomllib.loads(asking(policy, interactive=interactive).controls.files["policy.toml"])
    return found["rule"]  # type: ignore[no-any-return]


VERDICTS = st.sampled_from(["allow", "ask", "deny", None])
ANY_POLICY = st.builds(
    Policy,
    read=VERDICTS,
    write=VERDICTS,
    shell=VERDICTS,
    network=VERDICTS,
    mcp=VERDICTS,
    own_mcp=VERDICTS,
    allow_tools=st.none() | st.lists(st.sampled_from(sorted(KINDS)), max_size=4).map(tuple),
    deny_tools=st.lists(st.sampled_from(sorted(KINDS)), max_size=2).map(tuple),
    shell_rules=st.lists(
        st.sampled_from(["allow git *", "deny git push *", "allow ls"]), max_size=2
    ).map(tuple),
)
CALLS: dict[str, dict[str, Any]] = dict.fromkeys(KINDS, ARGUMENTS) | {
    "mcp_server_tool": {},
    "mcp_corral_tool": {},
}


def ruled(policy: Policy, tool: str, *, interactive: bool) -> str:
    """The policy's verdict on a call; *ask* is *deny* if no one can answer."""
    kind: Any = "mcp" if tool.startswith("mcp_") else KINDS[tool]
    command = "ls" if tool == "run_shell_command" else None
    own = tool.startswith("mcp_corral_")
    verdict = policy.evaluate(Action(tool, kind, command, own=own)).verdict
    return "deny" if verdict == "ask" and not interactive else verdict


@no_deadline
@given(policy=ANY_POLICY, tool=st.sampled_from(sorted(CALLS)), interactive=st.booleans())
def test_the_persistent_cli_never_does_what_the_policy_does_not_allow_without_asking(
    policy: Policy, tool: str, interactive: bool
) -> None:
    decision = engine(asking_rules(policy, interactive=interactive), tool, CALLS[tool])
    verdict = ruled(policy, tool, interactive=interactive)
    if verdict == "deny":
        # A question is answered by the policy; it is asked where rules decide by the command.
        assert decision == "deny" or (tool == "run_shell_command" and policy.shell_rules)
    if decision == "allow":
        assert verdict == "allow"


def test_an_allow_rule_does_not_offer_a_shell_that_the_list_of_tools_leaves_out() -> None:
    policy = Policy(allow_tools=("list_background_processes",), shell_rules=("allow ls",))
    assert engine(rules_of(policy), "run_shell_command", {"command": "ls"}) == "deny"
    assert "run_shell_command" not in compiled(policy).tools
    assert any("no place for it: allow ls" in note for note in compiled(policy).notes)


@no_deadline
@given(policy=ANY_POLICY, tool=st.sampled_from(sorted(CALLS)))
def test_the_headless_cli_does_nothing_that_the_policy_does_not_allow(
    policy: Policy, tool: str
) -> None:
    if engine(rules_of(policy), tool, CALLS[tool]) == "allow":
        assert ruled(policy, tool, interactive=False) == "allow"


@no_deadline
@given(policy=ANY_POLICY, interactive=st.booleans())
def test_the_cli_does_not_answer_permission_requests_for_the_shell_itself(
    policy: Policy, interactive: bool
) -> None:
    """Without ``argsPattern`` it would run commands that it believes to be harmless."""
    for rule in asking_rules(policy, interactive=interactive):
        named: Any = rule["toolName"]
        names: list[str] = [named] if isinstance(named, str) else named
        if "run_shell_command" in names and rule["decision"] != "deny":
            assert names == ["run_shell_command"]
            assert rule["argsPattern"] == r'\x00"command":"'
        assert rule["decision"] != "ask_user" or not set(names) & {*OTHER, *HARMLESS}
        assert taken(rule.get("argsPattern", ""))


def test_if_no_one_can_answer_both_agents_are_offered_the_same_tools() -> None:
    for policy in (Policy(), Policy.reads(), Policy(network="ask", mcp="ask")):
        rules = asking_rules(policy, interactive=False)
        assert {rule["decision"] for rule in rules} == {"allow", "deny"}
        offered = {name for name in CALLS if engine(rules, name, CALLS[name]) != "deny"}
        assert offered == {*READ, *HARMLESS}


def test_the_report_of_the_persistent_cli_says_who_decides() -> None:
    def rows(policy: Policy, *, interactive: bool) -> dict[str, str]:
        return decisions(asking(policy, interactive=interactive))

    writes = "{} (brokered) · protected names: deny (brokered)"
    assert rows(Policy(), interactive=True) == {
        "read": "allow (native)",
        "write": writes.format("ask"),
        **dict.fromkeys(("shell", "network", "mcp"), "ask (brokered)"),
    }
    assert rows(Policy(), interactive=False) == {
        "read": "allow (native)",
        **dict.fromkeys(("write", "shell", "network", "mcp"), "deny (native)"),
    }
    alone = {row.capability: row for row in asking(Policy(), interactive=False).report}
    assert "ask→deny" in alone["shell"].note
    assert rows(Policy.edits(), interactive=False)["write"] == writes.format("allow")
    assert rows(Policy.all(), interactive=False)["write"] == "allow (native)"
    ruled_shell = Policy(shell_rules=("allow git *",))
    assert rows(ruled_shell, interactive=False)["shell"] == (
        "deny (brokered) · git *: allow (brokered)"
    )


# Where the headless CLI may write


@cache
def editing_rules(links: Links) -> list[dict[str, Any]]:
    place = msgspec.structs.replace(PLACE, links=links)
    found = tomllib.loads(compiled(Policy.edits(), place).files["policy.toml"])
    return found["rule"]  # type: ignore[no-any-return]


def writes(path: str, *, links: Links | None = None, tool: str = "write_file") -> str:
    arguments = {"file_path": path, "content": "x", "old_string": "a", "new_string": "b"}
    return engine(editing_rules(links or Links()), tool, arguments)


@pytest.mark.parametrize("name", NAMES)
def test_protected_names_are_not_written_at_any_depth_in_any_case(name: str) -> None:
    real = name.replace("*", "x")
    for spelled in (real, real.upper(), real.title()):
        for path in (f"{spelled}", f"{spelled}/a", f"sub/{spelled}/a", f"./{spelled}"):
            for tool in WRITE:
                assert writes(path, tool=tool) == "deny", path
                assert writes(f"/work/repo/{path}", tool=tool) == "deny", path


@pytest.mark.parametrize(
    "path",
    ["gitignore", ".gitignore", "sub/a.git/x", "x.git", "/work/repo/.github/workflows/a.yml"],
)
def test_names_that_are_similar_to_protected_ones_can_be_written(path: str) -> None:
    assert writes(path) == "allow"


@pytest.mark.parametrize(
    "path",
    [
        "@.git/config",
        "@/x",
        "a/../b",
        "..",
        "a\\b",
        'a"b',
        "a\nb",
        "a%2fb",
        "/work/other/x",
        "/work/repository/x",
        "/s/home/.gemini/GEMINI.md",
        "/work/repo",
    ],
)
def test_paths_that_the_tool_may_interpret_differently_are_not_written(path: str) -> None:
    assert writes(path) == "deny"


def test_a_workspace_below_a_protected_name_is_written() -> None:
    place = msgspec.structs.replace(PLACE, cwd="/work/.claude/worktrees/a")
    rules = tomllib.loads(compiled(Policy.edits(), place).files["policy.toml"])["rule"]
    for path, verdict in (("x", "allow"), (".claude/x", "deny")):
        arguments = {"file_path": f"/work/.claude/worktrees/a/{path}", "content": "x"}
        assert engine(rules, "write_file", arguments) == verdict


@pytest.mark.parametrize(
    ("path", "verdict"),
    [
        ("out", "deny"),
        ("out/x", "deny"),
        ("./out/x", "deny"),
        ("OUT/x", "deny"),
        ("sub/out/x", "deny"),
        ("/work/repo/deep/in/out", "deny"),
        ("outer/x", "allow"),
        ("a+b/x", "deny"),
    ],
)
def test_names_of_links_that_lead_out_are_not_written(path: str, verdict: str) -> None:
    found = tuple(Link(f"/work/repo/{name}", "/else", readable=True) for name in ("d/out", "a+b"))
    assert writes(path, links=Links(found)) == verdict


@pytest.mark.parametrize(
    ("path", "verdict"),
    [
        ("src/a.py", "allow"),
        ("./src/a.py", "allow"),
        ("config/a.py", "allow"),
        ("/work/repo/sub/config", "allow"),
        ("config", "deny"),
        ("./sub/config", "deny"),
        ("config/", "deny"),
        ("a+b (1).json", "deny"),
    ],
)
def test_a_relative_path_is_edited_unless_its_name_may_be_found_where_nothing_is_written(
    path: str, verdict: str
) -> None:
    links = Links(unwritable=frozenset({"config", "a+b (1).json"}))
    assert writes(path, links=links, tool="replace") == verdict
    assert writes(path.rstrip("/"), links=links) == "allow"
    too_many = Links(unwritable=None)
    is_relative = not path.startswith("/")
    expected = "deny" if is_relative else "allow"
    assert writes(path, links=too_many, tool="replace") == expected


def test_a_thousand_links_become_rules_that_the_cli_accepts() -> None:
    links = Links(tuple(Link(f"/work/repo/link-{n}", "/else", readable=False) for n in range(1000)))
    assert all(taken(rule.get("argsPattern", "")) for rule in editing_rules(links))
    assert writes("link-999/x", links=links) == "deny"


def test_writing_is_refused_if_not_all_links_of_the_workspace_are_known() -> None:
    with pytest.raises(PolicyNotEnforceable, match="too many files") as raised:
        writes("x", links=Links(complete=False))
    assert "gemini-acp" in (raised.value.hint or "")


def test_a_relative_program_is_allowed_only_in_the_workspace_folder() -> None:
    policy = Policy(shell_rules=("allow ./check *", "allow pytest *"))
    assert runs(policy, "./check all") == "allow"
    assert runs(policy, "./check all", dir_path="sub") == "deny"
    assert runs(policy, "./check all", description="x", dir_path="") == "deny"
    assert runs(policy, "pytest", dir_path="sub") == "allow"


def test_a_list_of_tools_without_the_shell_is_not_widened_by_shell_rules() -> None:
    policy = Policy(allow_tools=("read_file",), shell_rules=("allow git *",))
    assert runs(policy, "git status") == "deny"
    rules = asking_rules(policy, interactive=True)
    assert engine(rules, "run_shell_command", {"command": "git status"}) == "deny"


FUZZED = ["allow git *", "allow pytest *", "allow npm run test:*", "allow make -C * all"]
SHAPES = [
    *("git", "pytest", "npm run test:", "make -C ", " all", " ", "  ", "-x", "a.py", "HEAD~1"),
    *("'", '"', "\\", "$", "`", "$(", "${", "$[", ")", "{", "}", ",", "*", "?", "[", "]", "~", "!"),
    *(
        "#",
        "\n",
        "\r",
        "\t",
        "\0",
        "\x1b",
        "\x7f",
        "\u2028",
        "\u00a0",
        "é",
        ";",
        "&",
        "|",
        "<",
        ">",
    ),
    *("<<", "=", "%", "^", "@", ":", "+", "/", "touch x", "'a b'", '"a b"', "A=1", "-", "\x85"),
]


@pytest.mark.gemini_cli
def test_the_clis_own_engine_allows_only_commands_that_the_rules_allow(tmp_path: Path) -> None:
    """20,000 generated commands, judged by JavaScript as the CLI judges them."""
    chosen = random.Random(10)
    lines: list[tuple[int, str]] = []
    for _ in range(20_000):
        which = chosen.randrange(len(FUZZED))
        start = FUZZED[which].removeprefix("allow ").partition("*")[0]
        pieces = chosen.choices(SHAPES, k=chosen.randint(0, 5))
        end = " all" if which == 3 and chosen.random() < 0.8 else ""
        lines.append((which, start + "".join(pieces) + end))
    patterns = [
        next(
            rule["argsPattern"]
            for rule in rules_of(Policy(shell_rules=(rule_text,)))
            if rule["toolName"] == "run_shell_command"
        )
        for rule_text in FUZZED
    ]
    given = tmp_path / "given.json"
    given.write_text(json.dumps([patterns, [[n, serialised({"command": c})] for n, c in lines]]))
    program = (
        "const [patterns, lines] = JSON.parse(require('fs').readFileSync(process.argv[1]));"
        "const made = patterns.map(p => new RegExp(p));"
        "console.log(JSON.stringify(lines.map(([n, text]) => made[n].test(text))));"
    )
    done = subprocess.run(
        ["node", "-e", program, str(given)], check=True, capture_output=True, text=True, timeout=60
    )
    accepted = [line for line, ok in zip(lines, json.loads(done.stdout), strict=True) if ok]
    assert len(accepted) > 1000
    for which, command in accepted:
        assert covers(parse_shell_rule(FUZZED[which]).pattern, command), command
