"""A person as the agent: reads the prompt, does the work, writes the answer.

A policy cannot be enforced on a person. What it allows or asks about, they decide for themselves.
They can only be informed of what it denies, so by default a policy that denies something is
refused before the person is asked.
"""

from __future__ import annotations

from corral.agents.spec import AgentSpec, CompiledPolicy, InProcess, PolicyRow
from corral.errors import ConfigError
from corral.options import RunOptions
from corral.policy import CAPABILITIES, Capability, Policy

MONTH = 30 * 24 * 3600.0


def for_run(run: RunOptions) -> AgentSpec:
    """The same spec for all runs. Raises ``ConfigError`` for a model."""
    if run.model is not None:
        raise ConfigError("a person has no model", hint="Leave model out (--model).")
    return AGENT


def compile_policy(policy: Policy, run: RunOptions) -> CompiledPolicy:
    return CompiledPolicy(tuple(_row(policy, capability) for capability in CAPABILITIES))


def _row(policy: Policy, capability: Capability) -> PolicyRow:
    if policy.allow_tools is not None or policy.deny_tools:
        return PolicyRow(
            capability, "deny", "advisory", "a list of tools cannot be enforced on a person"
        )
    if capability == "shell" and policy.shell_rules:
        return PolicyRow(
            capability, "deny", "advisory", "shell rules cannot be enforced on a person"
        )
    if policy.verdict(capability) == "deny":
        return PolicyRow(
            capability, "deny", "advisory", "a person is asked to comply; nothing enforces it"
        )
    return PolicyRow(capability, "allow", "native", "a person decides for themselves")


AGENT = AgentSpec(
    name="manual",
    title="a person",
    description="a person, asked through files, an editor or the terminal",
    transport=InProcess(driver="corral.sessions.backends.human:Driver"),
    for_run=for_run,
    compile=compile_policy,
    tools={},
    supports=frozenset({"attachments", "audio", "images", "resume", "system_prompt", "via"}),
    capabilities=("files", "resume", "person"),
    resumes=True,
    open_turns=True,
    default_limits={"timeout": MONTH, "idle_timeout": MONTH},
)
AGENTS = (AGENT,)
