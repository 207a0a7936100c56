"""A node's call of its agent: its options, the prompt, the outcome.

A warm process of the resources serves the node if its agent can stay warm and the node needs
nothing that such a process cannot do: typed output, ``until``, a session to resume, hooks,
attachments, a budget of the run. Warm processes serve many nodes, so they do not know a node's
directory: a prompt that mentions ``status.json`` or ``ATTRACTOR_...`` gets its own process, which
has these variables and may write to the node's directory if it may write at all.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast, get_args

import msgspec

from corral.agents import registry
from corral.agents.spec import AgentSpec, InProcess
from corral.core.nesting import decode_json
from corral.errors import ConfigError, CorralError, RateLimited, ResumeLost
from corral.events import Event
from corral.option_definitions import BY_NAME, with_trait
from corral.options import SANDBOX_MODES, RunOptions, SandboxMode, fallback_agents
from corral.pipelines import node_kinds
from corral.pipelines.execution import preamble, run_dir, verdict
from corral.pipelines.execution.error_mapping import outcome_of_error
from corral.pipelines.execution.handlers import NodeContext, NodeResources
from corral.pipelines.execution.hooks import Hooks, hooks_of
from corral.pipelines.execution.node_usage import recorded_usage
from corral.pipelines.execution.shell import node_env, shell_command
from corral.pipelines.execution.verdict import Channel, NodeVerdict, Wanted
from corral.pipelines.graph import Node
from corral.pipelines.scheduler.outcome import AFTER_LIMIT, Outcome
from corral.policy import PRESETS, Policy, with_tools
from corral.result import Result
from corral.run_kwargs import RunKwargs
from corral.sessions.api import run
from corral.sessions.tools.tools import Tool, Tools
from corral.sessions.until import ROUNDS, Until, command_succeeds
from corral.system import clock, config
from corral.values import Effort, Json, JsonObject, convert_to, is_object

if TYPE_CHECKING:
    from corral.sessions.permissions import Asker

Number = TypeVar("Number", int, float)

DIRECTORY_WORDS = ("status.json", "ATTRACTOR_")
"""A prompt with one of these needs the directory of its node."""
TIMEOUT = 3600.0
"""Seconds that an agent may work if the node has no ``timeout``."""
NODE_OPTIONS = with_trait("node")
"""Attributes of a node that set the option of ``corral.run`` with the same name."""
_READ_APART = {"policy", "allowed_tools", "timeout", "pass_env", "reasoning_effort", "sandbox"}
"""Those whose attribute is read by its own function."""
BUILT_IN = "corral"
"""The built-in agent, which runs on any model."""


# Options.


def model_of(node: Node, resources: NodeResources) -> str | None:
    """``vendor:name`` of ``model``, or of ``llm_provider`` and ``llm_model``; only the name if no
    vendor is given."""
    name = node.text("model") or node.text("llm_model")
    provider = node.text("llm_provider")
    if not name:
        return resources.model
    if provider and not registry.names_a_model(name):
        return f"{provider}:{name}"
    return name


def agent_of(work: NodeContext) -> tuple[str, str | None]:
    """The agent, and the model as that agent names it. Raises ``ConfigError``."""
    named = work.node.text("agent") or str(work.graph.attrs.get("agent", ""))
    model = model_of(work.node, work.resources)
    if registry.names_a_model(named):
        return named, None
    if not named:
        # A model with its vendor runs on the built-in agent, a bare name on the default agent.
        if model is not None and ":" in registry.full_name(model):
            return registry.default(model), None
        named = work.resources.agent
    agent = config.find_agent(named)
    if agent.name == BUILT_IN or model is None:
        return named, model
    bare = model.partition(":")[2] if registry.names_a_model(model) else model
    return named, bare


class LimitRule(msgspec.Struct, frozen=True):
    """What an agent does at a rate limit: by its node, the run's options or ``corral.toml``."""

    on_limit: str
    max_wait: float


