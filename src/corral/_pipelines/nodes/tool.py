"""``tool``: a shell command.

Attributes: ``tool_command``, ``timeout``, ``output_key``, and ``sandbox`` and ``policy`` (see
``execution.node_options``). With ``fail_on_error=false`` an exit code other than 0 is not a
failure. ``execution.shell`` says how placeholders are filled.
"""

from __future__ import annotations

from corral._pipelines.execution.handlers import NodeContext
from corral._pipelines.execution.node_options import command_sandbox
from corral._pipelines.execution.shell import last_bytes, node_env, run_shell_command, shell_command
from corral._pipelines.scheduler.outcome import Outcome
from corral._pipelines.templates import as_text
from corral.errors import ConfigError
from corral.values import JsonObject

TIMEOUT = 3600.0
"""Seconds, if the node has no ``timeout``."""


async def tool(work: NodeContext) -> Outcome:
    """Success if the command exits with 0. ``tool_output.txt`` has its stdout; the context has the
    last 32 KiB of it as ``tool.output`` (also ``tool_stdout``), its last line as
    ``tool.last_line``, and ``tool.stderr`` and ``tool.exit_code``."""
    node, resources = work.node, work.resources
    text = node.text("tool_command")
    if not text.strip():
        raise ConfigError(f"the tool node {node.id} has no tool_command")
    command, values = shell_command(text, work.context)
    timeout = node.seconds("timeout") or TIMEOUT
    goal = as_text(work.context.get("graph.goal")) or work.graph.goal
    done = await run_shell_command(
        command,
        cwd=work.workspace,
        env={"goal": goal, **resources.command_env(work), **values, **node_env(work)},
        pass_env=resources.pass_env(work),
        timeout=timeout,
        sandbox=command_sandbox(work),
    )
    done = done.redacted(resources.redactor)
    work.write_file("tool_output.txt", done.stdout)
    output = last_bytes(done.stdout.decode("utf-8", "replace"))
    updates: JsonObject = {
        "tool.output": output,
        "tool_stdout": output,
        "tool.stderr": last_bytes(done.stderr),
        "tool.exit_code": done.code,
        "tool.last_line": output.rstrip().rpartition("\n")[2].strip(),
    }
    if key := node.text("output_key"):
        updates[key] = output
    if done.ok or (not done.timed_out and node.attrs.get("fail_on_error") in (False, "false")):
        return Outcome(context_updates=updates)
    tail = done.output_tail()
    return Outcome(
        status="fail",
        failure_reason=f"`{text}` {done.end(timeout)}" + (f": {tail}" if tail else ""),
        failure_class="timeout" if done.timed_out else "permanent",
        context_updates=updates,
    )
