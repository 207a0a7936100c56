"""One session of an ACP agent: its items, its permission requests and its file requests."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from typing import TypeAlias

from corral.events import FileChange, PermissionDecision, PermissionRequest, ToolUse
from corral.policy import Action
from corral.protocol.acp.client import (
    AcpClient,
    AcpPermissionRequest,
    Command,
    FileRequest,
    PermissionWithdrawn,
)
from corral.protocol.jsonrpc import Id
from corral.protocol.named_paths import named_paths
from corral.protocol.ndjson import RawEvent
from corral.sessions.acp.client_files import ClientFiles, Outside
from corral.sessions.permissions import PermissionAnswer, PermissionBroker
from corral.values import Json

CarryOut: TypeAlias = Callable[[list[Command]], None]
_OWN_PREFIXES = ("mcp_corral_", "mcp__corral__")
"""How the tools of our own server are named, by one agent or another."""


CANCEL_TIMEOUT = 5.0
"""Seconds for questions that were cancelled to end."""


class AcpSession:
    """Its items wait in ``inbox``. ``carry_out`` is how what it decides reaches the agent."""

    def __init__(
        self, acp: AcpClient, broker: PermissionBroker, files: ClientFiles, carry_out: CarryOut
    ) -> None:
        self.session_id = ""
        self.inbox: list[RawEvent] = []
        self.models: tuple[str, ...] = ()
        """Those the agent lists, perhaps not all it has."""
        self.model: str | None = None
        """The one that answers now, where that is known."""
        self.first_model: str | None = None
        """The one that the agent chose when the session was opened."""
        self._acp = acp
        self._broker = broker
        self._files = files
        # A question that waits for a person must not keep a dropped session's process alive.
        self._connection = weakref.WeakMethod(carry_out)
        self._questions: dict[Id, asyncio.Task[None]] = {}
        self._cancelled: list[asyncio.Task[None]] = []
        """Cancelled questions that may still have to clean up."""
        self._granted_writes: set[str] = set()
        """Paths that a person allowed to write once; the agent then asks us to write them."""
        self._granted_all = False
        self._granted_reads: set[str] = set()
        """Paths that a person let the agent read."""
        self._granted_calls: set[tuple[str, str | None]] = set()
        """Tools, with the command where there is one, that a person allowed for the session."""
        self.was_prompted = False
        """It was prompted before. Until then, text is a greeting and part of the answer."""
        self.is_abandoned = False
        """Its turn does not end; nobody waits for it any more."""

    def use_policy(self, broker: PermissionBroker, files: ClientFiles) -> None:
        """From now on permission requests are answered by this policy."""
        self._broker, self._files = broker, files

    def handle_permission_request(self, ask: AcpPermissionRequest) -> None:
        """The agent requests a permission: answered by the policy, or by a person."""
        call = ask.call
        request = PermissionRequest(
            str(ask.request_id),
            call_id=call.call_id,
            kind=call.kind,
            title=call.title,
            input=call.input,
        )
        self.inbox.append(request)
        answer = self._broker.policy_answer(_action(ask), _paths(call))
        if answer is None and (call.name, ask.command) in self._granted_calls:
            answer = PermissionAnswer("allow_session", "person", "asked before")
        if answer is not None:
            self._send_decision(ask, answer)
            return
        task = asyncio.get_running_loop().create_task(self._ask_person(ask, request))
        self._questions[ask.request_id] = task

    def handle_withdrawal(self, withdrawn: PermissionWithdrawn) -> None:
        question = self._questions.pop(withdrawn.request_id, None)
        if question is None:  # it is decided already
            return
        question.cancel()
        self._cancelled.append(question)
        decision = PermissionDecision(str(withdrawn.request_id), "cancel", "agent")
        self.inbox.append(decision)

    def serve(self, serve: FileRequest) -> None:
        """The agent wants to read or write a file through us."""
        params = serve.params if isinstance(serve.params, dict) else {}
        path = params.get("path")
        try:
            if not isinstance(path, str):
                raise Outside("no path was given")
            self._carry_out(
                self._acp.answer_file_request(
                    serve.request_id, self._serve_file(serve, path, params)
                )
            )
        except FileNotFoundError:
            self._carry_out(self._acp.answer_missing_file(serve.request_id, str(path)))
        except (Outside, OSError) as error:
            self._carry_out(self._acp.reject_file_request(serve.request_id, str(error)))

    @property
    def is_asking(self) -> bool:
        """Whether the agent waits for a person's answer."""
        return bool(self._questions)

    async def close(self) -> None:
        """No question outlives its session."""
        for question in self._questions.values():
            question.cancel()
        questions = [*self._questions.values(), *self._cancelled]
        self._questions.clear()
        self._cancelled.clear()
        if questions:  # whoever is asked may go on after it was cancelled: not for ever
            await asyncio.wait(questions, timeout=CANCEL_TIMEOUT)

    def _serve_file(self, serve: FileRequest, path: str, params: dict[str, Json]) -> Json:
        if serve.method == "fs/read_text_file":
            answer = self._broker.policy_answer(Action(serve.method, "read"))
            if answer is not None and not answer.decision.startswith("allow"):
                raise Outside(f"reading is not allowed ({answer.rule})")
            if answer is None and path not in self._granted_reads:
                raise Outside("reading needs a permission that nobody has given yet")
            line, limit = params.get("line"), params.get("limit")
            content = self._files.read(
                path,
                line if isinstance(line, int) else None,
                limit if isinstance(limit, int) else None,
            )
            return {"content": content}
        answer = self._broker.policy_answer(Action(serve.method, "edit"))
        is_granted = answer is None and (self._granted_all or path in self._granted_writes)
        if not is_granted and (answer is None or not answer.decision.startswith("allow")):
            raise Outside("writing is not allowed")
        self._granted_writes.discard(path)
        content_given = params.get("content")
        text = content_given if isinstance(content_given, str) else ""
        written, is_new = self._files.write(path, text)
        self.inbox.append(FileChange(str(written), "created" if is_new else "modified"))
        return None

    async def _ask_person(self, ask: AcpPermissionRequest, request: PermissionRequest) -> None:
        answer = await self._broker.ask_person(request)
        answer = self._broker.confirm(answer, _action(ask), _paths(ask.call))
        if self._questions.pop(ask.request_id, None) is not None:
            self._send_decision(ask, answer)

    def _carry_out(self, commands: list[Command]) -> None:
        carry_out = self._connection()
        if carry_out is not None:
            carry_out(commands)

    def _send_decision(self, ask: AcpPermissionRequest, answer: PermissionAnswer) -> None:
        self.inbox.append(
            PermissionDecision(
                str(ask.request_id),
                answer.decision,
                answer.by,
                call_id=ask.call.call_id,
                rule=answer.rule,
            )
        )
        if answer.by == "person" and answer.decision == "allow_session":
            self._granted_calls.add((ask.call.name, ask.command))
        if (
            answer.by == "person"
            and ask.call.kind == "read"
            and answer.decision.startswith("allow")
        ):
            self._granted_reads.update(ask.call.paths)
        if answer.by == "person" and ask.call.kind == "edit":
            self._granted_all = self._granted_all or answer.decision == "allow_session"
            if answer.decision == "allow_once":
                self._granted_writes.update(ask.call.paths)
        if answer.decision == "cancel":
            self._carry_out(self._acp.cancel(self.session_id))
        decision = answer.decision
        if decision == "allow_session" and not self._broker.is_unlimited:
            # An agent that may always do it asks no more, and paths and rules are not judged.
            decision = "allow_once"
        option = ask.option_for(decision)
        self._carry_out(self._acp.answer_permission(ask.request_id, option))


def _action(ask: AcpPermissionRequest) -> Action:
    call = ask.call
    return Action(call.name, call.kind, ask.command, own=call.name.startswith(_OWN_PREFIXES))


def _paths(call: ToolUse) -> tuple[str, ...]:
    return (*call.paths, *named_paths(call.name, call.kind, call.input))
