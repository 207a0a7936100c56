"""A run once more, from somewhere in the middle: a new run that knows what came of another.

Nothing of the old one is changed. The new one is driven by the same plan; where that
orders what is known already, the known outcome is its answer, and nothing is done.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from corral.durable import query, service
from corral.durable.dbos.client import Client, with_client
from corral.durable.dbos.database import find
from corral.durable.history import Replay
from corral.durable.payloads import answer_key, unpack
from corral.durable.workspace import run_worktree
from corral.errors import ConfigError
from corral.pipelines.graph import Graph
from corral.pipelines.scheduler.commands import Answered, Ended, Expired, Message


def known_before(replay: Replay, node: str) -> dict[str, Message]:
    """What had come of everything but the last visit of this node and what follows from it.
    Raises ``ConfigError`` where the node was not visited."""
    visits = [key for key in replay.ordered if key.rpartition(".")[0] == node]
    passed = [key for key in replay.passed if key.rpartition(".")[0] == node]
    if passed and not visits:
        before = set([*replay.ordered][: replay.passed[passed[-1]]])
        return {message.id: message for message in answers(replay) if message.id in before}
    if not visits:
        names = sorted({key.rpartition(".")[0] for key in (*replay.ordered, *replay.passed)})
        raise ConfigError(f"{node!r} was not visited", hint=f"Visited: {', '.join(names)}.")
    chosen = max(visits, key=lambda key: replay.ordered[key])
    moment = replay.ordered[chosen]
    return {
        message.id: message
        for message in answers(replay)
        if message.id != chosen and replay.ordered.get(message.id, moment + 1) <= moment
    }


def answers(replay: Replay) -> list[Ended | Answered | Expired]:
    return [each for each in replay.messages if isinstance(each, Ended | Answered | Expired)]


async def fork(
    run: str,
    node: str,
    *,
    folder: Path,
    graph: Graph | None = None,
    db: str | None = None,
    queue: str | None = None,
    run_id: str | None = None,
) -> str:
    """A new run that goes on from this node, as if all before it had just been done; with
    another graph, where one is given. A worktree of its own begins with what the old run had
    kept by then. Returns its id."""
    replay = await _replay(run, db)
    known = known_before(replay, node)
    return await _begin(
        replay, known, folder=folder, graph=graph, db=db, queue=queue, run_id=run_id
    )


async def go_on_changed(
    run: str,
    graph: Graph,
    *,
    folder: Path,
    accept_changed_graph: bool = False,
    db: str | None = None,
    queue: str | None = None,
    run_id: str | None = None,
) -> str:
    """Take a run up with the graph as it is now. Where it is not the one that the run began
    with, that is refused; with ``accept_changed_graph`` the run is cancelled, and a new one
    goes on from all that it has finished. Returns the id of the run that goes on."""
    replay = await _replay(run, db)
    if same(replay.begun.graph, graph):
        return await service.resume(run, db=db)
    if not accept_changed_graph:
        raise ConfigError(
            f"the pipeline of {run!r} has changed since it began",
            hint="Accept that to go on with the new one: what is finished is kept.",
        )
    await service.cancel(run, reason="its pipeline was changed", db=db)
    known: dict[str, Message] = {each.id: each for each in answers(replay)}
    known |= await _given(run, replay, db)
    return await _begin(
        replay, known, folder=folder, graph=graph, db=db, queue=queue, run_id=run_id
    )


def same(one: Graph, other: Graph) -> bool:
    """Whether two graphs mean the same, wherever they stand in their files."""

    def bare(graph: Graph) -> bytes:
        nodes = {key: (each.attrs, each.classes) for key, each in graph.nodes.items()}
        edges = [(each.source, each.target, each.attrs) for each in graph.edges]
        return msgspec.json.encode([graph.name, graph.attrs, nodes, edges], order="sorted")

    return bare(one) == bare(other)


async def _replay(run: str, db: str | None) -> Replay:
    def look(client: Client) -> Replay:
        return query.replayed(client, run)[1]

    return await with_client(find(db), look)


async def _given(run: str, replay: Replay, db: str | None) -> dict[str, Message]:
    """Answers that were given, and that nobody has taken yet."""

    def look(client: Client) -> dict[str, Message]:
        found: dict[str, Message] = {}
        for question in replay.questions:
            told = client.find_message(run, answer_key(question.id))
            if told is not None:
                found[question.id] = unpack(told, Answered)
        return found

    return await with_client(find(db), look)


async def _begin(
    replay: Replay,
    known: dict[str, Message],
    *,
    folder: Path,
    graph: Graph | None,
    db: str | None,
    queue: str | None,
    run_id: str | None = None,
) -> str:
    begun, setting = replay.begun, replay.begun.setting
    graph = graph or begun.graph
    name = run_id or service.new_id(graph.name)
    tree = setting.tree
    if tree is not None:
        # As it was after the last of what is known: not with what is to be done again.
        at = tree.commit
        for message in answers(replay):
            if message.id in known and isinstance(message, Ended):
                at = str(message.outcome.context_updates.get(run_worktree.COMMIT, at))
        base, within = tree.commit, tree.within
        choose = run_worktree.choose
        tree = await asyncio.to_thread(choose, name, tree.repository, base, within=within)
        tree = msgspec.structs.replace(tree, begins=at)
    async with run_worktree.reserved(tree, stays=queue is None):
        return await service.start(
            graph,
            folder=folder,
            workspace=Path(setting.workspace),
            db=db,
            queue=queue,
            run_id=name,
            values=begun.values,
            simulate=setting.simulate,
            agent=setting.agent,
            model=setting.model,
            options=setting.options,
            detached=setting.detached,
            imports=setting.imports,
            tree=tree,
            artefacts=setting.artefacts,
            source=setting.source,
            goal=setting.goal,
            known=known,
            forked_from=begun.run_id,
        )
