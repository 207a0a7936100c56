"""A node's call of its agent: the prompt, the hooks around tool calls, the usage, the outcome.

A warm process of the resources serves the node if its agent can stay warm and the node needs
nothing that such a process cannot do: typed output, ``until``, a session to resume, hooks,
attachments, a budget of the run. Warm processes serve many nodes, so they do not know a node's
directory: a prompt that mentions ``status.json`` or ``ATTRACTOR_...`` gets its own process, which
has these variables and may write to the node's directory if it may write at all.

``tool_hooks.pre`` and ``tool_hooks.post`` are commands around each tool call. A command gets the
call as JSON on its stdin: ``{"hook": "pre", "run_id", "node", "call_id", "tool", "arguments"}``,
after the call also ``"status"`` and ``"output"``. If the command before a call does not exit with
0, the call is skipped and the agent gets the output of the command. The same happens if it hangs or
cannot be started: a check that does not work must not permit anything. The command after a call
cannot change anything. The built-in agent asks before each of its calls. No other agent can be made
to ask about every call, so with them ``tool_hooks.pre`` is an error. For ``tool_hooks.post`` their
events are used.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from corral._agents.spec import InProcess
from corral._metering.rate_limits import state_of
from corral._metering.turn_usage import TurnUsages, add_to_ledger
from corral._pipelines.execution import preamble, run_dir, verdict
from corral._pipelines.execution.handlers import NodeContext
from corral._pipelines.execution.interviewers import NodeQuestions
from corral._pipelines.execution.node_options import (
    agent_of,
    limit_rule,
    may_ask,
    number_of,
    options_of,
    policy_of,
    read_output_schema,
)
from corral._pipelines.execution.shell import last_bytes, node_env, run_shell_command, shell_command
from corral._pipelines.execution.verdict import Channel, NodeVerdict, Wanted
from corral._pipelines.scheduler.outcome import AFTER_LIMIT, Outcome, failed, outcome_of_error
from corral._protocol.schema import schema_of
from corral._publishing.records import PART_OF
from corral._sessions.api import run
from corral._sessions.goals import ROUNDS, Until
from corral._sessions.limit_waits import CONTINUE
from corral._sessions.permissions import QuestionAsker
from corral._sessions.tools.hooks import Deny, Hook, HookAnswer, ToolRequest
from corral._sessions.tools.tools import Tool, Tools
from corral._system import clock, config
from corral._system.environment import is_scripted
from corral._system.git.scan import project_of
from corral._verification.command_check import TIMEOUT, CommandCheck, command_succeeds
from corral.errors import ConfigError, CorralError, RateLimited, ResumeLost
from corral.events import Done, Error, Event, ModelCall, ToolResult, ToolUse
from corral.options import fallback_agents
from corral.policy import Policy
from corral.result import Result
from corral.run_kwargs import RunKwargs
from corral.values import Json, JsonObject, as_text

T = TypeVar("T")

DIRECTORY_WORDS = ("status.json", "ATTRACTOR_")
"""A prompt with one of these needs the directory of its node."""
HOOK_TIMEOUT = 60.0
"""Seconds for one hook."""
MAX_HOOK_INPUT = 64 * 1024
"""Bytes of a call's output that a hook gets."""
BATCH_KINDS = "batch."
"""How the types of the nodes of batches begin."""


class AgentCall(msgspec.Struct, kw_only=True):
    """One prompt to an agent, with its options."""

    agent: str
    options: RunKwargs
    notes: list[str]
    schema: JsonObject | None
    until: Until | None
    rounds: int
    hooks: Hooks | None
    thread: str | None
    resume: str | None = None
    """Token of the session to resume."""
    report: OutcomeReport | None = None
    """How the agent reports the outcome, if the node decides something."""
    asks: bool = False
    """Whether the agent may ask the person of the run."""
    has_preamble: bool = True
    """Whether the prompt comes after a text about the run so far."""


