"""The environment of a child process, and the redaction of secrets."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.stream_checks import no_deadline

from corral._agents import registry
from corral._system.environment import (
    Environment,
    SecretRedactor,
    gather,
    named_secrets,
    with_variables,
)
from corral.errors import ConfigError
from corral.options import RunOptions
from corral.values import McpServer

OURS = {
    "PATH": "/bin",
    "HOME": "/home/me",
    "LC_ALL": "C.UTF-8",
    "HTTPS_PROXY": "http://proxy",
    "GEMINI_API_KEY": "canary-gemini-key",
    "GOOGLE_CLOUD_PROJECT": "my-project",
    "OPENAI_API_KEY": "canary-openai-key",
    "DATABASE_URL": "postgres://canary",
    "AWS_SECRET_ACCESS_KEY": "canary-aws-key",
    "LD_PRELOAD": "/tmp/x.so",
    "NODE_OPTIONS": "--require /tmp/x.js",
    "MY_TOKEN": "canary-my-token",
    "GIT_DIR": "/elsewhere",
}


def gathered(**options: Any) -> Environment:
    run = RunOptions.build("gemini-cli", options)
    return gather(registry.find("gemini-cli"), run, OURS)


def test_only_the_base_variables_and_the_agents_own_are_passed() -> None:
    assert set(gathered().values) == {
        "PATH",
        "HOME",
        "LC_ALL",
        "HTTPS_PROXY",
        "NO_PROXY",  # this machine
        "no_proxy",
        "GEMINI_API_KEY",
        "GOOGLE_CLOUD_PROJECT",
    }


@pytest.mark.parametrize(
    ("agent", "variable", "end"),
    [
        ("gemini-cli", "GOOGLE_GEMINI_BASE_URL", "/v1beta"),
        ("gemini-acp", "GOOGLE_GEMINI_BASE_URL", "/v1beta"),
        ("antigravity-acp", "GOOGLE_GEMINI_BASE_URL", "/v1beta"),
        ("claude-cli", "ANTHROPIC_BASE_URL", "/v1"),
        ("claude-acp", "ANTHROPIC_BASE_URL", "/v1"),
        ("qwen-cli", "ANTHROPIC_BASE_URL", "/v1"),
        ("goose-acp", "GOOGLE_HOST", "/v1beta"),
        ("goose-acp", "ANTHROPIC_HOST", "/v1"),
    ],
)
def test_a_base_url_is_passed_without_the_version_that_the_agent_appends(
    agent: str, variable: str, end: str
) -> None:
    spec = registry.find(agent)
    for url in ("http://x/a", f"http://x/a{end}", f"http://x/a{end}/"):
        for run, ours in (({}, {variable: url}), ({"env": {variable: url}}, {})):
            passed = gather(spec, RunOptions.build(agent, run), ours)
            assert passed.values[variable] == "http://x/a"
            assert passed.agent_values[variable] == "http://x/a"
    assert variable not in gather(spec, RunOptions.build(agent, {}), {}).values


def test_named_variables_are_passed_and_missing_ones_are_ignored() -> None:
    values = gathered(pass_env=["DATABASE_URL", "NOT_THERE"]).values
    assert values["DATABASE_URL"] == "postgres://canary"
    assert "NOT_THERE" not in values


def test_given_variables_win_over_our_own() -> None:
    found = gathered(env={"PATH": "/mine", "GEMINI_API_KEY": "another-key-given"})
    assert found.values["PATH"] == "/mine"
    assert found.agent_values["GEMINI_API_KEY"] == "another-key-given"


def test_the_agents_own_variables_are_only_its_own() -> None:
    assert set(gathered(env={"X": "y"}).agent_values) == {"GEMINI_API_KEY", "GOOGLE_CLOUD_PROJECT"}


def test_a_variable_name_with_a_star_matches_by_its_prefix() -> None:
    agent = msgspec.structs.replace(registry.find("gemini-cli"), env_names=("MY_*",))
    found = gather(agent, RunOptions(agent="x"), OURS)
    assert found.agent_values == {"MY_TOKEN": "canary-my-token"}


@pytest.mark.parametrize("where", ["ours", "given"])
def test_cloud_keys_are_passed_only_if_the_model_is_in_that_cloud(where: str) -> None:
    claude, switch = registry.find("claude-cli"), {"CLAUDE_CODE_USE_BEDROCK": "1"}
    assert "AWS_SECRET_ACCESS_KEY" not in gather(claude, RunOptions(agent="x"), OURS).values
    given = RunOptions(agent="x", env=switch if where == "given" else {})
    ours = {**OURS, **switch} if where == "ours" else OURS
    found = gather(claude, given, ours)
    assert found.agent_values["AWS_SECRET_ACCESS_KEY"] == "canary-aws-key"
    assert found.secrets["AWS_SECRET_ACCESS_KEY"] == "canary-aws-key"


def test_secrets_are_found_by_the_agents_spec_or_by_name() -> None:
    found = gathered(
        pass_env=["MY_TOKEN", "DATABASE_URL"],
        env={"DB_PASSWORD": "canary-password", "MODE": "not-a-secret-value"},
        mcp_servers=[
            {"name": "s", "url": "http://x", "headers": {"Authorization": "Bearer canary-bearer"}}
        ],
    )
    assert found.secrets == {
        "GEMINI_API_KEY": "canary-gemini-key",
        "MY_TOKEN": "canary-my-token",
        "DB_PASSWORD": "canary-password",
        "s:Authorization": "canary-bearer",
    }


def test_secrets_that_the_agent_does_not_see_are_redacted_too() -> None:
    """It may meet them in a file. A mode or a number is not a secret: the protocol has it too."""
    ours = {
        **OURS,
        "AUTH_TYPE": "subscription",
        "KEY_ID": "1234567890",
        "GITHUB_PAT": "pat-0123456789",
    }
    found = gather(registry.find("gemini-cli"), RunOptions.build("gemini-cli"), ours)
    assert set(found.secrets) == {"GEMINI_API_KEY"}
    hidden = {"OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY", "MY_TOKEN", "GITHUB_PAT"}
    assert set(found.redacted) == {"GEMINI_API_KEY", *hidden}
    assert not hidden & found.values.keys()


def test_a_given_key_is_a_secret_too() -> None:
    secrets = gathered(env={"GEMINI_API_KEY": "canary-other-key"}).secrets
    assert secrets["GEMINI_API_KEY"] == "canary-other-key"


def test_a_value_too_short_to_be_a_secret_is_not_redacted() -> None:
    assert "A_TOKEN" not in gathered(env={"A_TOKEN": "on"}).secrets


def test_a_secret_is_redacted_and_named() -> None:
    redactor = SecretRedactor({"KEY": "canary-1", "LONGER": "canary-1-and-more"})
    assert redactor.clean(b"a canary-1-and-more b canary-1") == (
        b"a [LONGER redacted] b [KEY redacted]"
    )
    assert redactor.clean_text("x canary-1 ü") == "x [KEY redacted] ü"


def test_without_secrets_nothing_changes() -> None:
    assert SecretRedactor({}).clean_text("lone \ud800 half") == "lone \ud800 half"


@pytest.mark.parametrize(
    "secret", ['with"quote', "with\\slash", "with\ttab-x", "ünïcödé-x", "a/b/c/d/e"]
)
def test_a_secret_inside_json_is_redacted_in_every_escaped_form(secret: str) -> None:
    import json

    redactor = SecretRedactor({"KEY": secret})
    for escaped in (json.dumps({"a": secret}), json.dumps({"a": secret}, ensure_ascii=False)):
        cleaned = redactor.clean(escaped.encode())
        assert json.loads(cleaned) == {"a": "[KEY redacted]"}


@pytest.mark.deep
@no_deadline
@given(
    secret=st.text(alphabet="abc-", min_size=8, max_size=12),
    before=st.text(),
    after=st.text(),
)
def test_no_text_contains_the_secret(secret: str, before: str, after: str) -> None:
    text = f"{before}{secret}{after}"
    assert secret not in SecretRedactor({"KEY": secret}).clean_text(text)


@pytest.mark.parametrize("secret", ["canary-key-0123456789", "schlüssel-ßßß-0123456789"])
def test_a_cut_inside_a_secret_shows_no_part_of_it(secret: str) -> None:
    redactor = SecretRedactor({"KEY": secret, "OTHER": "another-secret"})
    complete = f"before {secret} after".encode()
    begin = complete.index(secret.encode())
    for at in range(begin + 1, begin + len(secret.encode())):
        head, tail = complete[:at], complete[at:]
        assert redactor.clean_part(tail, begin_cut=True).decode() == "… after"
        assert redactor.clean_part(head, end_cut=True).decode() == "before …"
        text = tail.decode(errors="replace")
        assert redactor.clean_text_part(text, begin_cut=True) == "… after"
        text = head.decode(errors="replace")
        assert redactor.clean_text_part(text, end_cut=True) == "before …"


def test_text_that_was_not_cut_keeps_what_looks_like_part_of_a_secret() -> None:
    redactor = SecretRedactor({"KEY": "canary-key-0123456789"})
    assert redactor.clean_text_part("789 and canary") == "789 and canary"
    assert redactor.clean_text_part("x789 and canary?", begin_cut=True, end_cut=True) == (
        "x789 and canary?"
    )
    assert SecretRedactor({}).clean_text_part("lone \ud800", begin_cut=True) == "lone \ud800"


@pytest.mark.parametrize(
    "url",
    [
        "http://alice:s3cretpassw0rd@p.test:3128",
        "alice:s3cretpassw0rd@p.test:3128",
        "//alice:s3cretpassw0rd@p.test:3128",
        "http://alice:/#s3cretpassw0rd@p.test:3128",
        "socks5://alice:s3cretpassw0rd@p.test",
    ],
)
@pytest.mark.parametrize("name", ["HTTPS_PROXY", "all_proxy"])
def test_the_password_of_a_proxy_is_a_secret_however_the_proxy_is_written(
    name: str, url: str
) -> None:
    cleaned = SecretRedactor(named_secrets({name: url})).clean_text(f"see {url} and {url[7:]}")
    assert "s3cret" not in cleaned


@pytest.mark.parametrize("url", ["http://p.test:3128", "p.test:3128", "http://alice@p.test"])
def test_a_proxy_without_a_password_is_no_secret(url: str) -> None:
    assert named_secrets({"HTTPS_PROXY": url}) == {}


def test_this_machine_is_not_reached_through_the_proxy_of_the_user() -> None:
    """Tokens of corral's own servers here are not for that proxy."""
    proxy = {"HTTPS_PROXY": "http://p.test"}
    local = "127.0.0.1,localhost"
    for ours, expected in (
        ({**proxy}, (local, local)),
        ({**proxy, "no_proxy": "a.test"}, (f"a.test,{local}", f"a.test,{local}")),
        ({**proxy, "NO_PROXY": f"{local}, b.test"}, (f"{local},b.test", f"{local},b.test")),
        ({**proxy, "NO_PROXY": "*"}, ("*", None)),
        ({"NO_PROXY": "a.test"}, ("a.test", None)),
    ):
        values = gather(
            registry.find("gemini-cli"), RunOptions.build("gemini-cli", {}), ours
        ).values
        assert (values.get("NO_PROXY"), values.get("no_proxy")) == expected, ours
    chosen = RunOptions.build("gemini-cli", {"env": {**proxy, "NO_PROXY": ""}})
    assert gather(registry.find("gemini-cli"), chosen, {}).values["NO_PROXY"] == ""