def limit_rule(node: Node, options: RunKwargs, agent: str) -> LimitRule:
    """The rule of a node with this agent; ``options`` are those of the run. Raises
    ``ConfigError``."""
    spec = config.find_agent(agent)
    given: dict[str, object] = {
        "on_limit": node.text("on_limit") or options.get("on_limit"),
        "max_wait": node.text("max_wait") or options.get("max_wait"),
    }
    given = {name: value for name, value in given.items() if value is not None}
    run = RunOptions.build(spec.name, given, config.load(spec.name), "corral.toml")
    return LimitRule(run.on_limit, run.max_wait)


def node_rule(work: NodeContext) -> LimitRule | None:
    """What the node's agent does at a rate limit; None if the node runs no agent. Raises
    ``ConfigError``."""
    if work.resources.simulate or node_kinds.find(work.node.kind).llm != "agent":
        return None
    return limit_rule(work.node, work.resources.options, agent_of(work)[0])


def policy_of(work: NodeContext) -> Policy | None:
    """The policy of the node, else of the resources; None if neither has one."""
    node, defaults = work.node, work.resources.options
    name = node.text("policy") or str(work.graph.attrs.get("policy", ""))
    given: dict[str, object] = {
        "policy": defaults.get("policy"),
        "approval_mode": defaults.get("approval_mode"),
        "allowed_tools": defaults.get("allowed_tools"),
    }
    given = {key: value for key, value in given.items() if value is not None}
    policy = RunOptions.build(BUILT_IN, given).policy if given else None
    if name:
        if name not in PRESETS:
            raise ConfigError(
                f"{node.id}: policy must be one of {', '.join(PRESETS)}, got: {name!r}"
            )
        policy = PRESETS[name]
    if "allowed_tools" in node.attrs:
        policy = with_tools(policy or Policy(), tuple(node.names("allowed_tools")))
    return policy


def options_of(work: NodeContext, agent: str) -> tuple[RunKwargs, list[str]]:
    """The options of ``corral.run``, and notes about those that the agent does not have. Raises
    ``ConfigError``."""
    node = work.node
    options = work.resources.options.copy()
    options.pop("policy", None)
    options.pop("approval_mode", None)
    options.pop("allowed_tools", None)
    options.pop("model", None)
    options["cwd"] = str(work.workspace)
    options.setdefault("record", False)  # the folder of the run has what its nodes did
    options["timeout"] = node.seconds("timeout") or options.get("timeout") or TIMEOUT
    if may_ask(work):
        from corral.pipelines.execution.node_questions import ANSWER_TIMEOUT

        waits = node.seconds("answer_timeout") or ANSWER_TIMEOUT
        options["answer_timeout"] = waits
        if not node.seconds("timeout"):
            options["timeout"] = TIMEOUT + waits
    # An agent reports that it needs a person. The end of the run is reported by the run itself.
    if options.get("notify_on") == "end":
        options.pop("notify", None)
        options.pop("notify_on", None)
    elif options.get("notify") is not None:
        options["notify_on"] = "person"
    if (policy := policy_of(work)) is not None:
        options["policy"] = policy
    if passed := work.resources.pass_env(work):
        options["pass_env"] = passed
    _set_attributes(node, options)
    _set_limit_rule(work, options, agent)
    spec = config.find_agent(agent)
    if "program" in options and spec.name != config.find_agent(work.resources.agent).name:
        del options["program"]  # it is the program of the run's default agent
    return options, _set_effort(node, spec, options)


def _set_limit_rule(work: NodeContext, options: RunKwargs, agent: str) -> None:
    """Set what happens at a rate limit. A durable node waits for a longer limit without its agent
    and its process. Raises ``ConfigError``."""
    rule = limit_rule(work.node, options, agent)
    if rule.on_limit == "fail":
        return
    options["on_limit"] = rule.on_limit
    if work.longest_hold is not None and not fallback_agents(rule.on_limit):
        options["max_wait"] = min(work.longest_hold, rule.max_wait)
        options["keep"] = True  # its session is resumed


def may_ask(work: NodeContext) -> bool:
    """Whether the agent of the node may ask the person of the run."""
    return work.ask_person is not None and work.node.is_true("questions")


def _asker(work: NodeContext) -> Asker | None:
    """Who answers the agent: the caller's ``ask``; or the person of the run, only questions."""
    if work.resources.ask is not None or work.ask_person is None or not may_ask(work):
        return work.resources.ask
    from corral.pipelines.execution.node_questions import NodeQuestions
    from corral.sessions.permissions import QuestionAsker

    return QuestionAsker(NodeQuestions(work.visit, work.ask_person).answer)


