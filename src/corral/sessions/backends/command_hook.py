"""``on_tool_call`` for an agent that runs a command before each of its tool calls.

The command (``system/hook_relay``) passes each call on to this process. The call is then decided as
a permission request is (``sessions/permissions``): the policy, the caller's function, the policy
again. No person is asked: such an agent has denied what the policy would ask about.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from itertools import count

from msgspec.structs import replace

from corral.agents.spec import CommandHook
from corral.core.nesting import decode_json
from corral.errors import CorralError, PolicyNotLoaded
from corral.events import PermissionRequest, ToolResult
from corral.policy import Action, Policy
from corral.protocol.common_events import build_tool_use
from corral.protocol.named_paths import named_paths
from corral.protocol.ndjson import RawEvent
from corral.sessions.permissions import (
    PermissionAnswer,
    PermissionQuestions,
    Question,
    broker_of,
)
from corral.sessions.prepared_run import PreparedRun
from corral.values import Json, JsonObject, as_object, as_text


def hook_questions(prepared: PreparedRun, emit: Callable[[RawEvent], None]) -> PermissionQuestions:
    """The questions of the agent's command hook. In ``native`` mode the agent's own defaults
    judge each call after the hook, and corral has no rules."""
    run = prepared.run
    if run.policy.mode == "native":
        prepared = replace(prepared, run=replace(run, policy=Policy.full()))
    return PermissionQuestions(broker_of(prepared, None), emit, set())


class HookedCalls:
    """Decides about the calls that the command passes on. It holds the questions and not the
    agent's process: see ``HookSocket``."""

    def __init__(
        self, hook: CommandHook, questions: PermissionQuestions, emit: Callable[[RawEvent], None]
    ) -> None:
        self._hook = hook
        self._questions = questions
        self._emit = emit
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
        name, given = as_text(call.get(hook.fields[0])), _arguments(call.get(hook.fields[1]))
        answered: asyncio.Future[tuple[PermissionAnswer, JsonObject]] = (
            asyncio.get_running_loop().create_future()
        )
        question = self._question(hook.names.get(name, name), given, answered)
        self._emit(question.request)
        self._questions.put(question)
        try:
            answer, arguments = await answered
        except asyncio.CancelledError:
            self._questions.withdraw(question.request.request_id)
            raise
        if not answer.is_allowed:
            return hook.deny(answer.rule)
        return {} if arguments == given else hook.edit(arguments)

    def _question(
        self,
        name: str,
        given: JsonObject,
        answered: asyncio.Future[tuple[PermissionAnswer, JsonObject]],
    ) -> Question:
        request_id, kind = f"hook-{next(self._numbers)}", self._hook.kind_of(name)

        def question(arguments: JsonObject) -> Question:
            def reply(answer: PermissionAnswer) -> None:
                if not answered.done():
                    answered.set_result((answer, arguments))

            use = build_tool_use("", name, arguments, kind=kind)
            command = None if kind == "edit" else arguments.get("command")  # it may be a patch
            request = PermissionRequest(request_id, kind=kind, title=use.title, input=arguments)
            action = Action(
                name,
                kind,
                command if isinstance(command, str) else None,
                own=name.startswith(self._hook.own_prefix),
            )
            paths = (*use.paths, *named_paths(name, kind, arguments))
            return Question(request, action, paths, reply, edited)

        def edited(arguments: JsonObject) -> Question:
            return replace(question(arguments), new_input=arguments)

        return question(given)


def _arguments(given: Json) -> JsonObject:
    return as_object(decode_json(given) if isinstance(given, str) else given)
