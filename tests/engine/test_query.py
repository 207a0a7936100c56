"""The history of a run, from its journal."""

from __future__ import annotations

import msgspec

from corral._engine.dbos.client import JournalEntry
from corral._engine.node_runner import Retrying
from corral._engine.payloads import NodesStep, RunConfig, RunInput
from corral._engine.query import NODES, TURN, Replay
from corral._pipelines.graph import Graph, Node
from corral._pipelines.scheduler.commands import Ended
from corral._pipelines.scheduler.outcome import Outcome
from corral._workflows.program_turn import ProgramTurn, Step, StoredProgram


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
