"""One session of a client: its prompts, its mode and options, and what its agent asks the client.

Theory of operation
-------------------
``AcpService`` makes a ``ServedSession`` for each session that the client opens, and calls it from
one event loop. The state machine (``corral._protocol.acp.server``) lets no second prompt in while
one is answered; modes and options may change at any time and apply to the next prompt.

``prompt`` reads the turn batch by batch, and waits after each until the client has taken it: a slow
client slows the agent. ``cancel`` ends the turn; the rest of its events are still sent, then the
reply says ``cancelled``.

The agent's requests reach ``ask``. The client may never answer: the broker
(``corral._sessions.permissions``) cancels ``ask`` after ``answer_timeout`` and denies; the client
is then sent that its answer is not needed any more. A request is sent after the updates that came
before it, so that the client knows the tool call.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, cast

import msgspec

from corral._core.question_replies import AnswerLike, text_of
from corral._protocol.acp.frames import (
    ElicitationReply,
    PermissionOption,
    PermissionParams,
    PermissionReply,
    PromptParams,
)
from corral._protocol.acp.server import UpdateEncoder
from corral._protocol.question_forms import elicited_answers, question_schema
from corral._serving.acp.client_files import ClientFiles
from corral._serving.acp.content import PromptContent, read_content
from corral._serving.acp.editor_client import EditorClient
from corral._serving.acp.modes import (
    DEFAULT,
    PolicyMode,
    config_options,
    mode_state,
    models_for,
    modes_within,
    vendor_of_model,
)
from corral._serving.acp.updates import SessionUpdates
from corral._serving.allowance import check_prompt
from corral._sessions.session import Session
from corral._sessions.turn import Turn
from corral._system import fs, paths
from corral.errors import ConfigError, ContentRefused, ContextLengthExceeded, Interrupted
from corral.events import (
    AgentQuestion,
    Done,
    Event,
    PermissionDecision,
    PermissionRequest,
    Text,
    Thinking,
)
from corral.values import Effort, Json, JsonObject, as_object, convert_to

if TYPE_CHECKING:
    from corral.run_kwargs import PromptKwargs

OPTIONS = (
    PermissionOption("allow_once", "Allow", "allow_once"),
    PermissionOption("allow_session", "Always allow in this session", "allow_always"),
    PermissionOption("deny", "Reject", "reject_once"),
)
"""Their ids are the decisions of corral."""
TOGETHER = 0.01
"""Seconds in which pieces of text are collected: an update costs most where it is sent and read,
and some agents send a few characters in each."""
SHOWN_FIRST = 1.0
"""Seconds that a request waits for the updates that came before it."""
STOP_REASONS = {
    ContentRefused.code: "refusal",
    ContextLengthExceeded.code: "max_tokens",
}
AUTHENTICATION = frozenset({"authentication", "missing_key"})


class PromptFailed(Exception):
    """The turn ended without a success that the protocol has a stop reason for."""

    def __init__(self, done: Done) -> None:
        super().__init__(done.status)
        self.done = done


class ServedSession:
    """``session`` was made with ``ask`` and ``files`` of this object, and is open."""

    def __init__(self, client: EditorClient) -> None:
        self._client = client
        self.files: ClientFiles = ClientFiles(client)
        self.session: Session
        self._turn: Turn | None = None
        self._is_cancelled = False
        self._shown: dict[str, asyncio.Event] = {}
        """Requests of the agent: id → whether the updates before it were sent."""
        self._rejected = False
        """The client denied something in this turn."""
        self._prompts = 0

    def open(self, session: Session, cwd: str) -> None:
        """``cwd`` is the session's folder as the client has named it."""
        self.session = session
        self.files.open(session, cwd)
        prepared = session.prepared
        agent, run = prepared.agent, prepared.run
        self.id: str = session.id
        self.modes: list[PolicyMode] = modes_within(run.policy, agent.tools)
        self.mode: PolicyMode = self.modes[0]
        self._models = models_for(agent, run.model)
        self._model = run.model
        self._has_effort = "reasoning_effort" in agent.supports
        self._effort: Effort | None = run.reasoning_effort
        self.updates: SessionUpdates = SessionUpdates(
            prepared.cwd, vendor_of_model(agent, run.model)
        )
        self.encoder: UpdateEncoder = UpdateEncoder(self.id)

    @property
    def state(self) -> JsonObject:
        """What the client is sent about the session when it is opened."""
        return {"modes": mode_state(self.modes, self.mode), "configOptions": self.options}

    @property
    def options(self) -> list[Json]:
        effort = None if not self._has_effort else self._effort or ""
        return config_options(self.modes, self.mode, self._models, self._model, effort)

    def set_mode(self, mode_id: str) -> None:
        """Raises ``ConfigError`` for a mode that is not offered."""
        self.mode = self._find_mode(mode_id)

    def _find_mode(self, mode_id: str) -> PolicyMode:
        for mode in self.modes:
            if mode.id == mode_id:
                return mode
        offered = ", ".join(mode.id for mode in self.modes)
        raise ConfigError(f"no mode is called {mode_id[:100]!r}: the modes are {offered}")

    def set_option(self, name: str, value: Json) -> None:
        """Raises ``ConfigError`` for an option or a value that is not offered."""
        if not isinstance(value, str):
            raise ConfigError(f"the value of {name[:100]!r} must be a text")
        offered = [as_object(each).get("id") for each in self.options]
        if name not in offered:
            raise ConfigError(f"no option is called {name[:100]!r}")
        if name == "mode":
            self.set_mode(value)
        elif name == "model":
            if value not in (DEFAULT, self.session.prepared.run.model, *self._models):
                raise ConfigError(f"the model {value[:100]!r} is not offered")
            self._model = None if value == DEFAULT else value
        else:
            try:
                self._effort = None if value == DEFAULT else convert_to(value, Effort)
            except msgspec.ValidationError as error:
                raise ConfigError(f"the effort {value[:100]!r} is not offered") from error

    async def prompt(self, params: PromptParams) -> JsonObject:
        """Answer a prompt; the result of the call. Raises ``CorralError`` and ``TurnFailed``."""
        self._prompts += 1
        self._rejected = False
        self.updates.start_turn()
        done: Done | None = None
        try:
            content = read_content(params.prompt, self._save)
            check_prompt(content.text)
            self._turn = turn = self.session.turn(content.text, self._prompt_options(content))
            if self._is_cancelled:
                turn.cancel()
            while batch := await turn.next_batch():
                await self._show(batch)
                last = batch[-1]
                if isinstance(last, Done):
                    done = last
                elif isinstance(last, Text | Thinking):
                    await asyncio.sleep(TOGETHER)
        except Interrupted:
            if not self._is_cancelled:
                raise
        finally:
            self._turn = None
            self._is_cancelled = False
            self._shown.clear()
        return {"stopReason": self._stop_reason(done), **_usage(done)}

    def _prompt_options(self, content: PromptContent) -> PromptKwargs:
        run = self.session.prepared.run
        chosen: dict[str, object] = {**content.files()}
        if self.mode is not self.modes[0]:
            chosen["policy"] = self.mode.policy
        if self._model != run.model and self._model is not None:
            chosen["model"] = self._model
        if self._effort != run.reasoning_effort and self._effort is not None:
            chosen["reasoning_effort"] = self._effort
        return cast("PromptKwargs", chosen)

    def _save(self, ending: str, data: bytes) -> str:
        """Store a file of the prompt with the session."""
        folder = paths.make_dir(paths.sessions() / self.id / "prompt-files")
        number = len(fs.list_names(folder)) + 1
        path = Path(folder, f"{self._prompts}-{number}{ending}")
        paths.write_private(path, data)
        return str(path)

    async def _show(self, batch: list[Event]) -> None:
        data = self.encoder.lines(self.updates.of_batch(batch))
        if data:
            await self._client.send(data)
        for event in batch:
            if isinstance(event, PermissionRequest | AgentQuestion):
                self._shown.setdefault(event.request_id, asyncio.Event()).set()
            elif isinstance(event, PermissionDecision) and event.by in ("person", "timeout"):
                self._rejected = self._rejected or event.decision in ("deny", "cancel")

    def _stop_reason(self, done: Done | None) -> str:
        """Raises ``TurnFailed``: an error is never reported as the end of an answer."""
        status = "interrupted" if done is None else done.status
        if status == "success":
            return "end_turn"
        if status == "interrupted" or (status == "denied" and self._rejected):
            return "cancelled"
        if status == "max_turns":
            return "max_turn_requests"
        if done is not None and done.error is not None and done.error.code in STOP_REASONS:
            return STOP_REASONS[done.error.code]
        if done is None:
            raise TypeError("a turn without an end was cancelled")
        raise PromptFailed(done)

    def cancel(self) -> None:
        self._is_cancelled = True
        if self._turn is not None:
            self._turn.cancel()

    def steer(self, params: PromptParams) -> JsonObject:
        """Pass a text to the turn that is under way. Raises ``CorralError``."""
        if self._turn is None:
            return {"outcome": "promptRequired", "reason": "noRunningTurn"}
        content = read_content(params.prompt, self._save)
        if content.files():
            raise ConfigError("only text can be sent to a turn that is under way")
        self.session.steer(content.text)
        return {"outcome": "injected"}

    async def replay(self, events: list[Event]) -> None:
        """Send the history of the session."""
        await self._client.send(self.encoder.lines(self.updates.of_history(events)))

    async def ask(self, request: PermissionRequest | AgentQuestion) -> AnswerLike:
        """What the client answers to a request of the agent."""
        shown = self._shown.setdefault(request.request_id, asyncio.Event())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SHOWN_FIRST):
                await shown.wait()
        if isinstance(request, AgentQuestion):
            return await self._ask_question(request)
        call = self.updates.tool_fields(
            request.call_id or request.request_id, request.kind, request.title, request.input
        )
        call.status = "pending"
        params = PermissionParams(self.id, call, list(OPTIONS))
        result = await self._client.request("session/request_permission", self.id, params)
        outcome = convert_to(result, PermissionReply).outcome
        if outcome.outcome == "selected":
            known = [option.option_id for option in OPTIONS]
            return outcome.option_id if outcome.option_id in known else "deny"
        return "cancel"

    async def _ask_question(self, question: AgentQuestion) -> AnswerLike:
        params: JsonObject = {
            "sessionId": self.id,
            "mode": "form",
            "message": question.title or text_of(question),
            "requestedSchema": question_schema(question.fields),
        }
        if question.call_id is not None:
            params["toolCallId"] = self.updates.call_id(question.call_id)
        result = await self._client.request("elicitation/create", self.id, params)
        reply = convert_to(result, ElicitationReply)
        if reply.action == "accept":
            answers = elicited_answers(question.fields, reply.content)
            return answers if question.fields else "yes"
        return "cancel" if reply.action == "cancel" else "deny"


def _usage(done: Done | None) -> JsonObject:
    """The usage of a turn, for its reply."""
    if done is None or done.usage.total is None:
        return {}
    usage = done.usage
    counts: JsonObject = {
        "inputTokens": usage.input,
        "outputTokens": usage.output,
        "totalTokens": usage.total,
        "thoughtTokens": usage.reasoning,
        "cachedReadTokens": usage.cache_read,
        "cachedWriteTokens": usage.cache_write,
    }
    if usage.input is None or usage.output is None:
        return {}
    return {"usage": {name: count for name, count in counts.items() if count is not None}}
