"""The tools that need the session: sub-agents, and questions to a person.

Sub-agents have their own history and share the workspace. The tool with which the model asks a
person is offered only if someone can answer, and to the agent itself only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from corral._builtin.loop import Loop, Mailbox
from corral._builtin.tool_execution import INTERRUPTED, Emit, current_call
from corral._builtin.tools.tool import Arguments, BuiltinTool, Output, ToolOutcome
from corral._builtin.tools.workspace import ToolError, Workspace
from corral._core.question_replies import shown_answers
from corral._protocol.ndjson import RawEvent, TurnEnd
from corral._sessions.permissions import PermissionBroker
from corral._system.environment import SecretRedactor
from corral.errors import CorralError, Interrupted
from corral.events import AgentQuestion, QuestionAnswer, QuestionField, QuestionOption, Text
from corral.messages import Message

MAX_SUBAGENTS = 8
"""Sub-agents at the same time: each is a conversation that costs money."""
LONGEST_WAIT = 600_000
SPAWN = (
    "Starts another agent on a task beside you, in the same workspace, and returns its id at"
    " once. Ask for its answer with wait."
)
SEND = "Sends a message to an agent that you started; one that has answered continues with it."
WAIT = "Waits until agents that you started have answered, and returns their answers."
CLOSE = "Ends an agent that you started."
ASK_USER = (
    "Asks the user a question and waits for the answer. Use it only for a decision that is the"
    " user's and that you cannot find out yourself. The user may answer with one of the options or"
    " with another text."
)

MakeLoop = Callable[[Emit, Mailbox], Loop]
AgentId = Annotated[str, Meta(description="The agent's id, as spawn_agent returned it.")]


class SpawnAgent(Arguments, frozen=True, kw_only=True):
    task: Annotated[
        str,
        Meta(
            description="Everything it needs to know: it does not see this conversation.",
            min_length=1,
        ),
    ]


class SendInput(Arguments, frozen=True, kw_only=True):
    agent: AgentId
    text: Annotated[str, Meta(min_length=1)]


class WaitForAgents(Arguments, frozen=True, kw_only=True):
    agents: Annotated[tuple[str, ...], Meta(description="Ids of the agents. Default: all.")] = ()
    timeout_ms: Annotated[int, Meta(ge=1, le=LONGEST_WAIT)] = 300_000


class CloseAgent(Arguments, frozen=True, kw_only=True):
    agent: AgentId


class _Sub(msgspec.Struct, eq=False):
    """One sub-agent."""

    id: str
    loop: Loop
    mailbox: Mailbox
    task: asyncio.Task[str]

    @property
    def answer_text(self) -> str:
        if not self.task.done():
            return "still works"
        return "was closed" if self.task.cancelled() else self.task.result()


class Subagents:
    """The sub-agents of a session. Those that still run when a turn ends are ended."""

    def __init__(
        self, make: MakeLoop, emit: Emit, interrupt: Callable[[Interrupted], None]
    ) -> None:
        """``interrupt`` is called if a person ends the run from a permission request of a
        sub-agent."""
        self._make = make
        self._emit = emit
        self._interrupt = interrupt
        self._started = 0
        self._subs: dict[str, _Sub] = {}

    def tools(self) -> list[BuiltinTool[Any]]:
        return [
            _tool(SpawnAgent, self._spawn, "spawn_agent", "Start task", SPAWN),
            _tool(SendInput, self._send, "send_input", "Message agent", SEND),
            _tool(WaitForAgents, self._wait, "wait", "Wait agents", WAIT),
            _tool(CloseAgent, self._close, "close_agent", "End agent", CLOSE),
        ]

    async def end(self) -> int:
        """End the sub-agents that run. Return how many there were."""
        running = [sub.task for sub in self._subs.values() if not sub.task.done()]
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)
        return len(running)

    async def _spawn(self, _: Workspace, args: SpawnAgent, __: Output) -> ToolOutcome:
        if sum(not sub.task.done() for sub in self._subs.values()) >= MAX_SUBAGENTS:
            raise ToolError(
                f"{MAX_SUBAGENTS} agents are running already: wait for one, or close it"
            )
        self._started += 1  # the id of a closed agent is not used again
        id = f"agent-{self._started}"
        mailbox = Mailbox()
        parent = current_call.get()

        def emit(item: RawEvent) -> None:
            """Emit an event of the sub-agent with its parent, and with call ids of its own."""
            if isinstance(item, TurnEnd):
                return
            event = Text(item) if isinstance(item, str) else item
            changes: dict[str, str] = {"parent": parent}
            for name in ("call_id", "request_id"):
                value = getattr(event, name, None)
                if value:
                    changes[name] = f"{id}/{value}"
            self._emit(replace(event, **changes))

        loop = self._make(emit, mailbox)
        self._subs[id] = _Sub(id, loop, mailbox, self._start(loop, args.task))
        return ToolOutcome(f"{id} works on the task")

    async def _send(self, _: Workspace, args: SendInput, __: Output) -> ToolOutcome:
        sub = self._find(args.agent)
        if not sub.task.done():
            sub.mailbox.steer(args.text)
            return ToolOutcome(f"{sub.id} gets the message after its current tool calls")
        sub.task = self._start(sub.loop, args.text)
        return ToolOutcome(f"{sub.id} continues")

    def _start(self, loop: Loop, text: str) -> asyncio.Task[str]:
        async def run() -> str:
            try:
                return (await loop.run(Message.user(text))).text
            except Interrupted as error:
                self._interrupt(error)
                return "was ended"
            except CorralError as error:
                return f"failed: {error.message}"

        return asyncio.get_running_loop().create_task(run())

    async def _wait(self, _: Workspace, args: WaitForAgents, __: Output) -> ToolOutcome:
        subs = [self._find(id) for id in args.agents] or [*self._subs.values()]
        if not subs:
            raise ToolError("no agent was started")
        await asyncio.wait([sub.task for sub in subs], timeout=args.timeout_ms / 1000)
        return ToolOutcome("\n\n".join(f"{sub.id}: {sub.answer_text}" for sub in subs))

    async def _close(self, _: Workspace, args: CloseAgent, __: Output) -> ToolOutcome:
        sub = self._find(args.agent)
        if not sub.task.done():
            sub.task.cancel()
            await asyncio.wait([sub.task])
        del self._subs[sub.id]
        return ToolOutcome(f"{sub.id} is closed")

    def _find(self, id: str) -> _Sub:
        if id not in self._subs:
            raise ToolError(
                f"there is no agent {id!r}; there are: {', '.join(self._subs) or 'none'}"
            )
        return self._subs[id]


def _tool(
    arguments: type[Arguments],
    run: Callable[..., Awaitable[ToolOutcome]],
    name: str,
    title: str,
    description: str,
) -> BuiltinTool[Any]:
    return BuiltinTool(
        arguments=arguments,
        run=run,
        name=name,
        kind="think",
        description=description,
        title_form=title,
    )


class Option(Arguments, frozen=True, kw_only=True):
    label: Annotated[str, Meta(description="One to five words.", min_length=1)]
    description: Annotated[str, Meta(description="What this choice means.")] = ""


class Ask(Arguments, frozen=True, kw_only=True):
    question: Annotated[str, Meta(description="One complete question.", min_length=1)]
    options: Annotated[
        tuple[Option, ...], Meta(description="Choices, the best first.", max_length=20)
    ] = ()
    multiple: Annotated[bool, Meta(description="Several options may be chosen.")] = False


def ask_user_tool(
    broker: PermissionBroker,
    emit: Emit,
    interrupt: Callable[[Interrupted], None],
    redactor: SecretRedactor,
) -> BuiltinTool[Any]:
    """Asks through the broker of the session. ``interrupt`` ends the turn if the person stops
    it."""
    clean = redactor.clean_text

    async def ask(_: Workspace, args: Ask, __: Output) -> ToolOutcome:
        call_id = current_call.get()
        options = tuple(
            QuestionOption(clean(option.label), clean(option.description) or None)
            for option in args.options
        )
        field = QuestionField(
            "answer", clean(args.question), options=options, multiple=args.multiple, free_text=True
        )
        question = AgentQuestion(call_id, fields=(field,), call_id=call_id)
        emit(question)
        reply = await broker.answer_question(question)
        answers = shown_answers(question, reply.answers)
        emit(QuestionAnswer(call_id, reply.outcome, answers, call_id=call_id, reason=reply.reason))
        if reply.outcome == "cancelled":
            interrupt(Interrupted(INTERRUPTED))
        if reply.outcome != "answered":
            return ToolOutcome(reply.refusal, is_error=True)
        answer = reply.answers["answer"]
        return ToolOutcome(
            answer if isinstance(answer, str) else msgspec.json.encode(answer).decode()
        )

    return _tool(Ask, ask, "ask_user", "Ask question", ASK_USER)
