"""Permission requests: answered by the policy, by the caller's ``on_tool_call`` or by a person, or
denied.

The policy comes first. What it does not deny is shown to ``on_tool_call`` (see
``_sessions/tools/hooks``), which may deny or edit it. Then the policy judges it again, and
asks a person if it must.

A request to read or write is also judged by its paths, after links are resolved and at the moment
of the answer:

- A write is denied without asking if it is outside the workspace and the writable folders, of a
  protected name (``corral._core.protected_paths``), or of files that the request does not name. No
  policy allows it.
- A read outside follows the policy for commands: an agent that may run commands can read anything.
- An unlimited policy has no workspace. In ``native`` mode a person may allow what is outside.

A person is asked one question at a time, so that one answer cannot approve two things. The question
is open at all places at once: where the caller's ``ask`` shows it, and for other processes
(``corral.live``). The first answer counts. The protocol modules choose the agent's option for a
decision.

A question of the agent to a person (``AgentQuestion``) goes the same way, but no policy answers it.
If there is no one to ask, it is refused at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import TYPE_CHECKING, TypeAlias, cast, get_args

import msgspec

from corral._protocol.ndjson import RawEvent
from corral._sessions.prepared_run import Answers, PreparedRun
from corral._sessions.store import SessionRecord
from corral._system.path_guard import PathGuard
from corral.events import (
    AgentQuestion,
    Decider,
    Decision,
    PermissionDecision,
    PermissionRequest,
    QuestionAnswer,
)
from corral.options import PermissionMode
from corral.policy import CAPABILITY_OF, Action, Policy, Ruling
from corral.values import Json, JsonObject, as_object

if TYPE_CHECKING:
    from corral._core.question_replies import AnswerLike, QuestionReply
    from corral._sessions.tools.hooks import ToolCallHook

PersonAsker: TypeAlias = (
    "Callable[[PermissionRequest | AgentQuestion], Awaitable[AnswerLike] | AnswerLike]"
)
"""Answers permission requests with a ``Decision``, and questions with an ``AnswerLike``."""
Asker: TypeAlias = "Callable[[PermissionRequest], Awaitable[Decision] | Decision] | PersonAsker"
"""A person at a terminal, a web page, a callback. One that knows only permission requests gives no
answer to questions."""

CANCEL_TIMEOUT = 5.0
"""Seconds that questions get to end once they are cancelled."""

LOCAL_FIRST = 0.2
"""Seconds that only the caller's own ``ask`` has: if it answers at once, no other process is
asked."""

NOT_EDITABLE = "on_tool_call edited the call, which this agent does not support"
EDITED = "on_tool_call edited the call"

_VALID_DECISIONS: tuple[Decision, ...] = get_args(Decision)


class QuestionAsker(msgspec.Struct, frozen=True):
    """An ``ask`` for questions only. Permission requests are answered as without ``ask``."""

    answer: Callable[[AgentQuestion], Awaitable[AnswerLike]]

    async def __call__(self, request: PermissionRequest | AgentQuestion) -> AnswerLike:
        return await self.answer(request) if isinstance(request, AgentQuestion) else "deny"


class PermissionAsker(msgspec.Struct, frozen=True):
    """An ``ask`` for permission requests only. The agent gets no tool for questions."""

    answer: Callable[[PermissionRequest], Awaitable[AnswerLike]]

    async def __call__(self, request: PermissionRequest | AgentQuestion) -> AnswerLike:
        return await self.answer(request) if isinstance(request, PermissionRequest) else None


def answers_of(ask: Asker | None) -> Answers:
    """What a person can be asked with this ``ask``."""
    if ask is None:
        return "nothing"
    if isinstance(ask, PermissionAsker):
        return "permissions"
    return "questions" if isinstance(ask, QuestionAsker) else "all"


class PermissionAnswer(msgspec.Struct, frozen=True):
    decision: Decision
    by: Decider
    rule: str

    @property
    def is_allowed(self) -> bool:
        return self.decision.startswith("allow")


class PermissionBroker:
    def __init__(
        self,
        policy: Policy,
        ask: Asker | None = None,
        timeout: float = 300.0,
        mode: PermissionMode = "prompt",
        *,
        guard: PathGuard | None = None,
        hook: ToolCallHook | None = None,
        session: tuple[PreparedRun, SessionRecord] | None = None,
    ) -> None:
        """``timeout``: seconds a question may stay unanswered before it is denied. ``guard``
        judges the paths of requests; None where the caller does so itself. ``hook`` decides about
        what the policy does not deny. ``session``: whose questions they are, for other
        processes."""
        self.hook = hook
        self._guard = None if policy.is_unlimited else guard
        self._mode = mode
        self._policy = policy
        self._ask = ask
        self._timeout = timeout
        self._session = session
        remote = session is not None and session[0].run.is_answered_remotely
        self.can_ask: bool = answers_of(ask) in ("questions", "all") or remote
        """Whether a person can be asked a question."""
        self._can_ask = answers_of(ask) in ("permissions", "all") or remote
        """Whether a person can be asked for a permission."""
        self._turn = asyncio.Lock()

    @property
    def is_unlimited(self) -> bool:
        """Whether the policy knows no workspace."""
        return self._policy.is_unlimited

    def policy_answer(
        self, action: Action, paths: Collection[str] | None = None
    ) -> PermissionAnswer | None:
        """The policy's answer; None if a person decides. ``paths`` are all paths that the
        request names; None for a request that is not about files."""
        ruling = self._policy.evaluate(action)
        if ruling.verdict != "deny" and paths is not None:
            ruling = self._path_ruling(action, paths) or ruling
        if ruling.verdict == "allow":
            return PermissionAnswer("allow_once", "policy", ruling.rule)
        if ruling.verdict == "ask" and self._mode != "prompt":
            answer_given: Decision = "allow_once" if self._mode == "auto" else "deny"
            return PermissionAnswer(
                answer_given, "policy", f"{ruling.rule}, permission_mode={self._mode}"
            )
        if ruling.verdict == "deny" or not self._can_ask:
            suffix = "" if ruling.verdict == "deny" else ", and no one to ask"
            return PermissionAnswer("deny", "policy", ruling.rule + suffix)
        return None

    def confirm(
        self, answer: PermissionAnswer, action: Action, paths: Collection[str]
    ) -> PermissionAnswer:
        """A person's answer, or a denial if the named paths have become denied meanwhile."""
        if not answer.is_allowed:
            return answer
        ruling = self._path_ruling(action, paths)
        if ruling is not None and ruling.verdict == "deny":
            return PermissionAnswer("deny", "policy", ruling.rule)
        return answer

    def _path_ruling(self, action: Action, paths: Collection[str]) -> Ruling | None:
        """The ruling on the paths of a request; None if they allow it."""
        capability = CAPABILITY_OF[action.kind]
        if self._guard is None or capability not in ("read", "write"):
            return None
        refusal = self._guard.refusal(paths, "write" if capability == "write" else "read")
        if capability == "write" and not paths:
            refusal = "the request does not name the files it writes"
        if refusal is None:
            return None
        if self._policy.mode == "native" and self._mode == "prompt":
            return Ruling("ask", refusal)
        if capability == "read" and self._policy.allow_tools is None:
            shell = self._policy.verdict("shell")
            return None if shell == "allow" else Ruling(shell, f"{refusal}, shell={shell}")
        return Ruling("deny", refusal)

    async def ask_person(self, request: PermissionRequest) -> PermissionAnswer:
        """Ask, and wait for the answer. A question that fails, or takes too long, is denied."""
        if not self._can_ask:
            return PermissionAnswer("deny", "policy", "no one to ask")
        async with self._turn:
            try:
                async with asyncio.timeout(self._timeout):
                    decision, rule = await self._first_answer(request)
            except TimeoutError:
                return PermissionAnswer("deny", "timeout", f"no answer in {self._timeout:g} s")
            except Exception as error:
                return PermissionAnswer("deny", "person", f"the question failed: {error}")
        for valid in _VALID_DECISIONS:
            if decision == valid:
                return PermissionAnswer(valid, "person", rule)
        return PermissionAnswer("deny", "person", f"not an answer: {decision!r}")

    async def answer_question(self, question: AgentQuestion) -> QuestionReply:
        """Ask, and wait for the answer. If there is none, the reply says why."""
        from corral._core.question_replies import QuestionReply, read_reply

        if not self.can_ask:
            return QuestionReply("no_person", reason="no one to ask")
        async with self._turn:
            try:
                async with asyncio.timeout(self._timeout):
                    given, how = await self._first_answer(question)
                reply = read_reply(question, given)
            except TimeoutError:
                return QuestionReply("timeout", reason=f"no answer in {self._timeout:g} s")
            except Exception as error:
                return QuestionReply("declined", reason=f"the question failed: {error}")
        return msgspec.structs.replace(reply, reason=reply.reason or how)

    async def _first_answer(
        self, request: PermissionRequest | AgentQuestion
    ) -> tuple[AnswerLike, str]:
        """The answer, and how it was given: by the caller's ``ask``, or from elsewhere."""
        local: asyncio.Future[AnswerLike] | None = None
        if self._ask is not None:
            # Every function may be called with a question: what is not an answer declines it.
            given = cast("PersonAsker", self._ask)(request)
            if not isinstance(given, Awaitable):
                return given, "asked"
            if self._session is None:
                return await given, "asked"
            local = asyncio.ensure_future(given)
        try:
            if local is not None:
                await asyncio.wait([local], timeout=LOCAL_FIRST)
                if local.done():
                    return local.result(), "asked"
            if self._session is None:
                return None, "no one to ask"
            from corral._sessions.session_link import ask_everyone

            return await ask_everyone(*self._session, request, local, self._timeout)
        finally:
            if local is not None and not local.done():  # this question was cancelled
                local.cancel()
                await asyncio.wait([local], timeout=CANCEL_TIMEOUT)


