"""Decides about the tool calls of agents that cannot ask over their own protocol.

``HookedCalls`` is ``on_tool_call`` for an agent that runs a command before each of its tool calls.
The command (``_system/hook_relay``) passes each call on to this process. The call is then decided
as a permission request is (``_sessions/permissions``): the policy, the caller's function, the
policy again. No person is asked: such an agent has denied what the policy would ask about.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count

from msgspec.structs import replace

from corral._agents.spec import CommandHook
from corral._core.nesting import decode_json
from corral._protocol.common_events import build_tool_use, named_paths
from corral._protocol.ndjson import RawEvent
from corral._sessions.permissions import PermissionQuestions, broker_of
from corral._sessions.prepared_run import PreparedRun
from corral.errors import CorralError, PolicyNotLoaded
from corral.events import PermissionRequest, ToolResult
from corral.policy import Action, Policy
from corral.values import JsonObject, as_object, as_text


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
            arguments = given if edited is None else edited
            kind = hook.kind_of(name)
            use = build_tool_use(number, name, arguments, kind=kind)
            text = None if kind == "edit" else arguments.get("command")  # it may be a patch
            command = text if isinstance(text, str) else None
            return (
                PermissionRequest(number, kind=kind, title=use.title, input=arguments),
                Action(name, kind, command, own=name.startswith(hook.own_prefix)),
                (*use.paths, *named_paths(name, kind, arguments)),
            )

        answer, edited = await self._questions.decide(describe, can_edit=True)
        if not answer.is_allowed:
            return hook.deny(answer.rule)
        return {} if edited is None or edited == given else hook.edit(edited)