def build_call(work: NodeContext, *, alone: bool = False) -> AgentCall:
    """Build the call from the node's attributes. ``alone``: one of several prompts of a node,
    which resumes no session. Raises ``CallerError``."""
    node = work.node
    agent, model = agent_of(work)
    options, notes = options_of(work, agent)
    if model is not None:
        options["model"] = model
    if work.on_owner is not None:
        options.setdefault("keep", True)
    until = _command_of(work, "until")
    if (verify := _command_of(work, "verify", work.node.seconds("verify_timeout"))) is not None:
        options["verify"] = [verify]
    thread = work.visit.thread if work.visit.fidelity == "full" and not alone else None
    resume: str | None = None
    session = work.context.get(f"internal.thread.{thread}")
    if thread is not None and isinstance(session, dict) and session.get("agent") == agent:
        token = session.get("resume_token")
        if isinstance(token, str) and token and config.find_agent(agent).resumes:
            resume = token
    report = None if alone else _choose_report(work, agent, options)
    return AgentCall(
        agent=agent,
        options=options,
        notes=notes,
        schema=read_output_schema(work),
        until=until,
        rounds=number_of(node, "rounds", int) if "rounds" in node.attrs else ROUNDS,
        hooks=find_hooks(work, agent),
        thread=thread,
        resume=resume,
        report=report,
        asks=may_ask(work),
    )


def _command_of(
    work: NodeContext, attribute: str, timeout: float | None = None
) -> CommandCheck | None:
    """The check that an attribute of the node names with its command."""
    text = work.node.text(attribute)
    if not text:
        return None
    command, values = shell_command(text, work.context)
    return command_succeeds(
        command,
        timeout=timeout or TIMEOUT,
        env={**work.resources.command_env(work), **values, **node_env(work)},
        pass_env=work.resources.pass_env(work),
    )


def _choose_report(work: NodeContext, agent: str, options: RunKwargs) -> OutcomeReport | None:
    """How this agent reports the outcome of a node that decides something. The policy must permit
    the report tool: it is permitted here, because it does nothing else."""
    wanted = verdict.wanted_of(work.graph, work.node)
    if wanted is None:
        return None
    spec = config.find_agent(agent)
    policy = policy_of(work) or Policy()
    by_tool = isinstance(spec.transport, InProcess) or (
        "mcp_servers" in spec.supports
        and policy.allow_tools is None
        and policy.mode is None
        and find_spec("mcp") is not None
    )
    if by_tool:
        if policy.allow_tools is not None:
            tools = (*policy.allow_tools, verdict.TOOL)
            policy = replace(policy, allow_tools=tools)
        options["policy"] = replace(policy, own_mcp="allow")
        return OutcomeReport(wanted, "tool")
    if policy.write == "allow":
        path = str(work.folder.absolute() / run_dir.STATUS)
        return OutcomeReport(wanted, "file", path)
    return OutcomeReport(wanted, "answer")


async def send_prompt(work: NodeContext, call: AgentCall, prompt: str) -> Result:
    """Run the prompt, after the preamble, to its end. ``prompt.md`` has what was sent."""
    if call.resume is not None:
        text = prompt
        if AFTER_LIMIT in work.context:
            text = CONTINUE
        work.write_file("prompt.md", text)
        try:
            result = await _send(work, call, text)
            if result.error is None or result.error.code != ResumeLost.code:
                return result
            lost = result.error.message
        except ResumeLost as error:
            lost = error.message
        call.notes.append(f"the session of thread {call.thread} is lost: {lost}")
        call.resume = None
    full_prompt = prompt
    if call.has_preamble:
        full_prompt = preamble.with_preamble(work, prompt, work.visit.fidelity)
    work.write_file("prompt.md", full_prompt)
    return await _send(work, call, full_prompt)


