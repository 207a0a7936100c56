"""A node's call of its agent.

A warm process of the resources serves the node if its agent can stay warm and the node asks for
nothing that such a process cannot do: typed output, ``until``, a session to resume, hooks,
attachments. Warm processes serve many nodes, so they do not know a node's directory: a prompt
that mentions ``status.json`` or ``ATTRACTOR_...`` gets its own process, which has these
variables and may write to the node's directory if it may write at all.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import msgspec

from corral.agents.spec import InProcess
from corral.errors import CorralError, ResumeLost
from corral.events import Event
from corral.pipelines.execution import node_dir, node_options, preamble, verdict
from corral.pipelines.execution import resources as node_resources
from corral.pipelines.execution.error_mapping import outcome_of_error
from corral.pipelines.execution.handlers import NodeContext
from corral.pipelines.execution.hooks import Hooks, hooks_of
from corral.pipelines.execution.resources import NodeResources
from corral.pipelines.execution.shell import command_of, stage_env
from corral.pipelines.execution.verdict import Channel, NodeVerdict, Wanted
from corral.pipelines.scheduler.outcome import Outcome
from corral.policy import Policy
from corral.result import Result
from corral.sessions.api import run
from corral.sessions.pool import PROMPT_OPTIONS
from corral.sessions.tools.tools import Tool, Tools
from corral.sessions.until import ROUNDS, Until, command_succeeds
from corral.system import config
from corral.values import Json

OF_A_STAGE = ("status.json", "ATTRACTOR_")


class AgentCall(msgspec.Struct, kw_only=True):
    """One prompt to an agent, with its options."""

    agent: str
    options: dict[str, Any]
    notes: list[str]
    schema: dict[str, Json] | None
    until: Until | None
    rounds: int
    max_total_tokens: int | None
    hooks: Hooks | None
    thread: str | None
    held: str | None = None
    """Token of the session to resume."""
    report: Report | None = None
    """How the outcome is reported, where the node decides something."""


def build_call(work: NodeContext, resources: NodeResources, *, alone: bool = False) -> AgentCall:
    """Build the call from the node's attributes. ``alone``: one of several prompts of a node,
    which resumes no session. Raises ``CallerError``."""
    node = work.node
    agent, model = node_options.agent_of(work, resources)
    options, notes = node_options.options_of(work, resources, agent)
    if model is not None:
        options["model"] = model
    until: Until | None = None
    if command := node.text("until"):
        said, holes = command_of(command, work.context)
        until = command_succeeds(
            said,
            env={**resources.command_env(work), **holes, **stage_env(work)},
            pass_env=resources.pass_env(work),
        )
    limited: int | None = None
    if until is not None and "max_total_tokens" in node.attrs:
        limited = node_options.number_of(node, "max_total_tokens", int)
    thread = work.visit.thread if work.visit.fidelity == "full" and not alone else None
    report = None if alone else _report(work, resources, agent, options)
    return AgentCall(
        agent=agent,
        options=options,
        notes=notes,
        schema=node_options.schema_of(work),
        until=until,
        rounds=node_options.number_of(node, "rounds", int) if "rounds" in node.attrs else ROUNDS,
        max_total_tokens=limited,
        hooks=hooks_of(work, resources, agent),
        thread=thread,
        held=None if thread is None else _held(work, thread, agent),
        report=report,
    )


def _report(
    work: NodeContext, resources: NodeResources, agent: str, options: dict[str, Any]
) -> Report | None:
    """How this agent reports the outcome of a node that decides something. The policy must permit
    our report tool: it is permitted here, because it does nothing else."""
    wanted = verdict.wanted_of(work.graph, work.node)
    if wanted is None:
        return None
    record = config.find_agent(agent)
    policy = options.get("policy") or Policy()
    is_own = isinstance(record.transport, InProcess)
    by_tool = is_own or (
        "mcp_servers" in record.supports
        and policy.allow_tools is None
        and policy.mode is None
        and find_spec("mcp") is not None
    )
    if by_tool:
        if policy.allow_tools is not None:
            tools = (*policy.allow_tools, verdict.TOOL)
            policy = msgspec.structs.replace(policy, allow_tools=tools)
        options["policy"] = msgspec.structs.replace(policy, own_mcp="allow")
        return Report(wanted, "tool")
    if policy.write == "allow":
        path = str(work.folder.absolute() / node_dir.STATUS)
        return Report(wanted, "file", path)
    return Report(wanted, "answer")


def _held(work: NodeContext, thread: str, agent: str) -> str | None:
    held = work.context.get(f"internal.thread.{thread}")
    if not isinstance(held, dict) or held.get("agent") != agent:
        return None
    token = held.get("resume_token")
    able = config.find_agent(agent).resumes
    return token if isinstance(token, str) and token and able else None


async def send_prompt(
    work: NodeContext, resources: NodeResources, ask: AgentCall, prompt: str
) -> Result:
    """The prompt, with what the agent must be told before it, to its end. What was sent is in
    ``prompt.md``."""
    if ask.held is not None:
        node_resources.write_node_file(work, "prompt.md", prompt)
        try:
            result = await _sent(work, resources, ask, prompt)
            if result.error is None or result.error.code != ResumeLost.code:
                return result
            lost = result.error.message
        except ResumeLost as error:
            lost = error.message
        ask.notes.append(f"the session of thread {ask.thread} is lost: {lost}")
        ask.held = None
    whole = preamble.with_preamble(work, prompt, work.visit.fidelity)
    node_resources.write_node_file(work, "prompt.md", whole)
    return await _sent(work, resources, ask, whole)


async def _sent(work: NodeContext, resources: NodeResources, ask: AgentCall, prompt: str) -> Result:
    prompt = resources.redactor.clean_text(prompt)
    hooks = ask.hooks
    if is_warm(ask, prompt):
        fixed = {key: value for key, value in ask.options.items() if key not in PROMPT_OPTIONS}
        own = {key: value for key, value in ask.options.items() if key in PROMPT_OPTIONS}
        return await resources.warm_run(ask.agent, prompt, fixed=fixed, own=own, on_event=work.emit)
    if hooks is None:
        return await _run(work, resources, ask, prompt, work.emit)
    return await hooks.watched(work.emit, lambda hear: _run(work, resources, ask, prompt, hear))


def is_warm(ask: AgentCall, prompt: str) -> bool:
    """Whether a warm process can serve it."""
    plain = ask.schema is None and ask.until is None and ask.thread is None and ask.hooks is None
    plain = plain and (ask.report is None or ask.report.channel == "answer")
    own = any(word in prompt for word in OF_A_STAGE) or "attachments" in ask.options
    return plain and not own and config.find_agent(ask.agent).transport.kind == "acp"


async def _run(
    work: NodeContext,
    resources: NodeResources,
    ask: AgentCall,
    prompt: str,
    on_event: Callable[[Event], None],
) -> Result:
    options = dict(ask.options)
    options["env"] = {**resources.env, **stage_env(work)}
    policy = options.get("policy")
    if policy is not None and policy.write == "allow":
        folder = str(work.folder.absolute())
        options["policy"] = msgspec.structs.replace(policy, writable=(*policy.writable, folder))
    if ask.thread is None:
        options.setdefault("keep", False)
    if ask.held is not None:
        options["resume"] = ask.held
    return await run(
        ask.agent,
        prompt,
        ask=resources.ask,
        on_event=on_event,
        tools=_tools(ask),
        output=ask.schema,
        until=ask.until,
        rounds=ask.rounds,
        max_total_tokens=ask.max_total_tokens,
        **options,
    )


def _tools(ask: AgentCall) -> Tools | None:
    """What this prompt's agent may call of ours: the report, watched over by the node's hooks."""
    hooks = None if ask.hooks is None else ask.hooks.tools
    if ask.report is None or ask.report.channel != "tool":
        return hooks
    return Tools([ask.report.tool], agent_hooks=() if hooks is None else hooks.agent_hooks)


class Report:
    """The report that an agent must make, and what it reported with the tool."""

    def __init__(self, wanted: Wanted, channel: Channel, path: str = "") -> None:
        self.channel: Channel = channel
        self.instruction = verdict.instruction(wanted, channel, path)
        self.verdict: NodeVerdict | None = None
        self._wanted = wanted

    @property
    def tool(self) -> Tool:
        known = ", ".join(self._wanted.outcomes)

        def report_outcome(
            outcome: str,
            preferred_label: str = "",
            notes: str = "",
            context_updates: dict[str, Any] | None = None,
        ) -> str:
            given: dict[str, Json] = {
                "outcome": outcome,
                "preferred_label": preferred_label,
                "notes": notes,
                "context_updates": context_updates or {},
            }
            self.verdict = verdict.read(given, verdict.TOOL)
            return "reported"

        return Tool.of(
            report_outcome,
            name=verdict.TOOL,
            description=f"Report the outcome of this step ({known}), once, when you are done.",
        )


def outcome_of_result(work: NodeContext, ask: AgentCall, result: Result) -> Outcome:
    """How the node ended, with what it spent. A thread's session goes along, also of a turn that
    failed: the next attempt can go on with it."""
    updates: dict[str, Json] = {}
    if ask.thread is not None and result.resume_token is not None:
        updates[f"internal.thread.{ask.thread}"] = {
            "agent": ask.agent,
            "resume_token": result.resume_token,
        }
    if result.output is not None:
        updates[f"{work.node.id}.output"] = result.output
    notes = list(ask.notes)
    if result.denied:
        refused = ", ".join(sorted({denied.name for denied in result.denied}))
        notes.append(f"refused by the policy: {refused} (set policy=edits or policy=all)")
    outcome = Outcome()
    try:
        result.raise_for_status()
    except CorralError as error:
        outcome = outcome_of_error(error)
    return msgspec.structs.replace(
        outcome,
        context_updates=updates,
        notes="; ".join(notes),
        cost_usd=result.cost.usd,
        tokens=result.usage.total,
    )
