"""An agent of inspect that is any agent of corral.

::

    from inspect_ai import Task, eval
    from inspect_ai.dataset import Sample
    from inspect_ai.scorer import match
    from corral.integrations.inspect_ai import corral_agent

    samples = [Sample(input="What is 6 times 7? Answer with the number only.", target="42")]
    eval(Task(dataset=samples, solver=corral_agent("gemini"), scorer=match()))

The agent runs on this machine and calls its model itself. Each step of it becomes messages of the
sample, and a model call of inspect: ``_Recorded`` is a model that answers with what the agent's
model has answered. So tokens, events, and inspect's limits of tokens, turns and messages are as
with an agent of inspect. If a limit is reached or the sample is cancelled, the agent is ended with
everything that it started, and what it used until then is recorded.

A failure that says nothing about the agent (``compare_attempt.MISSING``: rate limit, no network,
not installed ...) is raised: the sample has an error and no score. After any other failure the
sample is scored as it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Unpack

import anyio
from inspect_ai.agent import Agent, AgentState, agent
from inspect_ai.model import (
    ChatCompletionChoice,
    ChatMessage,
    ChatMessageAssistant,
    ChatMessageSystem,
    ChatMessageTool,
    ChatMessageUser,
    Content,
    ContentReasoning,
    ContentText,
    GenerateConfig,
    ModelAPI,
    ModelOutput,
    ModelUsage,
    get_model,
    modelapi,
)
from inspect_ai.tool import ToolCall, ToolCallError, ToolChoice, ToolInfo
from inspect_ai.util import LimitExceededError, sandbox

# Private: only this class tells where the files of a local sandbox are.
from inspect_ai.util._sandbox.local import LocalSandboxEnvironment

from corral._core.steps import ModelStep, StepTracker
from corral._pipelines.nodes.compare_attempt import MISSING
from corral._sessions.session import Session
from corral._sessions.turn import Turn
from corral._system import config, fs
from corral.errors import ConfigError, from_event
from corral.events import Done, Event, Init
from corral.run_kwargs import RunKwargs
from corral.values import Usage, as_object

NO_TIMEOUT = 365 * 86_400.0
PROVIDER = "corral"


@agent
def corral_agent(agent: str | None = None, **options: Unpack[RunKwargs]) -> Agent:
    """Any agent of corral; ``agent`` and ``options`` are those of ``corral.run``.

    It works in the folder of the sample's ``sandbox="local"``, else in ``cwd``, else in a temporary
    folder. The policy is that of ``corral.run``: ``policy="edits"`` lets it change files. inspect's
    limits count; ``timeout`` is another one.

    ::

        task = Task(dataset=samples, solver=corral_agent("gemini", policy="edits", max_cost=1))
    """

    async def execute(state: AgentState) -> AgentState:
        name = agent or config.default_agent(options.get("model"))
        chosen: RunKwargs = {"timeout": NO_TIMEOUT, "record": True, **options}
        system, prompt = _texts(state.messages)
        if system and "system_prompt" in config.find_agent(name).supports:
            chosen["system_prompt"] = "\n\n".join(
                filter(None, (options.get("system_prompt"), system))
            )
        elif system:
            prompt = f"{system}\n\n{prompt}"
        async with _folder(chosen) as folder, Session(name, {**chosen, "cwd": folder}) as session:
            conversation = _AgentConversation(state, name)
            await _follow(session.prompt(prompt), conversation)
        done = conversation.done
        error = None if done is None or done.error is None else from_event(done.error)
        if isinstance(error, MISSING):
            raise error
        return state

    return execute


async def _follow(turn: Turn, conversation: _AgentConversation) -> None:
    """Record the events of a turn while they come. If that is cancelled or a limit is reached, the
    agent is ended, and the rest is recorded."""
    events: asyncio.Queue[Event | None] = asyncio.Queue()
    work = asyncio.ensure_future(turn.collect(events.put_nowait))
    work.add_done_callback(lambda _: events.put_nowait(None))
    try:
        while (event := await events.get()) is not None:
            await conversation.add(event)
        await work
    except BaseException:
        turn.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait([work])
            with suppress(LimitExceededError):
                while (event := events.get_nowait()) is not None:
                    await conversation.add(event)
        raise


@asynccontextmanager
async def _folder(options: RunKwargs) -> AsyncGenerator[str]:
    """The working directory. Raises ``ConfigError`` for a sandbox that is elsewhere."""
    try:
        environment = sandbox()
    except ProcessLookupError:  # the sample has none
        environment = None
    if environment is not None:
        try:
            local = environment.as_type(LocalSandboxEnvironment)
        except TypeError as error:
            raise ConfigError(
                "corral_agent runs on this machine, and the files of this sandbox are elsewhere",
                hint='Use sandbox="local"; the option sandbox of corral_agent confines the agent.',
            ) from error
        yield local.directory.name
        return
    if (given := options.get("cwd")) is not None:
        yield str(given)
        return
    with fs.temporary_folder("corral-") as folder:
        yield folder


def _texts(messages: Sequence[ChatMessage]) -> tuple[str, str]:
    """The system prompt and the prompt. Raises ``ConfigError`` for other messages."""
    for message in messages:
        if not isinstance(message, ChatMessageSystem | ChatMessageUser):
            raise ConfigError(
                "corral_agent starts a conversation: give it system and user messages"
            )
        if not isinstance(message.content, str) and any(
            not isinstance(part, ContentText) for part in message.content
        ):
            raise ConfigError("corral_agent sends text only: the input has other content")
    system = (each.text for each in messages if isinstance(each, ChatMessageSystem))
    user = (each.text for each in messages if isinstance(each, ChatMessageUser))
    return "\n\n".join(system), "\n\n".join(user)


class _AgentConversation:
    """The steps of the agent as messages of the sample, and as model calls of inspect."""

    def __init__(self, state: AgentState, agent: str) -> None:
        self.done: Done | None = None
        self._state = state
        self._agent = agent
        self._version: str | None = None
        self._model = ""
        self._tracker = StepTracker()
        self._last: ModelStep | None = None
        """It is held back until it is known whether it is the last of the turn."""
        self._used, self._cost = Usage(), 0.0

    async def add(self, event: Event) -> None:
        """Raises ``LimitExceededError``."""
        if isinstance(event, Init | Done):
            self._model = event.model or self._model
        if isinstance(event, Init):
            self._version = event.agent_version
        for step in self._tracker.add(event):
            if step.parent is None:  # a sub-agent's are part of its call's result
                await self._record_last()
                self._last = step
        if isinstance(event, Done):
            self.done = event
            await self._record_last()

    @property
    def _name(self) -> str:
        """The model's name in inspect."""
        return f"{PROVIDER}/{self._model or 'unknown'}"

    async def _record_last(self) -> None:
        step, done = self._last, self.done
        usage, cost, self._last = Usage(), None, None
        if done is not None:  # also what belongs to no step, such as calls of sub-agents
            usage = done.usage - self._used
            cost = None if done.cost.usd is None else max(0.0, done.cost.usd - self._cost)
        elif step is not None:
            usage, cost = step.usage, step.cost_usd
        if step is None and (done is None or not usage.total):
            return
        self._used, self._cost = self._used + usage, self._cost + (cost or 0.0)
        output = ModelOutput(
            model=self._model,
            choices=[_choice(step, self._model)],
            usage=_usage(usage, cost),
            metadata=None if done is None else self._facts(done),
        )
        try:
            model = get_model(self._name, memoize=False, recorded=output)
            await model.generate(self._state.messages)
        finally:
            self._state.output = output
            if step is not None:
                self._state.messages.append(output.message)
                self._state.messages.extend(_results(step))

    def _facts(self, done: Done) -> dict[str, object]:
        return {
            "status": done.status,
            "error": None if done.error is None else done.error.message,
            "session": done.run_id.rpartition(".")[0],
            "agent": self._agent,
            "agent_version": self._version,
            "usage_source": done.usage_source,
        }