async def _send(work: NodeContext, call: AgentCall, prompt: str) -> Result:
    prompt = work.resources.redactor.clean_text(prompt)
    with recorded_usage(work, call.agent, is_stored=bool(call.options.get("record"))) as emit:
        if work.budget is None and is_warm(call, prompt):
            return await work.resources.run_warm(call.agent, prompt, call.options, emit)
        if call.hooks is None:
            result = await _run(work, call, prompt, emit)
        else:
            result = await call.hooks.watch(emit, lambda emit: _run(work, call, prompt, emit))
    if work.on_owner is not None:
        from corral._merging.owners import BranchOwner, options_to_keep

        session, kept = result.resume_token or "", options_to_keep(call.options)
        work.on_owner(BranchOwner(agent=call.agent, session=session, options=kept))
    return result


def is_warm(call: AgentCall, prompt: str) -> bool:
    """Whether a warm process can serve it."""
    if any(part is not None for part in (call.schema, call.until, call.thread, call.hooks)):
        return False
    if call.options.get("verify"):
        return False  # the processes of the agent must have ended before the checks
    if call.report is not None and call.report.channel != "answer":
        return False
    if call.asks:
        return False  # a warm process does not know which node asks
    if call.options.get("otel") is not None:
        return False  # a warm process does not know the span of the node
    if fallback_agents(call.options.get("on_limit", "fail")) or call.options.get("keep"):
        return False
    if "attachments" in call.options or any(word in prompt for word in DIRECTORY_WORDS):
        return False
    return config.find_agent(call.agent).transport.kind == "acp"


async def _run(
    work: NodeContext, call: AgentCall, prompt: str, on_event: Callable[[Event], None]
) -> Result:
    options = call.options.copy()
    options["env"] = {**work.resources.env, **node_env(work)}
    policy = options.get("policy")
    if isinstance(policy, Policy) and policy.write == "allow":
        folder = str(work.folder.absolute())
        options["policy"] = replace(policy, writable=(*policy.writable, folder))
    if call.thread is None and not options.get("record"):
        options.setdefault("keep", False)
    if call.resume is not None:
        options["resume"] = call.resume
    ask = work.resources.ask
    if ask is None and work.ask_person is not None and may_ask(work):
        # The person of the run answers questions of the agent, and nothing else.
        ask = QuestionAsker(NodeQuestions(work.visit, work.ask_person).answer)
    # The tools that corral adds for this prompt: the report tool, with the node's hooks.
    tools = None if call.hooks is None else call.hooks.tools
    if call.report is not None and call.report.channel == "tool":
        tools = Tools([call.report.tool], agent_hooks=() if tools is None else tools.agent_hooks)
    return await run(
        call.agent,
        prompt,
        ask=ask,
        on_tool_call=work.resources.on_tool_call,
        on_event=on_event,
        tools=tools,
        budget=work.budget,
        output=None if call.schema is None else schema_of(call.schema),
        until=call.until,
        rounds=call.rounds,
        **options,
    )


class OutcomeReport:
    """The report that an agent must make, and the verdict that it reported with the tool."""

    def __init__(self, wanted: Wanted, channel: Channel, path: str = "") -> None:
        self.channel: Channel = channel
        self.instruction: str = verdict.instruction(wanted, channel, path)
        self.verdict: NodeVerdict | None = None
        self._wanted = wanted

    @property
    def tool(self) -> Tool:
        known = ", ".join(self._wanted.outcomes)

        def report_outcome(
            outcome: str,
            preferred_label: str = "",
            notes: str = "",
            context_updates: dict[str, Json] | None = None,
        ) -> str:
            fields: JsonObject = {
                "outcome": outcome,
                "preferred_label": preferred_label,
                "notes": notes,
                "context_updates": context_updates or {},
            }
            self.verdict = verdict.read(fields, verdict.TOOL)
            return "reported"

        return Tool.of(
            report_outcome,
            name=verdict.TOOL,
            description=f"Report the outcome of this step ({known}), once, when you are done.",
        )


