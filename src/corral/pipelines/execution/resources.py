"""What a process that runs nodes shares between them: warm agents, a model client, a redactor.

::

    async with NodeResources(options={"policy": "edits"}) as resources:
        ...

Agents that can stay warm serve the nodes of all runs from a few processes. There is one process
for each combination of what is fixed at its start (agent, model, policy, environment). Leaving
the block ends all of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

import msgspec

from corral.agents.registry import DEFAULT_AGENT
from corral.errors import ConfigError, StorageFailed
from corral.events import Event
from corral.result import Result
from corral.system import config, fs
from corral.system.environment import SecretRedactor, is_secret, named_secrets
from corral.values import SHORTEST_SECRET

if TYPE_CHECKING:
    from corral.inference.client import Client
    from corral.options import RunKwargs
    from corral.pipelines.execution.handlers import NodeContext
    from corral.pipelines.graph import Graph
    from corral.sessions.permissions import Asker
    from corral.sessions.pool import Pool

PROMPTS_AT_ONCE = 4
"""In one warm process."""


class NodeResources:
    """``options`` are those of ``corral.run``: the defaults of every node. ``agent`` and ``model``
    are for nodes that name none. ``ask`` answers the agents' permission requests. ``processes``
    limits the processes of each warm agent. Use it only in the event loop that opened it."""

    def __init__(
        self,
        *,
        simulate: bool = False,
        agent: str = DEFAULT_AGENT,
        model: str | None = None,
        options: RunKwargs | None = None,
        ask: Asker | None = None,
        processes: int = 1,
        prompts_at_once: int = PROMPTS_AT_ONCE,
    ) -> None:
        self.simulate = simulate
        self.agent = agent
        self.model = model
        self.options: dict[str, Any] = dict(cast("dict[str, Any]", options or {}))
        self.ask = ask
        self._processes = processes
        self._at_once = prompts_at_once
        self.env: Mapping[str, str] = self.options.get("env") or {}
        passed: Sequence[str] | None = self.options.get("pass_env")
        self._pass_env = tuple(config.passed_env() if passed is None else passed)
        self._secrets = named_secrets({**os.environ, **self.env})
        self.redactor = SecretRedactor(self._secrets)
        """Removes secrets from what is written to files of a run or sent to a model."""
        self._stack = AsyncExitStack()
        self._pools: dict[bytes, Pool] = {}
        self._client: Client | None = None
        self._is_open = False

    async def __aenter__(self) -> NodeResources:
        self._is_open = True
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_open = False
        self._pools.clear()
        self._client = None
        await self._stack.aclose()

    def command_env(self, work: NodeContext) -> dict[str, str]:
        """Of ``env``, what commands see: keys are for agents, unless they are passed on by
        name."""
        passed = self.pass_env(work)
        return {
            name: value
            for name, value in self.env.items()
            if name in passed or not is_secret(name, value)
        }

    def pass_env(self, work: NodeContext) -> tuple[str, ...]:
        """Names of variables that commands and agents of this node see besides the usual ones:
        the node's, the graph's, and those of the options or of a trusted corral.toml."""
        named = (str(attrs.get("pass_env", "")) for attrs in (work.node.attrs, work.graph.attrs))
        own = (name.strip() for text in named for name in text.replace(",", " ").split())
        return tuple(dict.fromkeys((*self._pass_env, *own)))

    def add_secrets_of(self, graph: Graph) -> None:
        """From now on tokens that nodes of this graph use are redacted too."""
        tokens = bearer_tokens(graph, {**os.environ, **self.env})
        if not tokens.items() <= self._secrets.items():
            self._secrets = {**self._secrets, **tokens}
            self.redactor = SecretRedactor(self._secrets)

    @property
    def warm(self) -> int:
        """Pools of warm agents, as far as any was needed."""
        return len(self._pools)

    async def warm_run(
        self,
        agent: str,
        prompt: str,
        *,
        fixed: Mapping[str, Any],
        own: Mapping[str, Any],
        on_event: Callable[[Event], None],
    ) -> Result:
        """One prompt in a fresh session of a warm process: ``fixed`` at its start, ``own`` of the
        prompt."""
        pool = await self._pool(agent, fixed)
        return await pool.run(prompt, on_event=on_event, **own)

    async def _pool(self, agent: str, fixed: Mapping[str, Any]) -> Pool:
        self._check_open()
        key = agent.encode() + msgspec.json.encode(fixed, enc_hook=str, order="sorted")
        pool = self._pools.get(key)
        if pool is None:
            from corral.sessions.api import pool as new_pool

            pool = new_pool(
                agent,
                size=self._processes,
                prompts_at_once=self._at_once,
                ask=self.ask,
                **fixed,
            )
            # Opening waits for nothing: two nodes cannot open the same pool at once.
            self._pools[key] = await self._stack.enter_async_context(pool)
        return pool

    def client(self) -> Client:
        """For calls of models without an agent."""
        self._check_open()
        if self._client is None:
            from corral.inference.client import Client

            self._client = Client(environ={**os.environ, **self.env})
            self._stack.push_async_callback(self._client.close)
        return self._client

    def _check_open(self) -> None:
        if not self._is_open:
            raise RuntimeError(
                "open the resources first: async with NodeResources(...) as resources"
            )


def bearer_tokens(graph: Graph, environ: Mapping[str, str]) -> dict[str, str]:
    """Name → value of the variables that nodes send as bearer tokens: they are secrets, whatever
    they are called."""
    names = (node.text("bearer_env") for node in graph.nodes.values())
    return {name: environ[name] for name in names if len(environ.get(name, "")) >= SHORTEST_SECRET}


def resources_of(work: NodeContext) -> NodeResources:
    """The resources of a built-in node. Raises ``ConfigError`` if they are of another class."""
    if not isinstance(work.resources, NodeResources):
        raise ConfigError(
            f"a {work.node.kind} node needs corral.pipelines.execution.resources.NodeResources"
        )
    return work.resources


def write_node_file(work: NodeContext, name: str, data: str | bytes) -> None:
    """Write a file in the node's directory, with secrets redacted, unless it must not write files.
    Raises ``StorageFailed``."""
    if not work.keeps:
        return
    raw = data.encode("utf-8", "replace") if isinstance(data, str) else data
    if isinstance(work.resources, NodeResources):
        raw = work.resources.redactor.clean(raw)
    path = f"{work.folder}{os.sep}{name}"
    try:
        fs.write_atomically(path, raw, mode=0o666)
    except OSError as error:
        raise StorageFailed(
            f"cannot write {path}: {error.strerror or error}", hint="Free some space there."
        ) from error