def sandbox_mode(node: Node, text: str) -> SandboxMode:
    for mode in SANDBOX_MODES:
        if mode == text:
            return mode
    raise ConfigError(
        f"{node.id}: sandbox must be one of {', '.join(SANDBOX_MODES)}, got: {text!r}"
    )


def _set_attributes(node: Node, options: RunKwargs) -> None:
    """Set the options that are attributes of the node. Raises ``ConfigError``."""
    values = cast("dict[str, object]", options)
    for name in NODE_OPTIONS - _READ_APART:
        match BY_NAME[name].kind:
            case "count" | "amount" as kind:
                if name in node.attrs:
                    values[name] = number_of(node, name, int if kind == "count" else float)
            case "paths":
                if names := node.names(name):
                    values[name] = names
            case _:
                if text := node.text(name):
                    values[name] = text
    if text := node.text("sandbox"):
        options["sandbox"] = sandbox_mode(node, text)


def effort_of(node: Node) -> Effort | None:
    """``reasoning_effort`` of the node. Raises ``ConfigError``."""
    text = node.text("reasoning_effort")
    if not text:
        return None
    try:
        effort: Effort = convert_to(text, Effort)
    except msgspec.ValidationError:
        raise ConfigError(
            f"{node.id}: reasoning_effort must be one of {', '.join(get_args(Effort))},"
            f" got: {text!r}"
        ) from None
    return effort


def _set_effort(node: Node, spec: AgentSpec, options: RunKwargs) -> list[str]:
    """Set ``reasoning_effort`` if the agent has it. Returns a note if it does not, because a
    stylesheet may set it for every node."""
    effort = effort_of(node)
    if effort is None:
        return []
    if "reasoning_effort" not in spec.supports:
        return [f"{spec.name} has no reasoning_effort"]
    options["reasoning_effort"] = effort
    return []


def number_of(node: Node, key: str, kind: type[Number]) -> Number:
    """Raises ``ConfigError``."""
    try:
        return kind(node.attrs[key])
    except ValueError:
        raise ConfigError(f"{node.id}: {key} must be a number, got: {node.text(key)!r}") from None


def schema_of(work: NodeContext) -> JsonObject | None:
    """``output_schema``: a JSON Schema, or the name of a file in the workspace that has one. Raises
    ``ConfigError``."""
    text = work.node.text("output_schema").strip()
    if not text:
        return None
    where = "output_schema"
    if not text.startswith("{"):
        path = Path(os.path.join(work.workspace, text))
        where = f"output_schema {path}"
        try:
            text = path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{work.node.id}: {where} cannot be read: {error}") from error
    try:
        schema: object = decode_json(text)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{work.node.id}: {where} is not JSON: {error}") from error
    if not is_object(schema):
        raise ConfigError(f"{work.node.id}: {where} is not a JSON Schema: it must be an object")
    return schema


# The call.


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
    report: Report | None = None
    """How the agent reports the outcome, if the node decides something."""
    asks: bool = False
    """Whether the agent may ask the person of the run."""


def build_call(work: NodeContext, *, alone: bool = False) -> AgentCall:
    """Build the call from the node's attributes. ``alone``: one of several prompts of a node,
    which resumes no session. Raises ``CallerError``."""
    node, resources = work.node, work.resources
    agent, model = agent_of(work)
    options, notes = options_of(work, agent)
    if model is not None:
        options["model"] = model
    until: Until | None = None
    if text := node.text("until"):
        command, values = shell_command(text, work.context)
        until = command_succeeds(
            command,
            env={**resources.command_env(work), **values, **node_env(work)},
            pass_env=resources.pass_env(work),
        )
    thread = work.visit.thread if work.visit.fidelity == "full" and not alone else None
    report = None if alone else _report(work, agent, options)
    return AgentCall(
        agent=agent,
        options=options,
        notes=notes,
        schema=schema_of(work),
        until=until,
        rounds=number_of(node, "rounds", int) if "rounds" in node.attrs else ROUNDS,
        hooks=hooks_of(work, agent),
        thread=thread,
        resume=None if thread is None else _session_to_resume(work, thread, agent),
        report=report,
        asks=may_ask(work),
    )


