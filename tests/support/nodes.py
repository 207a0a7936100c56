"""Execute single nodes, with what the scheduler and its runner would provide."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Unpack

from corral._pipelines.execution import attempt as works
from corral._pipelines.execution.handlers import NodeContext, NodeResources
from corral._pipelines.graph import Graph, Node, Value
from corral._pipelines.scheduler.commands import RunNode
from corral._pipelines.scheduler.outcome import Outcome
from corral.events import Event
from corral.run_kwargs import RunKwargs
from corral.testing import Lane, ModelServer, Request, Turn
from corral.values import Json


class NodeHarness:
    """Executes one node at a time in a run folder."""

    def __init__(self, folder: Path, workspace: Path) -> None:
        self.run_folder = folder
        self.workspace = workspace
        self.events: list[Event] = []

    def context(
        self,
        node: str = "step",
        *,
        resources: NodeResources,
        attrs: dict[str, Value] | None = None,
        context: dict[str, Json] | None = None,
        graph: dict[str, Value] | None = None,
        emit: Callable[[Event], None] | None = None,
        **visit: Any,
    ) -> NodeContext:
        made = Node(node, dict(attrs or {}))
        return NodeContext(
            run_id="run-1",
            graph=Graph("test", dict(graph or {}), {node: made}),
            node=made,
            visit=RunNode(
                id=f"{node}.1", node=node, number=1, context=dict(context or {}), **visit
            ),
            attempt=1,
            folder=self.run_folder / node,
            run_folder=self.run_folder,
            workspace=self.workspace,
            resources=resources,
            emit=self.events.append if emit is None else emit,
        )

    async def attempt(self, node: str = "step", **given: Any) -> Outcome:
        if "resources" in given:
            return await works.attempt(self.context(node, **given))
        async with NodeResources() as resources:
            return await works.attempt(self.context(node, resources=resources, **given))

    def read(self, name: str, node: str = "step") -> str:
        return (self.run_folder / node / name).read_text("utf-8")

    def written_bytes(self) -> bytes:
        """Names and contents of all files that the run wrote."""
        files = [path for path in self.run_folder.rglob("*") if path.is_file()]
        return b"\n".join(str(path).encode() + b"\n" + path.read_bytes() for path in files)


def processes_in(folder: Path) -> list[str]:
    """Command lines of the processes whose working directory is ``folder``."""
    found: list[str] = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.readlink(f"/proc/{pid}/cwd") == str(folder.resolve()):
                found.append(Path(f"/proc/{pid}/cmdline").read_bytes().decode())
        except OSError:
            continue
    return found


KEY = "canary-key-0123456789abcdef"
MODEL = "gemini:gemini-2.5-flash"


class ScriptedModel:
    """Creates node resources that are connected to a scripted model."""

    def __init__(self, server: ModelServer, name: str) -> None:
        self._server = server
        self._name = name
        self._count = 0
        self.lane: Lane
        """Of the last resources."""

    def resources(
        self,
        script: Sequence[Turn] | Callable[[Request], Turn],
        *,
        named: str | None = MODEL,
        **options: Unpack[RunKwargs],
    ) -> NodeResources:
        self._count += 1
        self.lane = self._server.lane(f"{self._name}-{self._count}", script)
        env = {"GEMINI_API_KEY": KEY, "GOOGLE_GEMINI_BASE_URL": self.lane.url}
        combined: RunKwargs = {"retries": 0, **options, "env": {**env, **options.get("env", {})}}
        return NodeResources(model=named, options=combined)

    @property
    def prompts(self) -> list[str]:
        """The last user text of each request of the conversation."""
        return [request.last_text for request in self.lane.requests if not request.aside]
