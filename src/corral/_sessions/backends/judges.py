"""Decides about the tool calls of agents that cannot ask over their own protocol.

``HookedCalls`` is ``on_tool_call`` for an agent that runs a command before each of its tool calls.
The command (``_system/hook_relay``) passes each call on to this process. The call is then decided
as a permission request is (``_sessions/permissions``): the policy, the caller's function, the
policy again. No person is asked: such an agent has denied what the policy would ask about.

``WireJudge`` decides about the tool calls in the responses of a model. The model proxy holds each
call back (``corral._metering.proxy.judged``). Here it is decided as a permission request is
(``_sessions/permissions``): by the policy with its rules and paths, or by a person. The agent's own
record of its tools (``WireTools``) says what a call means.

All calls of a response are made, or none: if one is refused, the model gets a refusal for each of
them. Those that the policy refuses are decided first. Then no person is asked about the others. A
refused call is reported as ``tool_use`` with a ``tool_result`` of the status ``denied``, although
the agent never saw it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Protocol

from msgspec.structs import replace

from corral._agents.spec import CommandHook, WireTools, stream_transport
from corral._core.nesting import decode_json
from corral._models.tool_gate import WireCall
from corral._protocol.common_events import build_tool_use, named_paths
from corral._protocol.ndjson import RawEvent
from corral._sessions.permissions import (
    Granted,
    PermissionAnswer,
    PermissionBroker,
    PermissionQuestions,
    broker_of,
)
from corral._sessions.prepared_run import PreparedRun
from corral.errors import CorralError, PermissionRefused, PolicyNotLoaded, StreamBroken
from corral.events import PermissionRequest, ToolResult
from corral.policy import Action, Policy
from corral.values import JsonObject, as_object, as_text, weak_callback


def hook_questions(prepared: PreparedRun, emit: Callable[[RawEvent], None]) -> PermissionQuestions:
    """The questions of the agent's command hook. In ``native`` mode the agent's own defaults
    judge each call after the hook, and corral has no rules."""
    run = prepared.run
    if run.policy.mode == "native":
        prepared = replace(prepared, run=replace(run, policy=Policy.all()))
    return PermissionQuestions(broker_of(prepared, None), emit, set())


class HookedCalls:
    """Decides about the calls that the command passes on. It holds the questions and not the
    agent's process: see ``HookSocket``."""

    def __init__(self, hook: CommandHook, questions: PermissionQuestions) -> None:
        self._hook = hook
        self._questions = questions
        self._numbers = count(1)
        self._unshown = 0
        """Calls that succeeded, less those that were shown to the hook."""

    def check(self, items: Iterable[RawEvent]) -> CorralError | None:
        """The error if the agent made a call that it did not show to the hook: then another
        version of it, or its settings, left the hook out."""
        succeeded = (isinstance(item, ToolResult) and item.status == "success" for item in items)
        self._unshown += sum(succeeded)
        if self._unshown <= 0:
            return None
        return PolicyNotLoaded(
            "the agent made a tool call without showing it to on_tool_call, and was ended at once",
            hint="Install the tested version of the agent: corral agents install.",
        )

    async def decide(self, call: JsonObject) -> JsonObject:
        """The answer to one call, in the agent's format."""
        self._unshown -= 1
        hook = self._hook
        name, sent = as_text(call.get(hook.fields[0])), call.get(hook.fields[1])
        name = hook.names.get(name, name)
        given = as_object(decode_json(sent) if isinstance(sent, str) else sent)
        number = f"hook-{next(self._numbers)}"

        def describe(
            edited: JsonObject | None,
        ) -> tuple[PermissionRequest, Action, tuple[str, ...]]:
            return _JudgedCall(hook, number, name, given if edited is None else edited).facts

        answer, edited = await self._questions.decide(describe, can_edit=True)
        if not answer.is_allowed:
            return hook.deny(answer.rule)
        return {} if edited is None or edited == given else hook.edit(edited)


NO_TEXT = "its command is not a text"
PROVIDER_TOOLS = "the policy denies the network, and the model's vendor would run: {names}"


class JudgedTurn(Protocol):
    """What a judge needs of the turn of its agent. It is held weakly: the event loop holds the
    judge, and a dropped session must end its agent."""

    def emit(self, item: RawEvent) -> None: ...

    def fail(self, error: CorralError) -> None: ...


