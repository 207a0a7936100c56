"""``corral.toml`` and policy files."""

from __future__ import annotations

from pathlib import Path

import pytest

from corral._system import paths
from corral._system.config import UNTRUSTED_OPTIONS, default_agent, load, read_policy
from corral.errors import ConfigError, PolicyError, UnknownAgent
from corral.options import KNOWN, RunOptions
from corral.policy import Policy


@pytest.fixture(autouse=True)
def _here(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workspace)
    monkeypatch.delenv("CORRAL_PROBE")  # it is an option of every run


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    return path


def test_without_any_file_nothing_is_set() -> None:
    assert load("gemini-cli") == {}


def test_an_agents_table_wins_over_the_defaults() -> None:
    write(
        paths.user_config(),
        '[defaults]\ntimeout = 1\nmodel = "a"\n[agents.gemini-cli]\nmodel = "b"\n',
    )
    assert load("gemini-cli") == {"timeout": 1, "model": "b"}


def test_an_agents_table_may_have_any_of_its_names() -> None:
    write(paths.user_config(), '[agents.gemini_cli]\nmodel = "b"\n')
    assert load("gemini-cli") == {"model": "b"}


def test_a_table_of_an_unknown_agent_is_a_warning() -> None:
    write(paths.user_config(), '[agents.gemni-cli]\nmodel = "c"\n')
    with pytest.warns(UserWarning, match="Did you mean 'gemini-cli'"):
        assert load("gemini-cli") == {}


def test_the_folders_file_wins_over_the_users() -> None:
    write(paths.user_config(), "[defaults]\ntimeout = 3\ngrace = 1\n")
    write(Path("corral.toml"), "[defaults]\ntimeout = 2\nmax_turns = 5\n")
    assert load("gemini-cli") == {"timeout": 2, "grace": 1, "max_turns": 5}


@pytest.mark.parametrize(
    ("own", "given"),
    [
        ("timeout = 60", 'timeout = "2m"'),
        ("max_turns = 3", "max_turns = 4"),
        ("retries=0", "retries=9"),
    ],
)
def test_the_folders_file_does_not_raise_a_limit_of_the_user(own: str, given: str) -> None:
    write(paths.user_config(), f"[defaults]\n{own}\n")
    write(Path("corral.toml"), f"[agents.gemini-cli]\n{given}\n")
    with pytest.raises(ConfigError, match=f"may not raise {own.partition('=')[0].strip()} above"):
        load("gemini-cli")


def test_the_folders_file_does_not_choose_the_model() -> None:
    write(Path("corral.toml"), '[defaults]\nmodel = "the-dearest"\n')
    with pytest.raises(ConfigError, match="may not set model"):
        load("gemini-cli")


@pytest.mark.parametrize("name", sorted(set(KNOWN) - UNTRUSTED_OPTIONS))
def test_a_file_in_the_current_directory_may_set_only_harmless_options(name: str) -> None:
    write(Path("corral.toml"), f'[agents.gemini-cli]\n{name} = "x"\n')
    with pytest.raises(ConfigError, match=f"may not set {name}") as raised:
        load("gemini-cli")
    assert "--config corral.toml" in (raised.value.hint or "")


def test_harmless_options_include_no_permissions_and_no_programs() -> None:
    rights = {"policy", "approval_mode", "allowed_tools", "strict", "sandbox", "inherit"}
    programs = {"program", "env", "pass_env", "mcp_servers", "config"}
    reach = {"cwd", "include_directories", "prompt_file", "images", "expand_files"}
    output = {"system_prompt", "replace_system_prompt", "resume"}
    assert not UNTRUSTED_OPTIONS & (rights | programs | reach | output)
    assert set(KNOWN) >= UNTRUSTED_OPTIONS


def test_a_file_named_by_the_user_is_trusted_and_used_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(paths.user_config(), "[defaults]\ngrace = 1\n")
    named = write(tmp_path / "mine.toml", '[defaults]\nprogram = "/x"\npolicy = "all"\n')
    monkeypatch.setenv("CORRAL_CONFIG", str(named))
    assert load("gemini-cli") == {"program": "/x", "policy": "all"}


def test_an_empty_name_means_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    write(paths.user_config(), "[defaults]\ngrace = 1\n")
    monkeypatch.setenv("CORRAL_CONFIG", "")
    assert load("gemini-cli") == {}


def test_a_file_that_is_named_and_missing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORRAL_CONFIG", "/no/such.toml")
    with pytest.raises(ConfigError, match=r"/no/such\.toml: No such file"):
        load("gemini-cli")


def test_a_policy_table_becomes_a_policy() -> None:
    write(paths.user_config(), '[defaults.policy]\npreset = "edits"\ndeny_tools = ["x"]\n')
    assert load("gemini-cli") == {
        "policy": Policy(
            read="allow",
            write="allow",
            shell="deny",
            network="deny",
            own_mcp="allow",
            deny_tools=("x",),
        )
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[defaults\n", r"corral\.toml: .*line 1, column 10"),
        ("[default]\nx = 1\n", "unknown table 'default'"),
        ("defaults = 1\n", "defaults must be a table of options"),
        ("agents = 1\n", "agents must be a table of options"),
        ("[agents]\ngemini-cli = 1\n", "gemini-cli must be a table of options"),
        ("timeout = 1\n", "unknown key 'timeout'"),
        (
            "[defaults]\nmodel = gemini\n",
            r"corral\.toml: Invalid value: expected .* quotes .*line 2",
        ),
    ],
)
def test_an_invalid_file_is_an_error_with_its_position(text: str, message: str) -> None:
    write(paths.user_config(), text)
    with pytest.raises(ConfigError, match=message):
        load("gemini-cli")


