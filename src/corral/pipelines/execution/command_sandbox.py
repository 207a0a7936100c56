"""The sandbox for the command of a pipeline's node.

With ``sandbox=auto`` or ``require`` of the node, of the run or of ``corral.toml``, the command runs
in the sandbox, because it may execute what an agent wrote. It can write the workspace, whatever the
policy says of the agents' edits. The policy decides about the network, its hosts and ``.git``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from corral.options import RunOptions, SandboxMode
from corral.pipelines.execution import agent_call
from corral.pipelines.execution.handlers import NodeContext
from corral.policy import Policy

if TYPE_CHECKING:
    from corral.system.sandbox.sandbox import Sandbox


def command_sandbox(work: NodeContext) -> Sandbox | None:
    """None: the command runs without one. Raises ``SandboxFailed`` if one is required that this
    machine does not have, and ``ConfigError`` for a folder around which none can be built."""
    return sandbox_for(work, (str(work.folder),) if work.writes_files else ())


def sandbox_for(
    work: NodeContext,
    own: tuple[str, ...],
    *,
    forced: SandboxMode | None = None,
    default: SandboxMode | None = None,
    policy: Policy | None = None,
) -> Sandbox | None:
    """The same for a command that may also write the folders ``own``. ``forced``: instead of the
    mode of the node and the run; ``default``: if they have none. ``policy``: instead of theirs."""
    chosen = forced or _mode(work) or default
    if chosen not in ("auto", "require"):
        return None
    from corral.sessions import sandbox

    policy = policy or agent_call.policy_of(work)
    run = RunOptions.build(agent_call.BUILT_IN, {"sandbox": chosen, "policy": policy})
    return sandbox.for_user_command(run, str(work.workspace), own)


def _mode(work: NodeContext) -> object:
    if text := work.node.text("sandbox"):
        return agent_call.sandbox_mode(work.node, text)
    if given := work.resources.options.get("sandbox"):
        return given
    return work.resources.configured_sandbox