def test_variables_in_the_settings_of_an_mcp_server_are_filled_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OURS", "one")
    server = McpServer("s", ("x",), env={"A": "${OURS}-${GIVEN}", "B": "$OURS ${}"})
    assert with_variables(server, {"GIVEN": "two"}).env == {"A": "one-two", "B": "$OURS ${}"}
    with pytest.raises(ConfigError, match="'s': the variable MISSING is not set"):
        with_variables(McpServer("s", url="http://x", headers={"A": "Bearer ${MISSING}"}), {})


@pytest.mark.parametrize("name", ["gemini-cli", "gemini-acp"])
@pytest.mark.parametrize("place", ["our own", "given"])
def test_a_google_key_reaches_the_gemini_cli_under_the_name_that_it_reads(
    name: str, place: str
) -> None:
    agent = registry.find(name)
    key = {"GOOGLE_API_KEY": "a-key-of-ai-studio"}
    ours = key if place == "our own" else {}
    run = RunOptions.build(name, {"env": {} if ours else key})
    found = gather(agent, run, {"PATH": "/bin", **ours})
    for values in (found.values, found.agent_values):
        assert values["GEMINI_API_KEY"] == "a-key-of-ai-studio"
        assert "GOOGLE_API_KEY" not in values
    assert "a-key-of-ai-studio" in found.redacted.values()
    vertex = {**key, "GOOGLE_GENAI_USE_VERTEXAI": "true"}
    kept = gather(agent, RunOptions.build(name), {"PATH": "/bin", **vertex})
    assert kept.agent_values == vertex