def broker_of(
    prepared: PreparedRun, ask: Asker | None, record: SessionRecord | None = None
) -> PermissionBroker:
    """Answers by the policy of a run. Without ``record``, only ``ask`` is asked."""
    run = prepared.run
    return PermissionBroker(
        run.policy,
        ask,
        timeout=run.answer_timeout,
        mode=run.permission_mode,
        guard=prepared.guard,
        hook=prepared.hook,
        session=None if record is None else (prepared, record),
    )


Granted: TypeAlias = tuple[str, str | None]
"""A tool, and the command where it is one that runs commands."""


class PermissionQuestion(msgspec.Struct, frozen=True):
    """A permission request of an agent, in any protocol."""

    request: PermissionRequest
    action: Action
    paths: tuple[str, ...]
    """All paths that the request names."""
    reply: Callable[[PermissionAnswer], None]
    """Sends the answer to the agent. It must hold the agent's process weakly: a question that waits
    for a person must not keep the process of a dropped session alive."""
    edited: Callable[[JsonObject], PermissionQuestion] | None = None
    """The same question with a new input; None if the agent cannot change a call."""
    new_input: Json = None
    """The input that ``on_tool_call`` gave the call; None if it did not edit it."""

    @property
    def granted_as(self) -> Granted:
        return self.action.tool, self.action.command