def outcome_of_result(work: NodeContext, call: AgentCall, result: Result) -> Outcome:
    """The outcome of the node, with its cost. The session of a thread is recorded even if the turn
    failed: the next attempt can resume it."""
    updates: JsonObject = {}
    if call.thread is not None and result.resume_token is not None:
        updates[f"internal.thread.{call.thread}"] = {
            "agent": call.agent,
            "resume_token": result.resume_token,
        }
    if result.ok and result.output is not None:
        updates[f"{work.node.id}.output"] = result.output
    notes = list(call.notes)
    if result.denied:
        denied = ", ".join(sorted({denied.name for denied in result.denied}))
        notes.append(f"denied by the policy: {denied} (set policy=edits or policy=all)")
    outcome = Outcome()
    try:
        result.raise_for_status()
    except CorralError as error:
        outcome = outcome_of_error(error)
        if work.longest_hold is not None and isinstance(error, RateLimited):
            rule = limit_rule(work.node, work.resources.options, call.agent)
            state = state_of(error, work.attempt)  # an end that is not known: each wait is longer
            waits = rule.on_limit == "wait" and state is not None
            if state is not None and waits and state.until - clock.now() <= rule.max_wait:
                outcome = replace(outcome, resets_at=state.until)
                updates[AFTER_LIMIT] = {"agent": call.agent, "resume_token": result.resume_token}
    if result.receipt is not None:
        updates |= {f"{work.node.id}.verdict": result.verdict}
        is_task = work.node.kind.startswith(BATCH_KINDS)  # its verdict is part of its result
        if result.ok and result.verdict != "verified" and not is_task:
            outcome = failed(f"not verified: {'; '.join(result.gaps)}", retryable=True)
    return replace(
        outcome,
        context_updates=updates,
        notes="; ".join(notes),
        cost_usd=result.cost.usd,
        tokens=result.usage.total,
    )


# Hooks.


def find_hooks(work: NodeContext, agent: str) -> Hooks | None:
    """The hooks of the node, else of the graph. Raises ``ConfigError`` if the agent cannot have
    them."""
    pre, post = (
        str(work.node.attrs.get(key, work.graph.attrs.get(key, ""))).strip()
        for key in ("tool_hooks.pre", "tool_hooks.post")
    )
    if not pre and not post:
        return None
    spec = config.find_agent(agent)
    in_process = spec.transport.kind == "builtin"
    if pre and not in_process:
        raise ConfigError(
            f"{work.node.id}: tool_hooks.pre is not available with {spec.name}:"
            " it does not ask before each of its calls",
            hint="Use the built-in agent: agent=corral and a model, or model=vendor:name alone.",
        )
    return Hooks(work, pre, post, asks=in_process)