def _report(work: NodeContext, agent: str, options: RunKwargs) -> Report | None:
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
            policy = msgspec.structs.replace(policy, allow_tools=tools)
        options["policy"] = msgspec.structs.replace(policy, own_mcp="allow")
        return Report(wanted, "tool")
    if policy.write == "allow":
        path = str(work.folder.absolute() / run_dir.STATUS)
        return Report(wanted, "file", path)
    return Report(wanted, "answer")


def _session_to_resume(work: NodeContext, thread: str, agent: str) -> str | None:
    session = work.context.get(f"internal.thread.{thread}")
    if not isinstance(session, dict) or session.get("agent") != agent:
        return None
    token = session.get("resume_token")
    can_resume = config.find_agent(agent).resumes
    return token if isinstance(token, str) and token and can_resume else None


async def send_prompt(work: NodeContext, call: AgentCall, prompt: str) -> Result:
    """Run the prompt, after the preamble, to its end. ``prompt.md`` has what was sent."""
    if call.resume is not None:
        text = prompt
        if AFTER_LIMIT in work.context:
            from corral.sessions.limits.machine import CONTINUE

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
    full_prompt = preamble.with_preamble(work, prompt, work.visit.fidelity)
    work.write_file("prompt.md", full_prompt)
    return await _send(work, call, full_prompt)


async def _send(work: NodeContext, call: AgentCall, prompt: str) -> Result:
    prompt = work.resources.redactor.clean_text(prompt)
    with recorded_usage(work, call.agent, is_stored=bool(call.options.get("record"))) as emit:
        if work.budget is None and is_warm(call, prompt):
            return await work.resources.run_warm(call.agent, prompt, call.options, emit)
        if call.hooks is None:
            return await _run(work, call, prompt, emit)
        return await call.hooks.watch(emit, lambda emit: _run(work, call, prompt, emit))


def is_warm(call: AgentCall, prompt: str) -> bool:
    """Whether a warm process can serve it."""
    if any(each is not None for each in (call.schema, call.until, call.thread, call.hooks)):
        return False
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
        options["policy"] = msgspec.structs.replace(policy, writable=(*policy.writable, folder))
    if call.thread is None and not options.get("record"):
        options.setdefault("keep", False)
    if call.resume is not None:
        options["resume"] = call.resume
    return await run(
        call.agent,
        prompt,
        ask=_asker(work),
        on_tool_call=work.resources.on_tool_call,
        on_event=on_event,
        tools=_tools(call),
        budget=work.budget,
        output=call.schema,
        until=call.until,
        rounds=call.rounds,
        **options,
    )


def _tools(call: AgentCall) -> Tools | None:
    """The tools that corral adds for this prompt: the report tool, with the node's hooks."""
    hooks = None if call.hooks is None else call.hooks.tools
    if call.report is None or call.report.channel != "tool":
        return hooks
    return Tools([call.report.tool], agent_hooks=() if hooks is None else hooks.agent_hooks)


class Report:
    """The report that an agent must make, and the verdict that it reported with the tool."""

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


def _resets_at(work: NodeContext, call: AgentCall, error: CorralError) -> float | None:
    """When the node goes on after this limit; None if it does not wait for it."""
    if work.longest_hold is None or not isinstance(error, RateLimited):
        return None
    rule = limit_rule(work.node, work.resources.options, call.agent)
    if rule.on_limit != "wait":
        return None
    from corral.metering.rate_limits import state_of

    state = state_of(error, work.attempt)  # an end that is not known: each wait is longer
    too_long = state is None or state.until - clock.now() > rule.max_wait
    return None if state is None or too_long else state.until


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
        until = _resets_at(work, call, error)
        if until is not None:
            outcome = msgspec.structs.replace(outcome, resets_at=until)
            updates[AFTER_LIMIT] = {"agent": call.agent, "resume_token": result.resume_token}
    return msgspec.structs.replace(
        outcome,
        context_updates=updates,
        notes="; ".join(notes),
        cost_usd=result.cost.usd,
        tokens=result.usage.total,
    )
