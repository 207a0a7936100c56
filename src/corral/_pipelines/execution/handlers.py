"""The interface of node handlers: what a handler gets, and how it is registered and found.

::

    from corral.pipelines import Outcome, handler

    @handler("my.step")
    async def my_step(work):
        return Outcome(context_updates={"answer": 42})

A handler gets a ``NodeContext`` and returns an ``Outcome`` (or None: success). It may be run again
after a crash, so running it twice must do no harm. If it raises, the node fails: a
``CorralError`` with its own message and its own ``retryable``, anything else as a bug.

``NodeContext.resources`` is what a process shares between the nodes that it runs: warm agents, a
model client, a redactor of secrets. Agents that can stay warm serve the nodes of all runs from a
few processes. There is one process for each combination of the options that are fixed at its
start (agent, model, policy, environment).
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, cast

import msgspec

from corral._agents.registry import DEFAULT_AGENT
from corral._core.lookup import entry_points
from corral._pipelines import node_kinds
from corral._pipelines.graph import Graph, Node, shape_kind
from corral._pipelines.scheduler.commands import RunNode
from corral._pipelines.scheduler.outcome import Outcome
from corral._pipelines.simulation import Simulate
from corral._system import config, fs
from corral._system.environment import SecretRedactor, is_secret, named_secrets, variables
from corral.errors import ConfigError, StorageFailed
from corral.events import Event
from corral.run_kwargs import RunKwargs
from corral.values import SHORTEST_SECRET, Json

if TYPE_CHECKING:
    from corral._inference.client import Client
    from corral._merging.owners import BranchOwner
    from corral._metering.budget import Budget
    from corral._pipelines.execution.interviewers import AskPerson
    from corral._sessions.permissions import Asker
    from corral._sessions.pool import Pool, PoolKwargs
    from corral._sessions.tools.hooks import Before
    from corral.result import Result

PROMPTS_AT_ONCE = 4
"""Prompts that one warm process serves at the same time."""


class NodeResources:
    """What the nodes of a process share. Use it as ``async with``, only in the event loop that
    opened it; leaving the block ends all processes.

    ``options`` are those of ``corral.run``: the defaults of every node. ``agent`` and ``model``
    are for nodes that name none. ``ask`` answers the agents' permission requests, and
    ``on_tool_call`` decides about each of their tool calls. ``processes``
    limits the processes of each warm agent. With ``simulate`` no agent and no model is called;
    a ``Simulation`` simulates more.

    ::

        async with pipelines.NodeResources(agent="gemini") as resources:
            print(resources.agent)
    """

    def __init__(
        self,
        *,
        simulate: Simulate = False,
        agent: str = DEFAULT_AGENT,
        model: str | None = None,
        options: RunKwargs | None = None,
        ask: Asker | None = None,
        on_tool_call: Before | None = None,
        processes: int = 1,
        prompts_at_once: int = PROMPTS_AT_ONCE,
    ) -> None:
        self.simulate = simulate
        self.agent = agent
        self.model = model
        self.options: RunKwargs = {} if options is None else options.copy()
        self.ask = ask
        self.on_tool_call = on_tool_call
        self._processes = processes
        self._prompts_at_once = prompts_at_once
        self.env: Mapping[str, str] = self.options.get("env") or {}
        passed = self.options.get("pass_env")
        self._pass_env = tuple(config.passed_env() if passed is None else passed)
        self._last_graph: Graph | None = None
        """The graph whose secrets were added last."""
        self._secrets = named_secrets(variables(self.env))
        self.redactor: SecretRedactor = SecretRedactor(self._secrets)
        """Removes secrets from what is written to files of a run or sent to a model."""
        self._stack = AsyncExitStack()
        self._pools: dict[bytes, Pool] = {}
        self._client: Client | None = None
        self._is_open = False

    async def __aenter__(self) -> NodeResources:
        self._is_open = True
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_open = False
        self._pools.clear()
        self._client = None
        await self._stack.aclose()

    def command_env(self, work: NodeContext) -> dict[str, str]:
        """The part of ``env`` that commands see: no secrets, except those in ``pass_env``."""
        passed = self.pass_env(work)
        return {
            name: value
            for name, value in self.env.items()
            if name in passed or not is_secret(name, value)
        }

    def pass_env(self, work: NodeContext) -> tuple[str, ...]:
        """Names of variables that commands and agents of this node see besides the usual ones:
        those of the node, of the graph, and of the options or of a trusted corral.toml."""
        named = (str(attrs.get("pass_env", "")) for attrs in (work.node.attrs, work.graph.attrs))
        own = (name.strip() for text in named for name in text.replace(",", " ").split())
        return tuple(dict.fromkeys((*self._pass_env, *own)))

    @functools.cached_property
    def configured_sandbox(self) -> object:
        """The option ``sandbox`` of ``corral.toml``, not checked; None if it has none."""
        return config.load(config.find_agent(self.agent).name).get("sandbox")

    def add_secrets_of(self, graph: Graph) -> None:
        """From now on, redact the tokens that nodes of this graph use."""
        if graph is self._last_graph:
            return
        self._last_graph = graph
        tokens = bearer_tokens(graph, variables(self.env))
        if not tokens.items() <= self._secrets.items():
            self._secrets = {**self._secrets, **tokens}
            self.redactor = SecretRedactor(self._secrets)

    @property
    def secrets(self) -> Mapping[str, str]:
        """Name -> value of what is redacted."""
        return self._secrets

    @property
    def pool_count(self) -> int:
        """How many pools of warm agents are open."""
        return len(self._pools)

    async def run_warm(
        self, agent: str, prompt: str, options: RunKwargs, on_event: Callable[[Event], None]
    ) -> Result:
        """Run one prompt in a new session of a warm process. The options that a prompt can choose
        go with the prompt; the others select the process."""
        from corral._sessions.pool import PROMPT_OPTIONS

        chosen = {key: value for key, value in options.items() if key in PROMPT_OPTIONS}
        fixed = {key: value for key, value in options.items() if key not in PROMPT_OPTIONS}
        self._check_open()
        key = agent.encode() + msgspec.json.encode(fixed, enc_hook=str, order="sorted")
        pool = self._pools.get(key)
        if pool is None:
            from corral._sessions.api import pool as new_pool

            pool = new_pool(
                agent,
                size=self._processes,
                prompts_at_once=self._prompts_at_once,
                ask=self.ask,
                on_tool_call=self.on_tool_call,
                **cast("RunKwargs", fixed),
            )
            # Opening waits for nothing: two nodes cannot open the same pool at once.
            self._pools[key] = await self._stack.enter_async_context(pool)
        own = cast("PoolKwargs", {**chosen, "on_event": on_event})
        return await pool.run(prompt, **own)

    def client(self) -> Client:
        """The client for calls of models without an agent."""
        self._check_open()
        if self._client is None:
            from corral._inference.client import Client

            self._client = Client(environ=variables(self.env))
            self._stack.push_async_callback(self._client.close)
        return self._client

    def _check_open(self) -> None:
        if not self._is_open:
            raise RuntimeError(
                "open the resources first: async with NodeResources(...) as resources"
            )


def bearer_tokens(graph: Graph, environ: Mapping[str, str]) -> dict[str, str]:
    """Name -> value of the variables that nodes send as bearer tokens. They are secrets, whatever
    their names are."""
    names = (node.text("bearer_env") for node in graph.nodes.values())
    return {name: environ[name] for name in names if len(environ.get(name, "")) >= SHORTEST_SECRET}


class NodeContext(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt at one visit of a node.

    ::

        @pipelines.handler("my.step")
        async def my_step(work: pipelines.NodeContext) -> pipelines.Outcome:
            print(work.node.id, work.workspace)
            return pipelines.Outcome()
    """

    run_id: str
    graph: Graph
    node: Node
    visit: RunNode
    attempt: int
    folder: Path
    """The node's directory in the run directory: ``prompt.md``, ``response.md``,
    ``status.json``."""
    run_folder: Path
    workspace: Path
    """The working directory of agents and commands."""
    resources: NodeResources
    emit: Callable[[Event], None] = lambda _event: None
    """Reports an event of the node's agent."""
    budget: Budget | None = None
    """What the model calls of the run may use."""
    ask_person: AskPerson | None = None
    """Asks the person of the run; None if there is none."""
    on_owner: Callable[[BranchOwner], None] | None = None
    """Called with the session of the node's agent, which may be asked later to repair the branch
    with its work: then the session is kept. None: there is no such branch."""
    writes_files: bool = True
    """False: nothing is written to ``folder``, which need not exist."""
    longest_hold: float | None = None
    """Seconds that the attempt may wait for a rate limit. At a longer one it ends, and its outcome
    says when to go on (``resets_at``). None: it waits as long as the options say."""

    @property
    def context(self) -> dict[str, Json]:
        return self.visit.context

    def write_file(self, name: str, data: str | bytes) -> None:
        """Write a file in the node's directory, with secrets redacted. Does nothing unless
        ``writes_files``. Raises ``StorageFailed``."""
        if not self.writes_files:
            return
        raw = data.encode("utf-8", "replace") if isinstance(data, str) else data
        path = f"{self.folder}{os.sep}{name}"
        try:
            fs.write_atomically(path, self.resources.redactor.clean(raw), mode=0o666)
        except OSError as error:
            raise StorageFailed(
                f"cannot write {path}: {error.strerror or error}", hint="Free some space there."
            ) from error


