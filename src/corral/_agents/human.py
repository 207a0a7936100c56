"""A person as the agent: reads the prompt, does the work, writes the answer.

A policy cannot be enforced on a person. What it allows or asks about, they decide for themselves.
They can only be informed of what it denies, so by default a policy that denies something is
refused before the person is asked.
"""

from __future__ import annotations

from corral._agents.grants import ExceptionKind, Grant, Grants
from corral._agents.spec import AgentControls, AgentSpec, Enforced, InProcess
from corral.errors import ConfigError
from corral.options import RunOptions
from corral.policy import CAPABILITIES, Enforcer

MONTH = 30 * 24 * 3600.0


def for_run(run: RunOptions) -> AgentSpec:
    """The same spec for all runs. Raises ``ConfigError`` for a model."""
    if run.model is not None:
        raise ConfigError("a person has no model", hint="Leave model out (--model).")
    return AGENT


def controls(grants: Grants, run: RunOptions) -> AgentControls:
    """What is denied depends on the person, as do lists of tools and rules for commands."""

    def by(grant: Grant) -> Enforcer:
        return "advisory" if grant.default == "deny" else "native"

    kinds: dict[ExceptionKind, Enforcer] = {
        "rule": "advisory",
        "tool": "advisory",
        "own": by(grants.own_mcp),
    }
    note = "a person decides for themselves; nothing enforces a denial"
    return AgentControls(
        enforced={name: Enforced(by(grants.of(name)), note, kinds) for name in CAPABILITIES},
        own_default=note,
    )


AGENT = AgentSpec(
    name="manual",
    title="a person",
    description="a person, asked through files, an editor or the terminal",
    transport=InProcess(driver="corral._sessions.backends.human:HumanDriver"),
    for_run=for_run,
    controls=controls,
    tools={},
    supports=frozenset({"attachments", "audio", "images", "resume", "system_prompt", "via"}),
    capabilities=("files", "resume", "person"),
    resumes=True,
    open_turns=True,
    default_limits={"timeout": MONTH, "idle_timeout": MONTH},
)
AGENTS = (AGENT,)
