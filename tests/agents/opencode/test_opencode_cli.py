"""OpenCode with one process per prompt: launch, policy and errors."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from support.agent_launch import NOT_COMPILED, compile_policy, decisions, explained, launch_of

from corral import McpServer, Policy, errors
from corral._agents import registry
from corral._agents.spec import Launch, LaunchContext
from corral._core.protected_paths import Link, Links
from corral._protocol.ndjson import TurnEnd
from corral._sessions.prepare import prepare
from corral.options import RunOptions

AGENT = registry.find("opencode-cli")
KEY = {"OPENAI_API_KEY": "canary-key-in-env", "OPENAI_BASE_URL": "http://host/v1"}
NO_LINKS = Links()
INSIDE = {"*": "deny", "work/repo": "allow", "work/repo/*": "allow"}


def launch(
    prompt: str = "do it",
    resume: str | None = None,
    links: Links = NO_LINKS,
    cwd: str = "/work/repo",
    **options: Any,
) -> Launch:
    place = LaunchContext(
        program=("/opt/opencode",),
        version="1.18.18",
        **NOT_COMPILED,
        cwd=cwd,
        home="/state/home",
        tmp="/state/tmp",
        env=KEY,
        links=links,
        helpers={"rg": "/opt/tools/rg"},
    )
    options = {"model": "custom/m", **options}
    return launch_of(AGENT, RunOptions.build(AGENT.name, options), place, prompt, resume)


def config(started: Launch) -> dict[str, Any]:
    return json.loads(started.env["OPENCODE_CONFIG_CONTENT"])  # type: ignore[no-any-return]


def rules(policy: Policy, **options: Any) -> dict[str, Any]:
    return config(launch(policy=policy, **options))["permission"]  # type: ignore[no-any-return]


def report(policy: Policy) -> dict[str, str]:
    return decisions(compile_policy(AGENT, policy))


def test_the_prompt_is_sent_on_stdin_and_the_folder_is_named_twice() -> None:
    started = launch('--help "x"\n/init', thinking=False)
    run = ("/opt/opencode", "run", "--format", "json", "--dir", "/work/repo", "--pure")
    assert started.argv == run
    assert started.stdin == b'--help "x"\n/init'
    assert started.env["PWD"] == "/work/repo"
    assert launch().argv == (*run, "--thinking")
    assert launch(resume="ses_1").argv[-2:] == ("-s", "ses_1")


def test_no_secret_is_written_into_the_configuration() -> None:
    local = {"name": "notes", "command": ["notes", "--x"], "env": {"N-TOKEN": "canary-1"}}
    remote = {"name": "far", "url": "http://far/mcp", "headers": {"Authorization": "canary-2"}}
    started = launch(
        model="custom/m",
        mcp_servers=[local, remote],
        policy=Policy(mcp="allow"),
        system_prompt="Be kind.",
    )
    assert "canary" not in json.dumps([started.argv, started.files, config(started)])
    servers = config(started)["mcp"]
    assert servers["notes"].pop("command")[-2:] == ["notes", "--x"]
    name = "CORRAL_MCP_SECRET_0_N_2d_TOKEN"
    assert servers == {
        "notes": {
            "type": "local",
            "environment": {name: f"{{env:{name}}}"},
            "enabled": True,
            "timeout": 30000,
        },
        "far": {
            "type": "remote",
            "url": "http://far/mcp",
            "headers": {"Authorization": "{env:CORRAL_MCP_SECRET_1_Authorization}"},
            "oauth": False,
            "enabled": True,
            "timeout": 30000,
        },
    }
    assert name in started.env
    assert "canary-1" not in started.env.values()
    assert config(started)["instructions"] == ["/state/home/system.md"]
    assert started.files["system.md"] == "Be kind."


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (Policy(), (INSIDE, "deny", "deny", "deny", "deny", "deny")),
        (Policy.reads(), (INSIDE, "deny", "deny", "deny", "deny", "deny")),
        (Policy(read="deny"), ("deny", "deny", "deny", "deny", "deny", "deny")),
        (Policy(shell="allow"), ({"*": "allow"}, "deny", "allow", "deny", "deny", "deny")),
        (Policy(network="allow"), (INSIDE, "deny", "deny", "allow", "deny", "deny")),
        (Policy(mcp="allow"), (INSIDE, "deny", "deny", "deny", "allow", "deny")),
    ],
)
def test_what_is_not_allowed_is_denied_because_a_permission_request_ends_the_run(
    policy: Policy, expected: tuple[Any, ...]
) -> None:
    made = rules(policy, mcp_servers=[{"name": "notes", "command": ["notes"]}])
    names = ("read", "edit", "bash", "webfetch", "notes_*", "task")
    assert tuple(made[name] for name in names) == expected
    assert '"ask"' not in json.dumps(made)
    assert (made["*"], made["doom_loop"]) == ("deny", "deny")
    full = rules(Policy.all())
    assert full.pop("read") == {"*": "allow", "*proc/*environ": "deny"}
    assert full == {"*": "allow"}


def decided(rules: dict[str, str], path: str) -> str:
    """OpenCode's decision for a path, which is relative to ``/``: the last matching rule counts,
    with ``*`` for any characters."""
    found = [
        verb
        for pattern, verb in rules.items()
        if re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), path, re.DOTALL)
    ]
    return found[-1]


def test_file_rules_allow_the_workspace_without_protected_names_and_links_that_lead_out() -> None:
    links = Links(
        (
            Link("/work/repo/sub/out", "/srv", readable=False),
            Link("/work/repo/hooks", "/work/repo/.git/hooks", readable=True),
        ),
        aliases=("/work/repo/alias",),
    )
    policy = Policy(write="allow", writable=("/more",))
    started = launch(policy=policy, links=links)
    made = config(started)["permission"]
    for path in ("a.txt", "sub/a.txt", "gitlike.git/x", ".gitignore", "sub", "sub/outer"):
        assert decided(made["read"], f"work/repo/{path}") == "allow"
        assert decided(made["edit"], f"work/repo/{path}") == "allow"
    assert decided(made["edit"], "more/a.txt") == "allow"
    protected = (".git", ".git/config", "a/b/.git/hooks/x", "opencode.json", ".opencode/plugin/x")
    for path in (*protected, "a/.mcp.json", "hooks/pre-commit"):
        assert decided(made["edit"], f"work/repo/{path}") == "deny"
        assert decided(made["read"], f"work/repo/{path}") == "allow"
    assert decided(made["edit"], "more/.git/config") == "deny"
    for path in ("work/repo/sub/out", "work/repo/sub/out/x", "work/repo/alias/out/x"):
        assert decided(made["read"], path) == decided(made["edit"], path) == "deny"
    for path in ("work/top.txt", "work/repository/x", "etc/passwd", "../x", "proc/self/environ"):
        assert decided(made["read"], path) == decided(made["edit"], path) == "deny"
    # Their rules are about patterns, not about folders.
    assert (made["glob"], made["grep"], made["list"], made["lsp"]) == ("deny",) * 4
    assert any("2 links" in note or "1 links" in note for note in started.notes)
    near = rules(policy, links=Links(links.found[1:]))
    assert (near["glob"], near["grep"]) == ("allow", "allow")


def test_patches_are_refused_because_no_rule_sees_where_they_move_a_file() -> None:
    options: dict[str, Any] = {"model": "openai/gpt-5.5", "env": KEY}
    for policy in (Policy.edits(), Policy(allow_tools=("edit", "write"))):
        with pytest.raises(errors.PolicyNotEnforceable, match="patch moves a file"):
            prepare(AGENT.name, {**options, "policy": policy})
    run = RunOptions.build(AGENT.name, {"model": "openai/gpt-5.5"})
    for free in (Policy.reads(), Policy.all()):
        assert compile_policy(AGENT, free, run).unenforced == ()


def test_a_workspace_below_a_protected_name_can_be_edited() -> None:
    made = rules(Policy.edits(), cwd="/home/me/.claude/worktrees/a")["edit"]
    assert decided(made, "home/me/.claude/worktrees/a/x.py") == "allow"
    assert decided(made, "home/me/.claude/worktrees/a/.claude/settings.json") == "deny"


def test_what_rules_alone_cannot_enforce_is_refused() -> None:
    odd: list[dict[str, Any]] = [{"links": Links((), complete=False)}, {"cwd": "/work/a*"}]
    for given in odd:
        with pytest.raises(errors.ConfigError) as raised:
            launch(policy="edits", **given)
        assert "opencode-acp" in (raised.value.hint or "")
        launch(policy="edits", strict=False, **given)
        launch(policy="all", **given)
    with pytest.raises(errors.ConfigError, match="depends on the model"):
        launch(policy="edits", model=None)
    launch(policy="reads", model=None)
    launch(policy="all", model=None)
    many = tuple(Link(f"/work/repo/{'x' * 80}{n}", "/srv", readable=False) for n in range(900))
    with pytest.raises(errors.ConfigError, match="900 links"):
        launch(policy="edits", links=Links(many))


def test_the_callers_own_functions_have_a_separate_verdict() -> None:
    servers = [
        McpServer("corral", url="http://x/mcp", own=True),
        {"name": "notes", "command": ["notes"]},
    ]
    made = rules(Policy.edits(), mcp_servers=servers)
    assert (made["corral_*"], made["notes_*"]) == ("allow", "deny")


def test_writable_folders_are_open_and_no_other() -> None:
    made = rules(Policy(write="allow", writable=("../more",)))["external_directory"]
    assert made == {"*": "deny", "/work/more": "allow", "/work/more/*": "allow"}


def test_only_listed_tools_may_be_used_and_deny_wins() -> None:
    policy = Policy(allow_tools=("bash", "notes_keep", "read"), deny_tools=("read",))
    made = rules(policy, mcp_servers=[{"name": "notes", "command": ["notes"]}])
    assert {name: verb for name, verb in made.items() if verb == "allow"} == {
        "bash": "allow",
        "notes_keep": "allow",
        "external_directory": "allow",
    }
    assert made["*"] == "deny"
    assert rules(Policy.native()) == {}


def test_the_first_shell_rule_that_matches_decides_and_strict_refuses_them_all() -> None:
    policy = Policy(shell_rules=("deny git push *", "allow git *"))
    assert list(rules(policy)["bash"].items()) == [
        ("*", "deny"),
        ("git *", "allow"),
        ("git push *", "deny"),
    ]
    with pytest.raises(errors.PolicyNotEnforceable, match="> file"):
        prepare(AGENT.name, {"policy": policy, "meter": False})


def test_the_report_says_what_ask_becomes_and_what_cannot_be_enforced() -> None:
    compiled = compile_policy(AGENT, Policy())
    assert decisions(compiled)["write"] == "deny (native)"
    assert "ask→deny" in next(row.note for row in compiled.report if row.capability == "write")
    network = report(Policy(shell="allow", network="deny"))["network"]
    assert network == "deny (native) · commands: deny (not enforced)"
    assert report(Policy(allow_tools=("write",)))["write"].startswith("deny (not enforced)")
    assert report(Policy(allow_tools=("write", "edit")))["write"].startswith("deny (native)")
    one = report(Policy(write="allow", deny_tools=("write",)))["write"]
    assert one == "not offered · write, protected names: deny (native)"


@pytest.mark.parametrize(
    "option",
    [
        {"images": ["a.png"]},
        {"session_mode": "plan"},
        {"max_turns": 3},
        {"permission_mode": "auto"},
    ],
)
def test_unsupported_options_are_refused_by_name(option: dict[str, Any]) -> None:
    (name,) = option
    with pytest.raises(errors.ConfigError, match=f"opencode-cli has no option '{name}'"):
        prepare(AGENT.name, option)


@pytest.mark.parametrize(
    ("finish", "code", "kind"),
    [
        (TurnEnd(ok=True), 1, errors.ProcessFailed),
        (TurnEnd(ok=False, kind="length"), 0, errors.ContextLengthExceeded),
        (TurnEnd(ok=False, kind="content-filter"), 0, errors.ContentRefused),
        (TurnEnd(ok=False, kind="unknown"), 0, errors.StreamBroken),
        (TurnEnd(ok=False, kind="503", message="no"), 1, errors.ServerFailed),
        (TurnEnd(ok=False, kind="403", message="no"), 1, errors.AccessDenied),
        (TurnEnd(ok=False, kind="429", message="quota spent"), 1, errors.QuotaSpent),
        (None, 0, errors.StreamBroken),
        (None, 127, errors.BrokenInstall),
    ],
)
def test_success_needs_the_last_step_and_a_clean_exit(
    finish: TurnEnd | None, code: int, kind: type[errors.CorralError]
) -> None:
    assert type(explained(AGENT, finish, code, answered=True)) is kind


def test_a_turn_with_an_answer_succeeds_and_one_without_fails() -> None:
    assert explained(AGENT, TurnEnd(ok=True), 0, answered=True) is None
    assert type(explained(AGENT, TurnEnd(ok=True), 0)) is errors.EmptyAnswer
    assert type(explained(AGENT, TurnEnd(ok=True), None, answered=True)) is errors.KilledBySignal
    assert (
        type(explained(AGENT, None, 1, stderr="Error: Session not found", answered=True))
        is errors.ResumeLost
    )
