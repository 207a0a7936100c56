"""``tool``: a shell command. ``tool_command``, ``timeout``, ``output_key``; with
``fail_on_error=false`` a non-zero exit code is not a failure. See ``pipelines.shell`` for holes."""

from __future__ import annotations

from corral.errors import ConfigError
from corral.pipelines.execution import resources as node_resources
from corral.pipelines.execution.handlers import Handler, NodeContext
from corral.pipelines.execution.shell import Ran, command_of, run_command, shortened, stage_env
from corral.pipelines.scheduler.outcome import Outcome
from corral.pipelines.templates import as_text
from corral.values import Json

TIMEOUT = 3600.0
"""Seconds, where the node has none."""
TAIL = 2_000
"""Characters of stderr in the reason."""


async def tool(work: NodeContext) -> Outcome:
    """Success where the command exits with 0. Its stdout is kept in ``tool_output.txt``; the
    context has the last 32 KiB of it as ``tool.output`` (also ``tool_stdout``), its last line as
    ``tool.last_line``, and ``tool.stderr`` and ``tool.exit_code``."""
    node = work.node
    text = node.text("tool_command")
    if not text.strip():
        raise ConfigError(f"the tool node {node.id} has no tool_command")
    resources = node_resources.resources_of(work)
    command, holes = command_of(text, work.context)
    timeout = node.seconds("timeout") or TIMEOUT
    goal = as_text(work.context.get("graph.goal")) or work.graph.goal
    ran = await run_command(
        command,
        cwd=work.workspace,
        env={"goal": goal, **resources.command_env(work), **holes, **stage_env(work)},
        pass_env=resources.pass_env(work),
        timeout=timeout,
    )
    ran = ran.redacted(resources.redactor)
    node_resources.write_node_file(work, "tool_output.txt", ran.stdout)
    said = shortened(ran.stdout.decode("utf-8", "replace"))
    updates: dict[str, Json] = {
        "tool.output": said,
        "tool_stdout": said,
        "tool.stderr": shortened(ran.stderr),
        "tool.exit_code": ran.code,
        "tool.last_line": said.rstrip().rpartition("\n")[2].strip(),
    }
    if key := node.text("output_key"):
        updates[key] = said
    if ran.ok or (not ran.late and node.attrs.get("fail_on_error") in (False, "false")):
        return Outcome(context_updates=updates)
    return Outcome(
        status="fail",
        failure_reason=reason(text, ran, timeout),
        failure_class="timeout" if ran.late else "permanent",
        context_updates=updates,
    )


def reason(text: str, ran: Ran, timeout: float) -> str:
    """Why a command failed, with the end of what it said."""
    how = f"exited with {ran.code}" if ran.code is not None else "was killed by a signal"
    if ran.late:
        how = f"did not end within {timeout:g}s"
    said = (ran.stderr.strip() or ran.stdout.decode("utf-8", "replace").strip())[-TAIL:]
    return f"`{text}` {how}" + (f": {said}" if said else "")


HANDLERS: dict[str, Handler] = {"tool": tool}
