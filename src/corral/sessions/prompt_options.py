"""Options of one prompt that differ from the session's, checked before anything starts.

``timeout`` and ``idle_timeout`` are only replaced. ``model`` and ``policy`` are prepared again, as
for a new session; the policy may only be narrower than the session's. How they take effect:

- an agent with one process per prompt: that process is started with them;
- the built-in agent: the loop gets the other model, tools and rules, and the same history;
- an ACP agent: if every capability is brokered, the broker uses the narrower policy; if the agent
  can switch its model, it is switched. What is fixed when the process starts (the model of some
  agents, a policy in the agent's own settings) needs a new process, which loads the conversation;
  an agent that cannot load one refuses the option.
"""

from __future__ import annotations

from typing import Any

import msgspec

from corral.agents import registry
from corral.agents.spec import acp_transport
from corral.errors import ConfigError
from corral.options import RunOptions
from corral.policy import Policy, is_narrower
from corral.sessions.prepare import PreparedRun, prepare

PER_PROMPT = ("timeout", "idle_timeout", "model", "policy")


def for_prompt(
    session: PreparedRun,
    name: str,
    options: dict[str, Any],
    given: dict[str, Any],
    *,
    has_asker: bool,
) -> PreparedRun:
    """The session's ``Prepared`` with what one prompt chooses; None in ``given`` is not chosen.
    ``name`` and ``options`` are those the session was prepared with. Raises ``ConfigError``."""
    chosen = {key: value for key, value in given.items() if value is not None}
    if not chosen:
        return session
    checked = RunOptions.build(session.run.agent, chosen)
    if not {"model", "policy"} & chosen.keys():
        run = msgspec.structs.replace(session.run, **{k: getattr(checked, k) for k in chosen})
        return msgspec.structs.replace(session, run=run)
    if session.run.replay is not None:
        raise ConfigError("a recording was made with one model and one policy: replay has no other")
    if "policy" in chosen:
        chosen["policy"] = _own_tools(checked.policy, session.run.policy)
        check_narrower(chosen["policy"], session)
    merged = {**options, **chosen}
    if "policy" in chosen:  # other spellings of the session's policy
        merged = {k: v for k, v in merged.items() if k not in ("approval_mode", "allowed_tools")}
    if registry.names_a_model(name):
        name, merged["model"] = session.agent.name, checked.model or session.run.model
    return prepare(name, merged, has_asker=has_asker, own_tools=session.run.own_tools)


def check_narrower(policy: Policy, session: PreparedRun) -> None:
    """Raises ``ConfigError`` for a policy of one prompt that allows more than the session's."""
    if not is_narrower(policy, session.run.policy, session.agent.tools):
        raise ConfigError(
            "the policy of a prompt may only be narrower than the session's, and this one is wider,"
            " or has rules that cannot be compared with the session's",
            hint="Give the session the wider policy; or change the session's own:"
            " msgspec.structs.replace(policy, write='deny').",
        )


def needs_new_process(prompt: PreparedRun, running: PreparedRun) -> bool:
    """Whether a process that was started for ``running`` cannot serve ``prompt``."""
    if acp_transport(prompt.agent).model_at_start and prompt.run.model != running.run.model:
        return True
    if prompt.run.policy == running.run.policy:
        return False
    rows = (*prompt.compiled.report, *running.compiled.report)
    mode = prompt.run.policy.mode != running.run.policy.mode
    return mode or any(row.enforcement != "brokered" for row in rows)


def _own_tools(policy: Policy, session: Policy) -> Policy:
    """The caller's own functions stay allowed if the policy has no rule for tool servers."""
    if policy.mcp is None and policy.own_mcp is None and session.own_mcp is not None:
        return msgspec.structs.replace(policy, own_mcp=session.own_mcp)
    return policy
