"""The variables that commands see, and the parts of their output that a model gets."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.nodes import NodeHarness, ScriptedModel

from corral._pipelines.execution.handlers import NodeResources
from corral._system.environment import FOR_COMMANDS, for_commands, named_secrets
from corral.testing import call, say

pytest_plugins = ("support.node_fixtures",)

SECRETS = {
    "DATABASE_URL": "postgres://app:canary-db-password@db.example/app",
    "CORRAL_DB": "postgresql://corral:canary-corral-pw@db.example/corral",
    "REDIS_URL": "redis://:canary-redis-pw@cache.example:6379/0",
    "AMQP_URI": "amqp://user:canary-amqp-pw@mq.example",
    "SENTRY_DSN": "https://canary0sentry0dsn0key@sentry.example/1",
    "PG_CONNECTION_STRING": "host=db user=app password=canary-conn-pw",
    "MONGO_DSN": "canary-mongo-dsn-value",
    "AWS_ACCESS_KEY_ID": "AKIACANARY0000000000",
    "AWS_SECRET_ACCESS_KEY": "canary-aws-secret-access-key",
    "AWS_SESSION_TOKEN": "canary-aws-session-token",
    "GITHUB_PAT": "canary-github-pat",
    "GITHUB_TOKEN": "canary-github-token",
    "GH_TOKEN": "canary-gh-token",
    "GITLAB_PRIVATE_TOKEN": "canary-gitlab-token",
    "NPM_TOKEN": "canary-npm-token",
    "PYPI_PASSWORD": "canary-pypi-password",
    "TWINE_PASSWORD": "canary-twine-password",
    "OPENAI_API_KEY": "canary-openai-api-key",
    "ANTHROPIC_API_KEY": "canary-anthropic-api-key",
    "SLACK_WEBHOOK_URL": "https://hooks.example/services/canary-webhook",
    "STRIPE_KEY": "canary-stripe-key",
    "JWT_SECRET": "canary-jwt-secret",
    "SESSION_COOKIE": "canary-session-cookie",
    "DJANGO_SECRET_KEY": "canary-django-secret",
    "VAULT_TOKEN": "canary-vault-token",
    "KUBE_TOKEN": "canary-kube-token",
    "DOCKER_AUTH_CONFIG": '{"auths": {"canary-docker-auth": {}}}',
    "AZURE_CLIENT_SECRET": "canary-azure-secret",
    "GPG_PASSPHRASE": "canary-gpg-passphrase",
    "PGPASSWORD": "canary-pgpassword",
    "MYSQL_PWD": "canary-mysql-pwd",
    "SMTP_PASS": "canary-smtp-pass",
    "BASIC_AUTH": "canary-basic-auth",
    "HEROKU_API_KEY": "canary-heroku-api-key",
    "PIP_INDEX_URL": "https://user:canary-index-pw@pypi.example/simple",
}
OTHERS = {
    "INTERNAL_HOST": "canary-internal-host",
    "SSH_AUTH_SOCK": "/canary/agent.sock",
    "LD_PRELOAD_NOT": "canary-preload",
    "NODE_OPTIONS": "--title=canary-node",
    "PYTHONPATH": "/canary/python",
    "GIT_DIR": "/canary/git",
    "BASH_ENV": "/canary/bash",
}
PLANTED = {**SECRETS, **OTHERS}
USUAL = {"PATH", "HOME", "TERM", "LANG", "TMPDIR"}


@pytest.fixture(autouse=True)
def planted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in PLANTED.items():
        monkeypatch.setenv(name, value)
    for name in USUAL - {"PATH", "HOME", "TMPDIR"}:
        monkeypatch.setenv(name, "C.UTF-8" if name == "LANG" else "dumb")
    monkeypatch.setenv("TMPDIR", str(tmp_path))


def seen(path: Path) -> set[str]:
    return {line.partition("=")[0] for line in path.read_text().splitlines()}


def test_the_environment_has_many_secrets() -> None:
    assert len(PLANTED) == 42


@pytest.mark.parametrize("passed", [(), ("GITHUB_PAT", "INTERNAL_HOST")])
async def test_every_command_sees_the_same_few_variables(
    harness: NodeHarness,
    scripted_model: ScriptedModel,
    workspace: Path,
    passed: tuple[str, ...],
) -> None:
    """The shell tool of the built-in agent, its hooks, ``until``, and a tool node."""
    script = [call("shell", command="env > by-shell"), say("Done.")]
    graph = {"pass_env": ",".join(passed)} if passed else {}
    async with scripted_model.resources(script, policy="all") as resources:
        outcome = await harness.attempt(
            resources=resources,
            attrs={
                "prompt": "Go",
                "until": "env > by-until",
                "tool_hooks.pre": "env > by-pre-hook",
                "tool_hooks.post": "env > by-post-hook",
            },
            graph=graph,
        )
        assert outcome.ok, outcome
        outcome = await harness.attempt(
            resources=resources,
            attrs={"type": "tool", "tool_command": "env > by-tool-node"},
            graph=graph,
        )
        assert outcome.ok, outcome
    for name in ("shell", "until", "pre-hook", "post-hook", "tool-node"):
        found = seen(workspace / f"by-{name}")
        assert found & PLANTED.keys() == {*passed}, name
        assert found >= USUAL, name


async def test_a_secret_in_command_output_reaches_no_model_and_no_file(
    harness: NodeHarness, scripted_model: ScriptedModel, workspace: Path
) -> None:
    """The secrets of the environment are also in files, as in real projects."""
    (workspace / "dump").write_text("\n".join(f"{k}={v}" for k, v in SECRETS.items()))
    script = [call("shell", command="cat dump"), say("One."), say("Two."), say("Three.")]
    async with scripted_model.resources(script, policy="all") as resources:
        done = await harness.attempt(
            "agent",
            resources=resources,
            attrs={"prompt": "Go", "until": "cat dump; false", "rounds": 1},
        )
        tool = await harness.attempt(
            "tool",
            resources=resources,
            attrs={"type": "tool", "tool_command": "cat dump; cat dump >&2; exit 1"},
        )
        await harness.attempt(
            "prompt",
            resources=resources,
            attrs={"type": "prompt", "prompt": "Say: {{tool.output}}"},
            context=tool.context_updates,
        )
    sent = str([request.body for request in scripted_model.lane.requests])
    everything = f"{sent} {done} {tool} {harness.events}" + harness.written_bytes().decode()
    assert "GITHUB_PAT" in sent
    assert [name for name, value in SECRETS.items() if value in everything] == []
    assert "canary" not in everything


def test_a_url_with_a_password_is_a_secret() -> None:
    found = named_secrets({"DATABASE_URL": "postgres://app:s3cr3t%40pw-long@db/app"})
    assert {"s3cr3t%40pw-long", "s3cr3t@pw-long"} <= {*found.values()}
    assert named_secrets({"HTTPS_PROXY": "http://me:proxy-pass@proxy:3128"})
    assert named_secrets({"REMOTE": "https://ghp_0123456789abcdef@github.com/x"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DATABASE_URL", "sqlite:///data.sqlite"),
        ("CORRAL_DB", "/var/lib/corral/runs.db"),
        ("BASE_URL", "https://example.org/path"),
        ("REMOTE", "ssh://git@github.com/owner/name"),
        ("GIT_AUTHOR_NAME", "Somebody Longname"),
        ("PWD", "/home/user/work"),
        ("EDITOR", "vim with arguments"),
    ],
)
def test_values_that_are_not_secret_are_not_redacted(name: str, value: str) -> None:
    assert named_secrets({name: value}) == {}


def test_the_variables_for_commands_contain_no_secret() -> None:
    assert not [name for name in FOR_COMMANDS if named_secrets({name: "any-value-at-all"})]
    assert for_commands(environ={"LC_ALL": "C", "X": "y"}) == {"LC_ALL": "C"}


async def test_a_trusted_config_file_passes_variables(
    harness: NodeHarness, workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trusted = tmp_path / "trusted.toml"
    trusted.write_text('[defaults]\npass_env = ["INTERNAL_HOST"]\n')
    monkeypatch.setenv("CORRAL_CONFIG", str(trusted))
    async with NodeResources() as resources:
        await harness.attempt(
            resources=resources, attrs={"type": "tool", "tool_command": "env > seen"}
        )
    assert seen(workspace / "seen") & PLANTED.keys() == {"INTERNAL_HOST"}


async def test_a_token_of_a_node_is_redacted_whatever_the_name_of_its_variable(
    harness: NodeHarness, workspace: Path
) -> None:
    attrs = {"type": "tool", "tool_command": "cat dump", "bearer_env": "INTERNAL_HOST"}
    (workspace / "dump").write_text("it is canary-internal-host")
    async with NodeResources() as resources:
        outcome = await harness.attempt(resources=resources, attrs=attrs)
    assert outcome.context_updates["tool.output"] == "it is [INTERNAL_HOST redacted]"