class Hooks:
    """The commands around the tool calls of one prompt."""

    def __init__(self, work: NodeContext, pre: str, post: str, *, asks: bool) -> None:
        self._work = work
        self._pre = pre
        self._post = post
        self._asks = asks
        hook = Hook(self._before if pre else None, self._after if post else None)
        self.tools: Tools | None = Tools([], agent_hooks=[hook]) if asks else None

    async def _before(self, call: ToolRequest) -> Deny | None:
        wrong = await self._run(self._pre, self._input("pre", call.id, call.name, call.arguments))
        return None if wrong is None else Deny(wrong)

    async def _after(self, call: ToolRequest, answer: HookAnswer) -> None:
        fields = self._input("post", call.id, call.name, call.arguments)
        await self._run_post({**fields, "status": answer.status, "output": answer.text})

    async def _run_post(self, call: JsonObject) -> None:
        output = call["output"]
        call["output"] = last_bytes(output, MAX_HOOK_INPUT) if isinstance(output, str) else output
        wrong = await self._run(self._post, call)
        if wrong is not None:
            message = f"tool_hooks.post after {call['tool']}: {wrong}"
            self._work.emit(Error("tool_hook", message, recoverable=True, level="warning"))

    def _input(self, hook: str, call_id: str, tool: str, arguments: Json) -> JsonObject:
        return {
            "hook": hook,
            "run_id": self._work.run_id,
            "node": self._work.node.id,
            "call_id": call_id,
            "tool": tool,
            "arguments": arguments,
        }

    async def _run(self, text: str, call: JsonObject) -> str | None:
        """Run a hook. Returns what went wrong; None if it exited with 0."""
        work, resources = self._work, self._work.resources
        names = {"ATTRACTOR_HOOK": str(call["hook"]), "ATTRACTOR_TOOL_NAME": str(call["tool"])}
        try:
            command, values = shell_command(text, work.context)
            done = await run_shell_command(
                command,
                cwd=work.workspace,
                env={**resources.command_env(work), **values, **node_env(work), **names},
                pass_env=resources.pass_env(work),
                timeout=HOOK_TIMEOUT,
                stdin=msgspec.json.encode(call),
            )
        except CorralError as error:
            return error.message
        if done.ok:
            return None
        return (
            done.redacted(resources.redactor).output_tail() or f"the hook {done.end(HOOK_TIMEOUT)}"
        )

    async def watch(
        self,
        emit: Callable[[Event], None],
        send: Callable[[Callable[[Event], None]], Awaitable[T]],
    ) -> T:
        """Call ``send`` with the function that gets the agent's events, and return its result. When
        this returns, the hook has run for every call that was reported."""
        if self._asks or not self._post:
            return await send(emit)
        calls: asyncio.Queue[JsonObject | None] = asyncio.Queue()
        used: dict[str, ToolUse] = {}

        def on_event(event: Event) -> None:
            emit(event)
            if isinstance(event, ToolUse):
                used[event.call_id] = event
            elif isinstance(event, ToolResult):
                use = used.pop(event.call_id, None)
                name = event.name or (use.name if use else "")
                call = self._input("post", event.call_id, name, use.input if use else None)
                call |= {"status": event.status, "output": event.output or event.error}
                calls.put_nowait(call)

        async def run_hooks() -> None:
            while (call := await calls.get()) is not None:
                await self._run_post(call)

        failure: CorralError | None = None
        result: list[T] = []
        async with asyncio.TaskGroup() as group:
            group.create_task(run_hooks())
            try:
                result.append(await send(on_event))
            except CorralError as error:
                failure = error  # the task group would wrap it
            calls.put_nowait(None)
        if failure is not None:
            raise failure
        return result[0]


# Usage: a node's session is not stored, so ``corral runs usage`` cannot read it there.


@contextmanager
def recorded_usage(
    work: NodeContext, agent: str, *, is_stored: bool
) -> Generator[Callable[[Event], None]]:
    """Yields the function that gets the agent's events. At the end, in whatever way, what they say
    is stored; so a node that was cancelled is counted too. A session that ``is_stored`` is counted
    with the sessions."""
    if is_stored:
        yield work.emit
        return
    reported: list[Event] = []

    def emit(event: Event) -> None:
        if isinstance(event, Done | ModelCall):
            reported.append(event)
        work.emit(event)

    try:
        yield emit
    finally:
        if reported:
            store_usage(work, config.find_agent(agent).name, reported)


def store_usage(work: NodeContext, agent: str, events: Sequence[Event]) -> None:
    """Store what the events of an agent say that it has used."""
    usages = TurnUsages(work.run_id, agent, str(work.workspace))
    for event in events:
        usages.add(event)
    kind = "pipeline" if work.visit.definition is None else "workflow"
    if work.node.text("type").startswith(BATCH_KINDS):
        kind = "batch"
    project = project_of(PART_OF.get().started_in or str(work.workspace))
    label = as_text(work.resources.options.get("label"))
    # A run has many nodes: their turns must differ.
    first = int(clock.now() * 1e6)
    add_to_ledger(
        replace(
            turn,
            turn=first + turn.turn,
            kind=kind,
            project=project,
            label=label,
            scripted=is_scripted(work.resources.env),
        )
        for turn in usages.finish()
    )