def _choice(step: ModelStep | None, model: str) -> ChatCompletionChoice:
    if step is None:
        return ChatCompletionChoice(message=ChatMessageAssistant(content="", model=model))
    content: list[Content] = [ContentText(text=str(step.text))] if str(step.text) else []
    if thinking := str(step.thinking):
        content.insert(0, ContentReasoning(reasoning=thinking))
    calls = [
        ToolCall(
            id=call.use.call_id, function=call.use.name, arguments=dict(as_object(call.use.input))
        )
        for call in step.calls
    ]
    return ChatCompletionChoice(
        message=ChatMessageAssistant(
            content=content, tool_calls=calls or None, model=model, source="generate"
        ),
        stop_reason="tool_calls" if calls else "stop",
    )


def _results(step: ModelStep) -> list[ChatMessage]:
    return [
        ChatMessageTool(
            content=str(call.output),
            tool_call_id=call.use.call_id,
            function=call.use.name,
            error=ToolCallError("unknown", call.result.error)
            if call.result is not None and call.result.error
            else None,
        )
        for call in step.calls
    ]


def _usage(usage: Usage, cost: float | None) -> ModelUsage:
    """inspect counts the tokens of the cache apart from the input."""
    cached = (usage.cache_read or 0) + (usage.cache_write or 0)
    return ModelUsage(
        input_tokens=max(0, (usage.input or 0) - cached),
        output_tokens=usage.output or 0,
        total_tokens=usage.total or 0,
        input_tokens_cache_read=usage.cache_read,
        input_tokens_cache_write=usage.cache_write,
        reasoning_tokens=usage.reasoning,
        total_cost=cost,
    )


class _Recorded(ModelAPI):
    """A model that answers with what the agent's model has answered."""

    def __init__(self, model_name: str, recorded: ModelOutput, **more: Any) -> None:
        super().__init__(model_name, **more)
        self._output = recorded

    async def generate(
        self,
        input: list[ChatMessage],
        tools: list[ToolInfo],
        tool_choice: ToolChoice,
        config: GenerateConfig,
    ) -> ModelOutput:
        """The call that was made."""
        return self._output


@modelapi(name=PROVIDER)
def _recorded_model() -> type[ModelAPI]:
    return _Recorded