class WireJudge:
    """See ``corral._metering.proxy.open_calls.ToolJudge``."""

    def __init__(
        self,
        tools: WireTools,
        broker: PermissionBroker,
        granted: set[Granted],
        turn: JudgedTurn,
        *,
        denies_network: bool,
    ) -> None:
        self._tools = tools
        self._denies_network = denies_network
        self._emit, self._fail = weak_callback(turn.emit), weak_callback(turn.fail)
        self._numbers = count(1)
        self.questions: PermissionQuestions = PermissionQuestions(broker, self._emit, granted)

    @classmethod
    def of(
        cls,
        prepared: PreparedRun,
        broker: PermissionBroker,
        granted: set[Granted],
        turn: JudgedTurn,
    ) -> WireJudge:
        tools = stream_transport(prepared.agent).wire
        if tools is None:
            raise TypeError(f"{prepared.agent.name} cannot be judged at the wire")
        denies_network = any(
            row.capability == "network" and not row.is_allowed and row.enforcer != "wire"
            for row in prepared.compiled.report
        )
        return cls(tools, broker, granted, turn, denies_network=denies_network)

    def refuse_tools(self, names: Sequence[str]) -> str | None:
        if not names or not self._denies_network:
            return None
        text = PROVIDER_TOOLS.format(names=", ".join(dict.fromkeys(names)))
        self.fail(text)
        return text

    def fail(self, text: str) -> None:
        self._fail(
            PermissionRefused(
                f"a call was refused, and the run cannot continue without it: {text}",
                hint="Allow it in the policy, or use an agent that asks for permission.",
            )
        )

    def fail_unreadable(self, text: str) -> None:
        self._fail(
            StreamBroken(
                f"a response of the model cannot be judged: {text}",
                hint="The agent did not get it. If the server of the model is one that you"
                " trust, its format is not supported for agents that cannot ask:"
                " use another agent, or a policy without questions and rules.",
                retryable=False,
            )
        )

    async def decide(self, calls: Sequence[WireCall]) -> list[str] | None:
        asked: list[_JudgedCall] = []
        for call in calls:
            name, arguments = self._tools.rewrite(call.name, call.arguments)
            number = f"wire-{next(self._numbers)}"
            asked.append(_JudgedCall(self._tools, number, name, arguments, call))
        # Those that the policy refuses come first: then no person is asked about the others.
        asked.sort(key=self._is_open)
        for judged in asked:
            answer = PermissionAnswer("deny", "policy", judged.problem)
            if not judged.problem:
                answer, _ = await self.questions.decide(judged.describe, can_edit=False)
            if not answer.is_allowed:
                self._emit(judged.use)
                self._emit(ToolResult(judged.use.call_id, "denied", error=answer.rule))
                if answer.decision == "cancel":
                    self.fail(f"{judged.use.name}: {answer.rule}")
                return [_result(call, judged, answer.rule) for call in calls]
        return None

    def _is_open(self, judged: _JudgedCall) -> bool:
        """Whether it may still be allowed."""
        _, action, paths = judged.facts
        answer = self.questions.broker.policy_answer(action, paths)
        return not judged.problem and (answer is None or answer.is_allowed)


class _JudgedCall:
    """A call as the policy and a person see it. ``wire`` is the call of the model's response."""

    def __init__(
        self,
        tools: CommandHook | WireTools,
        number: str,
        name: str,
        arguments: JsonObject,
        wire: WireCall | None = None,
    ) -> None:
        self.wire = wire
        kind = tools.kind_of(name)
        self.use = build_tool_use(number, name, arguments, kind=kind)
        command = None if kind == "edit" else arguments.get("command")  # it may be a patch
        self.problem = "" if wire is None else wire.problem
        if kind == "execute" and not isinstance(command, str | None):
            self.problem = NO_TEXT  # some agents make a text of it, which no rule would have seen
        shell = command if isinstance(command, str) else None
        call_id = None if wire is None else number
        self.facts = (
            PermissionRequest(
                number, call_id=call_id, kind=kind, title=self.use.title, input=arguments
            ),
            Action(name, kind, shell, own=name.startswith(tools.own_prefix)),
            (*self.use.paths, *named_paths(name, kind, arguments)),
        )
        """The request, the action, and the paths that the call names."""

    def describe(
        self, _edited: JsonObject | None
    ) -> tuple[PermissionRequest, Action, tuple[str, ...]]:
        """The same facts for any input: a call in a model's response cannot be edited."""
        return self.facts


def _result(call: WireCall, refused: _JudgedCall, rule: str) -> str:
    """What the model gets as the result of a call."""
    if call is refused.wire:
        return f"Denied by policy: {rule}. The call was not made. Do not try it in another way."
    return (
        f"Not made, because another call of the same message ({refused.use.name}) was denied by"
        " policy. Make it again if it is still needed."
    )
