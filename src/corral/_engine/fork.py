"""A new run that continues another from a node in the middle, or with a changed graph.

The old run is not changed. The new run starts with the results that the old one recorded. If its
scheduler returns a command whose result is known, the known result is used and nothing runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path

import msgspec
from msgspec.structs import replace

from corral._engine import query, service
from corral._engine.dbos.client import DatabaseClient, with_client
from corral._engine.dbos.database import find
from corral._engine.payloads import COMMIT, RunInput, answer_key, unpack
from corral._engine.query import Replay
from corral._pipelines.graph import Graph, Value
from corral._pipelines.run_limits import with_limits
from corral._pipelines.scheduler.commands import Answered, Ended, Expired, Message
from corral._workflows.program_turn import StoredProgram
from corral.errors import ConfigError


def known_before(replay: Replay, node: str) -> dict[str, Message]:
    """The results of everything before the last visit of this node. Raises ``ConfigError`` if the
    node was not visited."""
    visits = [key for key in replay.command_positions if key.rpartition(".")[0] == node]
    passed_positions = [key for key in replay.passed_positions if key.rpartition(".")[0] == node]
    if passed_positions and not visits:
        before = set([*replay.command_positions][: replay.passed_positions[passed_positions[-1]]])
        return {message.id: message for message in results_of(replay) if message.id in before}
    if not visits:
        names = sorted(
            {
                key.rpartition(".")[0]
                for key in (*replay.command_positions, *replay.passed_positions)
            }
        )
        raise ConfigError(f"{node!r} was not visited", hint=f"Visited: {', '.join(names)}.")
    chosen = max(visits, key=lambda key: replay.command_positions[key])
    position = replay.command_positions[chosen]
    return {
        message.id: message
        for message in results_of(replay)
        if message.id != chosen
        and replay.command_positions.get(message.id, position + 1) <= position
    }


def results_of(replay: Replay) -> list[Ended | Answered | Expired]:
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
    """Start a run that continues from this node, with another graph if one is given. Its worktree,
    if it has one, starts with what the old run had saved before. Returns its id."""
    replay = await read_replay(run, db)
    known = known_before(replay, node)
    return await begin(replay, known, folder=folder, graph=graph, db=db, queue=queue, run_id=run_id)


async def continue_with_graph(
    run: str,
    graph: Graph,
    *,
    folder: Path,
    db: str | None = None,
    queue: str | None = None,
    run_id: str | None = None,
    limits: Mapping[str, Value] | None = None,
) -> str:
    """Cancel a run, and start one with another graph that continues from all that has finished.
    Returns its id. ``limits`` replace those of that run."""
    replay = await read_replay(run, db)
    await service.cancel(run, reason="its pipeline was changed", db=db)
    known: dict[str, Message] = {each.id: each for each in results_of(replay)}
    known |= await pending_answers(run, replay, db)
    return await begin(
        replay, known, folder=folder, graph=graph, db=db, queue=queue, run_id=run_id, limits=limits
    )


def is_same_graph(one: Graph, other: Graph) -> bool:
    """Whether two graphs are equal, apart from positions in their files."""

    def meaning(graph: Graph) -> bytes:
        nodes = {key: (each.attrs, each.classes) for key, each in graph.nodes.items()}
        edges = [(each.source, each.target, each.attrs) for each in graph.edges]
        return msgspec.json.encode([graph.name, graph.attrs, nodes, edges], order="sorted")

    return meaning(one) == meaning(other)


async def read_replay(run: str, db: str | None) -> Replay:
    def read(client: DatabaseClient) -> Replay:
        row, replay = query.replay_run(client, run)
        row.check_format()
        return replay

    return await with_client(find(db), read)


async def pending_answers(run: str, replay: Replay, db: str | None) -> dict[str, Message]:
    """Answers that were sent and that the run has not received."""

    def read(client: DatabaseClient) -> dict[str, Message]:
        found: dict[str, Message] = {}
        for question in replay.questions:
            message = client.find_message(run, answer_key(question.id))
            if message is not None:
                found[question.id] = unpack(message, Answered)
        return found

    return await with_client(find(db), read)


async def begin(  # noqa: PLR0913
    replay: Replay,
    known: dict[str, Message],
    *,
    folder: Path,
    graph: Graph | None,
    db: str | None,
    queue: str | None,
    run_id: str | None = None,
    program: StoredProgram | None = None,
    limits: Mapping[str, Value] | None = None,
) -> str:
    """Start a run that continues another; returns its id. ``known``: the results of that one. A
    ``program`` has those of its steps itself. ``limits`` replace those of that run."""
    run_input, config = replay.run_input, replay.run_input.config
    if limits:
        graph = graph or run_input.graph
        graph = replace(graph, attrs={**graph.attrs, **limits})
        config = replace(config, limits={**config.limits, **limits})
    graph = with_limits(graph or run_input.graph, config.limits)
    name = run_id or service.new_id(graph.name)
    tree = config.tree
    worktree: AbstractAsyncContextManager[None] = nullcontext()
    if tree is not None:
        from corral._engine.workspace import run_worktree

        # The commit after the last known result, without what is run again.
        at = tree.commit
        for message in results_of(replay):
            if message.id in known and isinstance(message, Ended):
                at = str(message.outcome.context_updates.get(COMMIT, at))
        base, within = tree.commit, tree.within
        choose = run_worktree.choose
        tree = await asyncio.to_thread(choose, name, tree.repository, base, within=within)
        tree = replace(tree, start_commit=at)
        worktree = run_worktree.reserved(tree, stays=queue is None)
    config = replace(config, folder=str(folder), tree=tree)
    forked = RunInput(
        run_id=name,
        graph=graph,
        config=config,
        values=run_input.values,
        known=known if program is None else {},
        forked_from=run_input.run_id,
        program=program,
    )
    async with worktree:
        return await service.start(forked, db=db, queue=queue)