class PermissionQuestions:
    """Answers the permission requests of one session: by the policy at once, or by the hook or a
    person, with one task for each request that is open. ``emit`` gets each decision as an event.
    ``granted`` collects what a person allowed for the session."""

    def __init__(
        self, broker: PermissionBroker, emit: Callable[[RawEvent], None], granted: set[Granted]
    ) -> None:
        self.broker = broker
        self._emit = emit
        self._granted = granted
        self._open: dict[str, asyncio.Task[None]] = {}
        self._cancelled: list[asyncio.Task[None]] = []
        """Cancelled questions that may still have to clean up."""

    @property
    def is_asking(self) -> bool:
        """Whether the agent waits for an answer of the hook or of a person."""
        return bool(self._open)

    def put(self, question: PermissionQuestion) -> None:
        """Answer a request of the agent, now or when the hook or a person has decided."""
        answer = self._known_answer(question)
        if answer is not None and not (answer.is_allowed and self._is_hooked(question)):
            self._decide(question, answer)
            return
        task = asyncio.get_running_loop().create_task(self._ask(question))
        self._open[question.request.request_id] = task

    def put_question(self, question: AgentQuestion, reply: Callable[[QuestionReply], None]) -> None:
        """Answer a question of the agent, now or when a person has answered. ``reply`` sends the
        answer to the agent; as in ``PermissionQuestion``, it holds the agent's process weakly."""
        from corral._core.question_replies import QuestionReply, shown_answers

        def settle(given: QuestionReply) -> None:
            self._emit(
                QuestionAnswer(
                    question.request_id,
                    given.outcome,
                    shown_answers(question, given.answers),
                    call_id=question.call_id,
                    reason=given.reason,
                )
            )
            reply(given)

        async def ask() -> None:
            given = await self.broker.answer_question(question)
            if self._open.pop(question.request_id, None) is not None:
                settle(given)

        if self.broker.can_ask:
            task = asyncio.get_running_loop().create_task(ask())
            self._open[question.request_id] = task
        else:
            settle(QuestionReply("no_person", reason="no one to ask"))

    def withdraw(self, request_id: str) -> bool:
        """The agent took its request back. Whether it was still open."""
        task = self._open.pop(request_id, None)
        if task is None:
            return False
        task.cancel()
        self._cancelled.append(task)
        return True

    async def close(self) -> None:
        """Cancel what is open. A person's answer may go on after it was cancelled: it is waited
        for, but not for ever."""
        for task in self._open.values():
            task.cancel()
        tasks = [*self._open.values(), *self._cancelled]
        self._open.clear()
        self._cancelled.clear()
        if tasks:
            await asyncio.wait(tasks, timeout=CANCEL_TIMEOUT)

    def _is_hooked(self, question: PermissionQuestion) -> bool:
        """The caller's own functions have hooks of their own."""
        return self.broker.hook is not None and not question.action.own

    def _known_answer(self, question: PermissionQuestion) -> PermissionAnswer | None:
        """The answer of the policy, or what a person allowed before; None if a person decides."""
        answer = self.broker.policy_answer(question.action, question.paths)
        if answer is None and question.granted_as in self._granted:
            return PermissionAnswer("allow_session", "person", "asked before")
        return answer

    async def decide(
        self,
        describe: Callable[[JsonObject | None], tuple[PermissionRequest, Action, tuple[str, ...]]],
        *,
        can_edit: bool,
    ) -> tuple[PermissionAnswer, JsonObject | None]:
        """The answer to a call of an agent that does not ask over a protocol, and the input that
        ``on_tool_call`` gave the call. ``describe`` returns the request, the action and the paths
        of the call with another input; with its own for None."""
        answered: asyncio.Future[tuple[PermissionAnswer, JsonObject | None]] = (
            asyncio.get_running_loop().create_future()
        )

        def make(new_input: JsonObject | None) -> PermissionQuestion:
            def reply(answer: PermissionAnswer) -> None:
                if not answered.done():
                    answered.set_result((answer, new_input))

            edited = make if can_edit else None
            return PermissionQuestion(*describe(new_input), reply, edited, new_input)

        question = make(None)
        self._emit(question.request)
        self.put(question)
        try:
            return await answered
        except asyncio.CancelledError:
            self.withdraw(question.request.request_id)
            raise

    async def _ask(self, question: PermissionQuestion) -> None:
        request_id, answer = question.request.request_id, None
        if self._is_hooked(question):
            question, answer = await self._ask_hook(question)
        if answer is None:
            answer = await self.broker.ask_person(question.request)
            answer = self.broker.confirm(answer, question.action, question.paths)
        if self._open.pop(request_id, None) is None:
            return
        if answer.decision == "allow_session" and answer.by == "person":
            self._granted.add(question.granted_as)
        self._decide(question, answer)

    async def _ask_hook(
        self, question: PermissionQuestion
    ) -> tuple[PermissionQuestion, PermissionAnswer | None]:
        """The question, as the hook edited it, and its answer; None if a person decides."""
        from corral._sessions.tools.hooks import Deny, Edit, ToolRequest

        hook, request, action = self.broker.hook, question.request, question.action
        call = ToolRequest(
            request.call_id or request.request_id,
            action.tool,
            as_object(request.input),
            kind=action.kind,
            command=action.command,
            paths=tuple(dict.fromkeys(question.paths)),
            title=request.title,
        )
        verdict = await hook.decide(call) if hook is not None else None
        if isinstance(verdict, Deny):
            return question, PermissionAnswer("deny", "hook", verdict.reason)
        if not isinstance(verdict, Edit):
            return question, self._known_answer(question)
        if question.edited is None:
            return question, PermissionAnswer("deny", "hook", NOT_EDITABLE)
        question = question.edited(verdict.arguments)
        answer = self._known_answer(question)
        if answer is not None and answer.is_allowed:
            answer = PermissionAnswer(answer.decision, "hook", EDITED)
        return question, answer

    def _decide(self, question: PermissionQuestion, answer: PermissionAnswer) -> None:
        request = question.request
        self._emit(
            PermissionDecision(
                request.request_id,
                answer.decision,
                answer.by,
                call_id=request.call_id,
                rule=answer.rule,
                input=question.new_input,
            )
        )
        question.reply(answer)
