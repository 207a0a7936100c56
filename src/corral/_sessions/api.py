"""The public functions: ``session``, ``pool``, ``run``, ``is_installed``; and ``session_sync`` and
``run_sync`` for code that is not async. The event loop of a session runs in another thread then.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, ParamSpec, Unpack

from corral._core.display import short_traceback
from corral._sessions import store
from corral._sessions.fallback import Given, run_in_agents
from corral._sessions.session import Session
from corral._system import config, programs
from corral._system.threads import LoopThread, short_traceback_async, sync_twin, warn_of_blocking
from corral.errors import CorralError
from corral.events import Event
from corral.options import RunOptions
from corral.prompt import Prompt, output_type
from corral.result import Result
from corral.values import T

if TYPE_CHECKING:
    from corral._metering.budget import Budget
    from corral._sessions.goals import AnyUntil
    from corral._sessions.permissions import Asker
    from corral._sessions.pool import Pool
    from corral._sessions.tools.hooks import Before
    from corral._sessions.tools.tools import GivenTools
    from corral._sessions.turn import Turn
    from corral.run_kwargs import RunKwargs
    from corral.values import Output, OutputT


@short_traceback
def session(
    agent: str | None = None,
    *,
    ask: Asker | None = None,
    tools: GivenTools = (),
    on_tool_call: Before | None = None,
    budget: Budget | None = None,
    **options: Unpack[RunKwargs],
) -> Session:
    """A conversation with an agent, as ``async with``; see ``RunKwargs`` for the options.

    Without ``agent``, the default agent is used, or the built-in agent if ``model`` is
    ``vendor:model``; with ``resume``, the agent of that session. With ``resume`` and another
    ``agent``, the conversation continues in that agent, in a new session.

    ``ask`` answers the agent's permission requests, if the agent can ask: it gets the
    ``permission_request`` and returns ``allow_once``, ``allow_session``, ``deny`` or
    ``cancel``. Without it, what the policy does not decide is denied. It also gets each question
    of the agent to a person, as an ``AgentQuestion``, and returns the answer: a text, a mapping of
    the keys of its fields to values, or ``None`` for no answer. ``tools`` are Python functions,
    sync or async, that the agent may call.

    ``on_tool_call`` is a function, sync or async, that is called before each of the agent's own
    tool calls that the policy does not deny. It gets a ``ToolRequest`` and returns ``None`` or
    ``Allow()``, ``Deny(reason)``, or ``Edit(arguments)`` to change the input, where the agent
    supports that. It cannot allow what the policy denies. If it raises, takes too long or returns
    something else, the call is denied. An agent that does not ask before each call raises
    ``ConfigError`` here.

    ``budget`` is a ``Budget`` that several runs share: the options ``max_cost``,
    ``max_total_tokens`` and ``max_calls`` of this session are limits within it.

    ::

        async with corral.session("gemini-cli", policy="edits") as session:
            result = await session.run("Fix the failing test")
    """
    agent = _or_default(agent, options)
    return Session(agent, options, ask, tools, on_tool_call=on_tool_call, budget=budget)


@short_traceback
def pool(
    agent: str | None = None,
    *,
    size: int = 1,
    prompts_at_once: int = 4,
    ask: Asker | None = None,
    on_tool_call: Before | None = None,
    budget: Budget | None = None,
    **options: Unpack[RunKwargs],
) -> Pool:
    """Warm processes for many prompts, as ``async with``: ``await pool.run("…", cwd=…)``. ``ask``
    and ``on_tool_call`` as in ``session``; they may be called for several prompts at once.
    ``budget`` and the limits of ``options`` apply to all prompts together.

    ::

        async with corral.pool("gemini-acp", size=2) as pool:
            result = await pool.run("What does this project do?")
    """
    from corral._sessions.pool import Pool

    return Pool(
        _or_default(agent, options),
        options,
        size=size,
        prompts_at_once=prompts_at_once,
        ask=ask,
        on_tool_call=on_tool_call,
        budget=budget,
    )


@short_traceback_async
async def run(  # noqa: PLR0913
    agent: str | None = None,
    prompt: str | Prompt[OutputT] | Prompt[None] | None = None,
    *,
    check: bool = False,
    on_event: Callable[[Event], None] | None = None,
    ask: Asker | None = None,
    on_tool_call: Before | None = None,
    tools: GivenTools | None = None,
    output: Output[OutputT] | None = None,
    repairs: int = 2,
    until: AnyUntil | None = None,
    rounds: int = 10,
    budget: Budget | None = None,
    **options: Unpack[RunKwargs],
) -> Result[OutputT]:
    """Run one prompt to its end. ``agent`` is chosen as in ``session``; ``ask``, ``on_tool_call``,
    ``tools`` and ``budget`` are those of ``session``.

    ``result.ok`` tells whether it succeeded. With ``check=True``, every result that is not a
    success is raised as its error. An error in the call itself is always raised, before tokens are
    spent or a process is started.

    With ``output``, a type or a JSON Schema, ``result.output`` is a value of that type, also for
    type checkers: ``output=Review`` returns a ``Result[Review]``. For them, a JSON Schema,
    ``Literal`` or a union is passed as ``corral.schema_of(…)``. If the agent's value does not fit,
    it is asked for a correction in the same session, at most ``repairs`` times; then the result is
    an error. A success always has a value; ``result.output`` of another result raises
    the run's error. If the agent has ``tools``, it submits the value with one more tool,
    ``submit_result``; otherwise it writes the value as fenced JSON. A ``Prompt`` has ``tools`` and
    ``output`` of its own, which are used if they are not given here.

    ``until`` is a check such as ``corral.command_succeeds("pytest -q")``, or a function of the
    result. As long as it fails, its complaint is sent to the same session, at most ``rounds``
    times, and only while less than ``max_total_tokens`` are spent. ``timeout`` applies to all
    rounds together.

    ::

        result = await corral.run("gemini-cli", "Fix the typo in README.md", policy="edits")
        print(result.status, result.text)
    """
    agent = _or_default(agent, options)
    if isinstance(prompt, Prompt):
        tools = prompt.tools if tools is None else tools
    wanted = output_type(prompt, output)
    text = prompt.render() if isinstance(prompt, Prompt) else prompt
    if wanted is None and until is None:
        one = Session(agent, options, ask, tools or (), on_tool_call=on_tool_call, budget=budget)
        result = await run_in_agents(
            one, text, lambda session, prompt: session.prompt(prompt).collect(on_event)
        )
        return result.raise_for_status() if check else result

    from corral._sessions.goals import Goal, run_goal, with_submission
    from corral._verification.verified import Verified, with_checks

    if isinstance(until, Verified):
        options = with_checks(options, until)
    goal = Goal(
        output=wanted,
        repairs=repairs,
        until=until,
        rounds=rounds,
        max_total_tokens=options.get("max_total_tokens"),
    )
    goal.check()
    if tools and wanted is not None:
        goal, tools = with_submission(goal, tools)

    def reach(session: Session, prompt: Given) -> Awaitable[Result]:
        return run_goal(goal, session, prompt, lambda turn: turn.collect(on_event))

    first = Session(agent, options, ask, tools or (), on_tool_call=on_tool_call, budget=budget)
    result = await run_in_agents(first, text, reach)
    return result.raise_for_status() if check else result


def _or_default(agent: str | None, options: RunKwargs) -> str:
    if agent is not None:
        return agent
    resume = options.get("resume")
    return (
        config.default_agent(options.get("model"))
        if resume is None
        else store.agent_of(resume, options)
    )


def is_installed(agent: str) -> bool:
    """Whether the agent's program is installed and new enough. Starts nothing expensive.

    ::

        if not corral.is_installed("gemini-cli"):
            print("run: corral agents install gemini-cli")
    """
    spec = config.find_agent(agent)
    try:
        programs.locate(spec, RunOptions.build(spec.name, {}, config.load(spec.name)).program)
    except CorralError:
        return False
    return True


P = ParamSpec("P")


class SyncSession:
    """One agent, one conversation, for code that is not async; made by ``corral.session_sync``.

    ::

        with corral.session_sync("gemini-cli", policy="edits") as session:
            first = session.run("Fix the failing test")
            for event in session.prompt("What did you change?"):
                print(event.type)

    ``run`` and ``prompt`` take the arguments of the same methods of ``Session``. ``prompt`` gives
    the events of the turn. Functions that are passed to the session are called in the other thread.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._thread: LoopThread | None = None
        self.run: Final = self._twin(session.run)
        """The next turn, to its end: a ``Result``."""
        self.prompt: Final = self._events(session.prompt)
        """The events of the next turn. Leaving the iteration ends the turn."""

    def __repr__(self) -> str:
        return repr(self._session)

    @property
    def id(self) -> str:
        """corral's id of the session, for ``resume``."""
        return self._session.id

    def __enter__(self) -> SyncSession:
        if self._thread is not None:
            raise RuntimeError("the session is open already")
        warn_of_blocking("session", stacklevel=3)
        with short_traceback:
            self._thread = LoopThread()
            try:
                self._thread.run(self._session.__aenter__())
            except BaseException:
                self._close()
                raise
        return self

    def __exit__(self, *failure: Any) -> None:
        try:
            self._loop().run(self._session.__aexit__(*failure))
        finally:
            self._close()

    def _close(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.close()

    def _loop(self) -> LoopThread:
        if self._thread is None:
            raise RuntimeError("open the session first: with corral.session_sync(...) as session")
        return self._thread

    def _twin(self, function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            loop = self._loop()
            with short_traceback:
                return loop.run(function(*args, **kwargs))

        return call

    def _events(self, function: Callable[P, Turn]) -> Callable[P, Generator[Event]]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> Generator[Event]:
            loop = self._loop()

            async def start() -> Turn:
                return function(*args, **kwargs)

            with short_traceback:
                turn = loop.run(start())
                return loop.iterate(aiter(turn))

        return call


def sync_session_of(function: Callable[P, Session]) -> Callable[P, SyncSession]:
    """``function`` with a session for code that is not async."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> SyncSession:
        with short_traceback:
            return SyncSession(function(*args, **kwargs))

    call.__name__ = call.__qualname__ = f"{function.__name__}_sync"
    return call


session_sync: Final = sync_session_of(session)
session_sync.__doc__ = """
    ``session`` for code that is not async, with the same arguments: a ``with`` block.

    ::

        with corral.session_sync("gemini-cli", policy="edits") as session:
            print(session.run("Fix the failing test").text)
            print(session.run("What did you change?").text)
    """


run_sync: Final = sync_twin(run)
run_sync.__doc__ = """
    ``run`` for code that is not async, with the same arguments; also in a notebook.

    ::

        result = corral.run_sync("gemini-cli", "What does this project do?")
        print(result.text)

    In async code use ``run``: this function stops the running event loop until it returns, and
    warns about it.
    """