Handler: TypeAlias = Callable[[NodeContext], Awaitable[Outcome | None]]

ENTRY_POINTS = "corral.nodes"
"""The entry point group of node types in other packages: ``my.step = "my_package:my_step"``."""

_registered: dict[str, Handler] = {}


def handler(kind: str) -> Callable[[Handler], Handler]:
    """Decorates the function that runs nodes of this type.

    ::

        @pipelines.handler("my.step")
        async def my_step(work: pipelines.NodeContext) -> pipelines.Outcome:
            return pipelines.Outcome(context_updates={"answer": 42})
    """

    def decorate(function: Handler) -> Handler:
        return register(kind, function)

    return decorate


def register(kind: str, function: Handler) -> Handler:
    """Run nodes of this type with this function from now on, in this process.

    ::

        async def my_step(work: pipelines.NodeContext) -> pipelines.Outcome:
            return pipelines.Outcome(context_updates={"answer": 42})

        pipelines.register("my.step", my_step)
    """
    if not kind:
        raise ConfigError("a handler needs a name")
    if not inspect.iscoroutinefunction(function):
        raise ConfigError(f"the handler of {kind!r} must be an async function")
    _registered[kind] = function
    return function


def find(kind: str) -> Handler:
    """The handler of this type: one registered here, else a built-in one, else one of another
    package. Raises ``ConfigError`` with the most similar name."""
    if kind in _registered:
        return _registered[kind]
    if built_in := node_kinds.find(kind).handler:
        from importlib import import_module

        module_name, _, name = built_in.partition(":")
        function: Handler = getattr(import_module(f"corral._pipelines.nodes.{module_name}"), name)
        _registered[kind] = function
        return function
    from difflib import get_close_matches

    for entry in entry_points(ENTRY_POINTS):
        if entry.name != kind:
            continue
        try:
            loaded = entry.load()
        except Exception as error:  # the import runs code of another package
            raise ConfigError(
                f"the node type {kind!r} of {entry.value} cannot be loaded: {error}"
            ) from error
        return register(kind, loaded)
    if kind in node_kinds.SCHEDULER_KINDS:
        raise ConfigError(f"{kind!r} has no handler: the scheduler itself runs such nodes")
    names = registered_kinds()
    near = get_close_matches(kind, names, 1, 0.5)
    meant = f"Did you mean {near[0]!r}? " if near else ""
    raise ConfigError(f"no node type is called {kind!r}", hint=f"{meant}Known: {', '.join(names)}.")


def for_node(node: Node) -> Handler:
    """The handler of this node: by its type, or by its shape if no package has such a type. Raises
    ``ConfigError``."""
    kind = node.kind
    if kind in _registered or kind in node_kinds.KINDS or kind in registered_kinds():
        return find(kind)
    return find(shape_kind(node))


def is_built_in(function: Handler) -> bool:
    """Whether the handler is built in: it stops when it is cancelled, needs a directory, and is
    the same in every process. A registered one may not be."""
    return function.__module__.startswith("corral._pipelines.nodes.")


def registered_kinds() -> list[str]:
    """The names of all node kinds that this process can run, sorted."""
    others = (entry.name for entry in entry_points(ENTRY_POINTS))
    names = {*_registered, *node_kinds.PUBLIC, *others}
    return sorted(name for name in names if not node_kinds.find(name).internal)