def test_a_file_that_is_not_utf_8_is_refused() -> None:
    paths.user_config().parent.mkdir(parents=True)
    paths.user_config().write_bytes(b'[defaults]\nmodel = "\xff"\n')
    with pytest.raises(ConfigError, match="not UTF-8"):
        load("gemini-cli")


def test_a_policy_file_is_read_completely(tmp_path: Path) -> None:
    path = write(
        tmp_path / "p.toml",
        'read = "allow"\nshell = "deny"\nshell_rules = ["allow git status"]\nallow_tools = []\n',
    )
    assert read_policy(path) == Policy(
        shell="deny", shell_rules=("allow git status",), allow_tools=()
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("read = \n", r"p\.toml: .*line 1, column"),
        ('shel = "deny"\n', r"p\.toml: unknown key 'shel'"),
        ('shell = "no"\n', r"p\.toml: shell must be allow, ask or deny"),
        ('preset = "most"\n', r"p\.toml: preset must be reads, edits or all"),
        ('shell_rules = ["git"]\n', r"p\.toml: shell_rules: a shell rule must be"),
    ],
)
def test_an_invalid_policy_file_is_an_error_with_its_position(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(PolicyError, match=message):
        read_policy(write(tmp_path / "p.toml", text))


def test_a_policy_file_that_is_missing_is_a_policy_error(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="No such file"):
        read_policy(tmp_path / "none.toml")


def test_a_private_file_is_written_atomically_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b"
    paths.write_private(path, b"one")
    paths.write_private(path, b"two")
    assert path.read_bytes() == b"two"
    assert path.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == ["b"]


def test_a_file_that_cannot_be_replaced_leaves_no_draft(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError, match="taken"):
        paths.write_private(tmp_path / "taken", b"x")
    assert [entry.name for entry in tmp_path.iterdir() if entry.name.startswith(".")] == []


@pytest.mark.parametrize(
    ("file", "variable", "model", "agent"),
    [
        ("", "", None, "gemini-acp"),
        ('agent = "claude"', "", None, "claude"),
        ('agent = "claude"', "codex", None, "codex"),
        ('agent = "claude"', "codex", "openai:gpt-5", "openai:gpt-5"),
        ('agent = "claude"', "", "claude-opus", "claude"),
        ('[defaults]\nmodel = "gemini:x"', "", None, "gemini:x"),
        ('[defaults]\nmodel = "gemini/x"', "", None, "gemini:x"),
        ('[defaults]\nmodel = "gemini:x"', "codex", None, "codex"),
        ('[defaults]\nmodel = "gemini-2.5-flash"', "", None, "gemini-acp"),
    ],
)
def test_the_agent_of_a_run_that_names_none(
    file: str, variable: str, model: str | None, agent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(paths.user_config(), file)
    monkeypatch.setenv("CORRAL_AGENT", variable)
    assert default_agent(model) == agent


def test_a_folders_file_may_not_choose_the_agent() -> None:
    write(Path("corral.toml"), 'agent = "claude"\n')
    assert default_agent() == "gemini-acp"
    with pytest.raises(ConfigError, match="may not set agent"):
        load("gemini-cli")


def test_a_name_that_no_agent_has_says_where_it_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write(paths.user_config(), 'agent = "claud"')
    with pytest.raises(UnknownAgent, match=r"corral\.toml: agent: no agent is called") as raised:
        default_agent()
    assert raised.value.hint == "Did you mean 'claude'?"
    monkeypatch.setenv("CORRAL_AGENT", "gemni")
    with pytest.raises(UnknownAgent, match=r"^CORRAL_AGENT: no agent is called 'gemni'"):
        default_agent()


def test_an_invalid_value_says_where_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    write(paths.user_config(), '[defaults]\ntimeout = "soon"')
    with pytest.raises(ConfigError, match=r"^corral\.toml: timeout: 'soon' is not a duration"):
        RunOptions.build("gemini-cli", {}, load("gemini-cli"))
    with pytest.raises(ConfigError, match=r"^timeout: 'late' is not a duration"):
        RunOptions.build("gemini-cli", {"timeout": "late"}, load("gemini-cli"))
    assert RunOptions.build("gemini-cli", {"timeout": 3}, load("gemini-cli")).timeout == 3
    monkeypatch.setenv("CORRAL_PROBE", "maybe")
    with pytest.raises(
        ConfigError, match=r"^CORRAL_PROBE must be one of never, once, require, trust"
    ):
        load("gemini-cli")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("agent = 3", "agent must be the name of an agent"),
        ('[defaults]\nagent = "x"', "agent is not in"),
    ],
)
def test_a_default_agent_that_is_written_wrongly(text: str, message: str) -> None:
    write(paths.user_config(), text)
    with pytest.raises(ConfigError, match=message):
        load("gemini-cli")


@pytest.mark.parametrize(
    ("line", "near"),
    [("agnet = 'x'\n", "Did you mean agent? "), ("[default]\n", "Did you mean [defaults]? ")],
)
def test_an_unknown_name_above_the_options_has_a_proposal(line: str, near: str) -> None:
    write(paths.user_config(), line)
    with pytest.raises(ConfigError) as raised:
        load("gemini-cli")
    assert (raised.value.hint or "").startswith(near)
