"""Who enforces what, where several agents have it in common."""

from __future__ import annotations

from corral.agents.grants import Grants
from corral.agents.spec import Enforced
from corral.options import RunOptions

UNASKED_BY_DEFAULT = "with mode='native' it does not ask about what it allows by itself"
READS_OUTSIDE = "outside the workspace, reading follows the rule for the shell"
NO_SERVERS = Enforced("not offered", "it takes no MCP servers")


def without_rules(grants: Grants, *, offered: bool, note: str = "") -> Enforced:
    """For the shell of an agent that has no rules for single commands: it is offered, or not."""
    if offered:
        return Enforced("native", note, {"rule": "impossible"})
    allowed = (e for e in grants.shell.exceptions if (e.kind, e.verdict) == ("rule", "allow"))
    return Enforced("not offered", note, left_out=tuple(allowed))


def other_hooks(run: RunOptions) -> tuple[str, ...]:
    """Why ``on_tool_call`` may not have the last word."""
    inherits = run.inherit == "project"
    return ("the repository's own hooks may change a call again",) if inherits else ()
