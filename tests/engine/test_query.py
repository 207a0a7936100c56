"""The history of a run, from its journal."""

from __future__ import annotations

import msgspec

from corral._engine.dbos.client import JournalEntry
from corral._engine.node_runner import Retrying
from corral._engine.payloads import NodesStep, RunConfig, RunInput, TurnStep
from corral._engine.query import NODES, TURN, Replay, run_not_found
from corral._pipelines.execution.run_dir import MANIFEST
from corral._pipelines.graph import Graph, Node
from corral._pipelines.scheduler.commands import Ended
from corral._pipelines.scheduler.outcome import Outcome
from corral._system import paths
from corral._workflows.program_turn import ProgramTurn, Step, StoredProgram, graph_of


def test_a_run_that_only_has_a_folder_is_named_with_the_command_that_shows_it() -> None:
    (folder := paths.home() / "runs" / "in-memory-1a2b").mkdir(parents=True)
    assert "there is no run 'in-memory-1a2b'" in str(run_not_found("in-memory-1a2b"))
    (folder / MANIFEST).touch()
    assert "corral runs replay in-memory-1a2b" in str(run_not_found("in-memory-1a2b"))


def entry(name: str, output: object) -> JournalEntry:
    return JournalEntry(number=0, name=name, output=msgspec.to_builtins(output), at=0.0)


def run_input() -> RunInput:
    config = RunConfig(folder="r", workspace="w")
    return RunInput(run_id="r", graph=Graph(name="g"), config=config, program=StoredProgram())


def turn(*names: str) -> ProgramTurn:
    return ProgramTurn(steps=[Step(id=f"{name}.1", node=Node(id=name)) for name in names])


def test_the_program_of_a_workflow_gets_one_end_after_another_of_those_reported_at_once() -> None:
    replay = Replay(run_input())
    both = NodesStep(messages=[Ended(id=f"{name}.1", outcome=Outcome()) for name in "ab"])
    replay.feed(entry(TURN, turn("a", "b")))
    replay.feed(entry(NODES, both))
    replay.feed(entry(TURN, turn()))
    replay.feed(entry(TURN, turn("c")))
    ends = [[each.id for each in before] for _, before in replay.turns]
    assert ends == [[], ["a.1"], ["b.1"]]


def test_what_was_reported_is_known_before_the_program_goes_on() -> None:
    replay = Replay(run_input())
    replay.feed(entry(TURN, turn("a", "b")))
    messages: list[Ended | Retrying] = [Ended(id=f"{name}.1", outcome=Outcome()) for name in "ab"]
    replay.feed(entry(NODES, NodesStep(messages=messages)))
    replay.take_reported()
    assert [*replay.scheduler.state.outcomes] == ["a", "b"]


def test_what_the_steps_of_a_turn_reported_is_in_its_record() -> None:
    replay = Replay(run_input())
    ends = tuple(Ended(id=f"{name}.1", outcome=Outcome()) for name in "ab")
    replay.feed(entry(TURN, TurnStep(steps=turn("a", "b").steps, messages=ends)))
    replay.feed(entry(TURN, TurnStep(steps=turn("c").steps)))
    replay.feed(entry(TURN, turn("d")))
    assert [[each.id for each in before] for _, before in replay.turns] == [[], ["a.1"], ["b.1"]]
    assert [*replay.scheduler.state.open] == ["c.1", "d.1"]


def test_who_follows_a_run_gets_each_event_once_and_keeps_no_history() -> None:
    replay = Replay(run_input())
    replay.feed(entry(TURN, turn("a")))
    first = replay.take_events()
    replay.feed(entry(NODES, NodesStep(messages=[Ended(id="a.1", outcome=Outcome())])))
    replay.feed(entry(TURN, turn("b")))
    found = [*first, *replay.take_events()]
    assert [each.seq for each in found] == [1, 2, 3, 4, 5]
    assert [replay.events, replay.turns, replay.messages, replay.command_positions] == [
        [],
        [],
        [],
        {},
    ]


def test_a_step_follows_those_whose_ends_let_the_program_come_there() -> None:
    def after(name: str, *before: str) -> Step:
        return Step(id=f"{name}.1", node=Node(id=name), after=tuple(f"{b}.1" for b in before))

    drawn = Step(id="now.1", kind="now", after=("a.1", "b.1"))
    turns = [turn("a", "b"), ProgramTurn(steps=[drawn]), ProgramTurn(steps=[after("c", "now")])]
    graph = graph_of(turns, Graph(name="g"))
    assert [*graph.nodes] == ["a", "b", "c"]
    assert [(edge.source, edge.target) for edge in graph.edges] == [("a", "c"), ("b", "c")]
