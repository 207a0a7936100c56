"""The options of one prompt in a session.

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

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from corral.agents import registry
from corral.errors import ConfigError
from corral.options import RunOptions
from corral.policy import Policy, is_narrower
from corral.sessions.prepare import prepare
from corral.sessions.prepared_run import Answers, PreparedRun

if TYPE_CHECKING:
    from corral.sessions.tools.hooks import Before


def for_prompt(
    session: PreparedRun,
    name: str,
    options: Mapping[str, object],
    chosen: Mapping[str, object],
    *,
    has_asker: bool | Answers,
    on_tool_call: Before | None = None,
) -> PreparedRun:
    """The session's ``PreparedRun`` with what one prompt has ``chosen``. The other arguments are
    those that the session was prepared with. Raises ``ConfigError``."""
    checked = RunOptions.build(session.run.agent, chosen)
    if not {"model", "policy"} & chosen.keys():
        run = msgspec.structs.replace(session.run, **{k: getattr(checked, k) for k in chosen})
        return msgspec.structs.replace(session, run=run)
    if session.run.replay is not None:
        raise ConfigError("a recording was made with one model and one policy: replay has no other")
    merged: dict[str, object] = {**options, **chosen}
    if "policy" in chosen:
        merged["policy"] = policy = _own_tools(checked.policy, session.run.policy)
        check_narrower(policy, session)
        for other_spelling in ("approval_mode", "allowed_tools"):  # of the session's policy
            merged.pop(other_spelling, None)
    if session.sandbox is not None and session.run.sandbox == "needed":
        merged["sandbox"] = "require"  # a narrower policy does not end the session's sandbox
    if registry.names_a_model(registry.full_name(name)):
        name, merged["model"] = session.agent.name, checked.model or session.run.model
    prepared = prepare(
        name,
        merged,
        has_asker=has_asker,
        own_tools=session.run.own_tools,
        on_tool_call=on_tool_call,
    )
    return msgspec.structs.replace(
        prepared,
        budget=session.budget,
        limit_waits=session.limit_waits,
        recording=session.recording,
    )


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
    if prompt.acp.model_at_start and prompt.run.model != running.run.model:
        return True
    if (prompt.sandbox is None) != (running.sandbox is None):
        return True
    if prompt.run.policy == running.run.policy:
        return False
    rows = (*prompt.compiled.report, *running.compiled.report)
    mode = prompt.run.policy.mode != running.run.policy.mode
    return mode or any(row.enforcers != {"brokered"} for row in rows)


def _own_tools(policy: Policy, session: Policy) -> Policy:
    """The caller's own functions stay allowed if the policy has no rule for tool servers."""
    if policy.mcp is None and policy.own_mcp is None and session.own_mcp is not None:
        return msgspec.structs.replace(policy, own_mcp=session.own_mcp)
    return policy
