"""Shell commands as nodes: they are bounded, leave no process, and no value becomes a command."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.loopback_http import FileServer
from support.nodes import NodeHarness, processes_in
from support.sandbox import needs_sandbox
from support.scripted_agent import child_pids
from support.stream_checks import no_deadline

from corral._pipelines.execution.handlers import NodeResources
from corral._pipelines.execution.shell import shell_command
from corral._pipelines.scheduler.outcome import Outcome
from corral._system import paths
from corral.values import Json


@pytest.fixture
def harness(tmp_path: Path, workspace: Path) -> NodeHarness:
    return NodeHarness(tmp_path / "run", workspace)


async def tool(
    harness: NodeHarness,
    command: str,
    context: dict[str, Json] | None = None,
    **attrs: str | int,
) -> Outcome:
    return await harness.attempt(
        attrs={"type": "tool", "tool_command": command, **attrs}, context=context
    )


async def test_a_command_runs_in_the_workspace_with_the_node_variables(
    harness: NodeHarness, workspace: Path
) -> None:
    outcome = await tool(
        harness, 'pwd; echo "$ATTRACTOR_STAGE_DIR|$ATTRACTOR_NODE_ID|$ATTRACTOR_LOGS_ROOT"'
    )
    run = harness.run_folder
    output = f"{workspace.resolve()}\n{run / 'step'}|step|{run}\n"
    assert outcome.status == "success"
    assert outcome.context_updates == {
        "tool.output": output,
        "tool_stdout": output,
        "tool.stderr": "",
        "tool.exit_code": 0,
        "tool.last_line": f"{run / 'step'}|step|{run}",
    }
    assert harness.read("tool_output.txt") == output


async def test_a_command_is_in_the_process_registry(
    harness: NodeHarness,
) -> None:
    registry = paths.process_registry()
    outcome = await tool(harness, f"cat '{registry}'/*.json")
    entry = json.loads(str(outcome.context_updates["tool.output"]))
    assert (entry["owner"], entry["agent"]) == (os.getpid(), "command")
    assert not list(registry.iterdir())


async def test_an_exit_code_other_than_0_fails_the_node_with_the_output(
    harness: NodeHarness,
) -> None:
    outcome = await tool(harness, "echo some output; echo what is wrong >&2; exit 3")
    assert outcome.status == "fail"
    assert "exited with 3: what is wrong" in outcome.failure_reason
    assert outcome.context_updates["tool.stderr"] == "what is wrong\n"
    assert outcome.context_updates["tool.last_line"] == "some output"
    assert (outcome.retryable, outcome.failure_class) == (None, "permanent")
    assert outcome.context_updates["tool.output"] == "some output\n"


async def test_a_command_that_forks_is_gone_at_its_timeout(
    harness: NodeHarness, workspace: Path
) -> None:
    command = "(trap '' TERM; setsid sleep 300 & sleep 300) & echo started; sleep 300"
    outcome = await tool(harness, command, timeout="300ms")
    assert "did not end within 300ms" in outcome.failure_reason
    assert outcome.context_updates["tool.output"] == "started\n"
    assert processes_in(workspace) == []
    assert child_pids() == []


async def test_processes_that_a_command_started_end_with_it(
    harness: NodeHarness, workspace: Path
) -> None:
    assert (await tool(harness, "sleep 300 & echo done")).status == "success"
    assert processes_in(workspace) == []


async def test_only_the_end_of_much_output_goes_into_the_context(harness: NodeHarness) -> None:
    outcome = await tool(harness, "seq 1 100000")
    output = outcome.context_updates["tool.output"]
    assert isinstance(output, str)
    assert len(output) == 32 * 1024
    assert output.endswith("\n100000\n")
    assert harness.read("tool_output.txt").startswith("1\n2\n3\n")


async def test_output_that_is_not_text_does_not_fail_the_node(harness: NodeHarness) -> None:
    outcome = await tool(harness, r"printf 'a\377\000b'")
    assert outcome.context_updates["tool.output"] == "a\ufffd\0b"


async def test_a_tool_node_without_a_command_fails(harness: NodeHarness) -> None:
    outcome = await tool(harness, " ")
    assert outcome.failure_reason == "the tool node step has no tool_command"
    assert outcome.retryable is False


async def test_a_missing_workspace_fails_the_node(harness: NodeHarness, workspace: Path) -> None:
    workspace.rmdir()
    assert "does not exist" in (await tool(harness, "true")).failure_reason


async def test_commands_do_not_see_secrets_of_the_environment(
    harness: NodeHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "canary-secret-0123456789"
    monkeypatch.setenv("SOME_API_KEY", secret)
    monkeypatch.setenv("PLAIN", "not seen either")
    outcome = await tool(harness, 'echo "[$PLAIN] [$SOME_API_KEY]"')
    assert outcome.context_updates["tool.output"] == "[] []\n"


async def test_a_secret_in_pass_env_is_visible_and_written_to_no_file(
    harness: NodeHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "canary-secret-0123456789"
    monkeypatch.setenv("SOME_API_KEY", secret)
    async with NodeResources(options={"pass_env": ["SOME_API_KEY"]}) as resources:
        outcome = await harness.attempt(
            resources=resources,
            attrs={"type": "tool", "tool_command": 'test -n "$SOME_API_KEY" && env; exit 1'},
        )
    assert "SOME_API_KEY=[SOME_API_KEY redacted]" in str(outcome.context_updates["tool.output"])
    assert secret not in outcome.failure_reason
    assert secret.encode() not in harness.written_bytes()


EVIL = (
    "$(touch evil)",
    "`touch evil`",
    "; touch evil; ",
    "' ; touch evil ; '",
    '" ; touch evil ; "',
    "a\ntouch evil\n",
    "&& touch evil #",
    "${IFS}$(touch${IFS}evil)",
    "\\",
    "{{other}}",
)


@pytest.mark.parametrize("value", EVIL)
@pytest.mark.parametrize(
    "command",
    [
        "printf %s {{last_response}}",
        'printf %s "{{last_response}}"',
        "printf %s {{ .last_response }}",
    ],
)
async def test_a_value_of_the_context_is_an_argument_and_never_a_command(
    harness: NodeHarness, workspace: Path, command: str, value: str
) -> None:
    outcome = await tool(harness, command, {"last_response": value, "other": "$(touch evil)"})
    assert outcome.context_updates["tool.output"] == value
    assert os.listdir(workspace) == []


@settings(no_deadline, max_examples=200)
@given(st.text(), st.sampled_from(["{{x}}", '"{{x}}"', "a{{x}}b", "$(echo {{x}})", "`{{x}}`"]))
def test_no_value_becomes_part_of_the_commands_text(value: str, shape: str) -> None:
    command, env = shell_command(f"printf %s {shape}", {"x": value.replace("\0", "")})
    other, _ = shell_command(f"printf %s {shape}", {"x": "plain"})
    assert command == other
    assert env == {"CONTEXT_X": value.replace("\0", "")}


def test_the_time_is_linear_in_the_number_of_placeholders() -> None:
    """Searching all the text before each placeholder would take too long here."""
    command, env = shell_command("echo $((1)) {{x}}" * 100_000, {"x": "1"})
    assert command == 'echo $((1)) "${CONTEXT_X}"' * 100_000
    assert env == {"CONTEXT_X": "1"}


async def test_a_placeholder_in_single_quotes_is_rejected(harness: NodeHarness) -> None:
    outcome = await tool(harness, "echo '{{x}}'", {"x": "1"})
    assert "single quotes" in outcome.failure_reason
    assert outcome.retryable is False


async def test_a_placeholder_in_arithmetic_is_rejected(harness: NodeHarness) -> None:
    assert "$((" in (await tool(harness, "echo $(( 1 + {{x}} ))", {"x": "1"})).failure_reason
    assert (await tool(harness, "echo $((1 + 1)) {{x}}", {"x": "1"})).status == "success"


async def test_placeholders_reach_into_objects_and_other_templates_stay(
    harness: NodeHarness,
) -> None:
    context: dict[str, Json] = {"plan.output": {"files": ["a", "b"], "n": 3}}
    outcome = await tool(
        harness,
        "printf '%s|' {{plan.output.files.1}} {{plan.output.n}} {{plan.output}} '{{.Names}}'",
        context,
    )
    encoded = json.dumps(context["plan.output"], separators=(",", ":"))
    assert outcome.context_updates["tool.output"] == f"b|3|{encoded}|{{{{.Names}}}}|"


async def test_two_similar_keys_get_different_variables(harness: NodeHarness) -> None:
    outcome = await tool(harness, "echo {{a.b}} {{a_b}} {{a.b}}", {"a.b": "dot", "a_b": "line"})
    assert outcome.context_updates["tool.output"] == "dot line dot\n"


@pytest.mark.parametrize("value", ["a\0b", "x" * 200_000])
async def test_a_value_that_no_command_accepts_is_an_error(
    harness: NodeHarness, value: str
) -> None:
    assert "{{x}}" in (await tool(harness, "echo {{x}}", {"x": value})).failure_reason


async def test_the_goal_is_a_variable_of_the_shell(harness: NodeHarness) -> None:
    outcome = await harness.attempt(
        attrs={"type": "tool", "tool_command": 'echo "$goal"'},
        graph={"goal": "Do $(touch evil) it"},
    )
    assert outcome.context_updates["tool.output"] == "Do $(touch evil) it\n"


@pytest.mark.parametrize(("stream", "length"), [(1, 2_000), (2, 2_000), (2, 16_384)])
async def test_a_failure_reason_contains_no_part_of_a_secret(
    harness: NodeHarness, monkeypatch: pytest.MonkeyPatch, stream: int, length: int
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "canary-secret-0123456789")
    filler = length - len("0123456789")  # the stored part begins inside the secret
    command = f"printf '%s%0{filler}d' $SOME_API_KEY 0 >&{stream}; exit 1"
    async with NodeResources(options={"pass_env": ["SOME_API_KEY"]}) as resources:
        outcome = await harness.attempt(
            resources=resources, attrs={"type": "tool", "tool_command": command}
        )
    assert "0000" in outcome.failure_reason
    assert "123" not in outcome.failure_reason
    assert "123" not in str(outcome.context_updates)


@needs_sandbox
async def test_with_a_sandbox_the_command_is_limited_to_the_workspace(
    harness: NodeHarness, workspace: Path, tmp_path: Path
) -> None:
    (tmp_path / "secret.txt").write_text("secret of another project")
    (workspace / ".git").mkdir()
    async with FileServer(tmp_path) as server:
        command = (
            f"echo x > inside.txt; echo x > $ATTRACTOR_STAGE_DIR/own.txt; echo x > {tmp_path}/out;"
            f" cat {tmp_path}/secret.txt; echo x > .git/config;"
            f" curl -s -m 5 http://127.0.0.1:{server.port}/secret.txt; echo end"
        )
        outcome = await tool(harness, command, sandbox="require")
        assert outcome.context_updates["tool.output"] == "end\n", outcome
        assert (workspace / "inside.txt").exists()
        assert harness.read("own.txt") == "x\n"
        assert not (tmp_path / "out").exists()
        assert list((workspace / ".git").iterdir()) == []
        assert server.paths == []
        async with NodeResources(options={"sandbox": "require", "policy": "all"}) as resources:
            attrs = {"type": "tool", "tool_command": command}
            outcome = await harness.attempt(attrs=attrs, resources=resources)
        # The policy all has the network of the machine, and may write .git.
        assert outcome.context_updates["tool.output"] == "secret of another projectend\n"
        stderr = outcome.context_updates["tool.stderr"]
        assert f"corral: what git starts in {workspace} was changed: x." in str(stderr)
        assert (workspace / ".git" / "config").exists()
        assert not (tmp_path / "out").exists()


async def test_without_auto_or_require_the_command_runs_outside(
    harness: NodeHarness, tmp_path: Path
) -> None:
    for mode in ("needed", "off"):
        outcome = await tool(harness, f"echo {mode} > {tmp_path}/out", sandbox=mode)
        assert outcome.status == "success"
        assert (tmp_path / "out").read_text() == f"{mode}\n"
    outcome = await tool(harness, "true", sandbox="sometimes")
    assert "sandbox must be one of" in (outcome.failure_reason or "")
