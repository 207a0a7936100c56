"""Human gates: a person chooses the edge."""

from __future__ import annotations

import pytest
from support.scheduler_driver import SchedulerDriver, graph_of

from corral._pipelines.events import InterviewCompleted
from corral._pipelines.scheduler import human_gate
from corral._pipelines.scheduler.commands import (
    AskHuman,
    EmitEvent,
    Ended,
    Expired,
    Question,
    RunNode,
)
from corral._pipelines.scheduler.outcome import failed

GATE = 's -> g; g [shape=hexagon, label="Ship $goal?"]; goal=it;'
BODY = f'{GATE} g -> yes [label="[Y] Yes"]; g -> no [label="No"]; yes -> e; no -> e;'


def asked(run: SchedulerDriver) -> Question:
    [order] = [order for order in run.waiting.values() if isinstance(order, AskHuman)]
    return order.question


def keys(edges: str) -> list[tuple[str, str, str]]:
    graph = graph_of(f"s -> g; {edges}")
    return [(c.key, c.label, c.target) for c in human_gate.choices(graph.edges_from("g"))]


def test_a_gate_asks_with_its_edges_as_options() -> None:
    question = asked(SchedulerDriver(BODY))
    assert question.text == "Ship it?"
    assert [(c.key, c.label, c.target) for c in question.choices] == [
        ("Y", "Yes", "yes"),
        ("N", "No", "no"),
    ]
    assert (question.id, question.node, question.timeout) == ("g.1", "g", None)


@pytest.mark.parametrize("value", ["Y", "y", "Yes", " yes ", "[Y] Yes"])
def test_a_choice_is_found_by_key_label_or_target(value: str) -> None:
    run = SchedulerDriver(BODY)
    run.answer(value)
    emitted = [order.event for order in run.commands if isinstance(order, EmitEvent)]
    assert [each.answer for each in emitted if isinstance(each, InterviewCompleted)] == ["Yes"]
    assert run.path == ["yes"]
    assert run.context["human.gate.selected"] == "Y"
    assert run.context["human.gate.label"] == "[Y] Yes"
    assert run.context["preferred_label"] == "Yes"


@pytest.mark.parametrize(
    ("edges", "expected"),
    [
        ("g -> a [label=Approve]; g -> b [label=Again]", ["A", "G"]),
        ('g -> a [label="Approve"]; g -> b [label="[A] Again"]', ["P", "A"]),
        ('g -> a [label="[A] One"]; g -> b [label="[a] Two"]', ["A", "T"]),
        ("g -> a; g -> aa; g -> aaa", ["A", "1", "2"]),
        ("g -> b; g -> a", ["B", "A"]),
        ('g -> a [label="1) One"]; g -> b [label="2) Two"]', ["1", "2"]),
        ('g -> a [label="!"]; g -> b [label="[1] x"]', ["2", "1"]),
    ],
)
def test_keys_are_all_different(edges: str, expected: list[str]) -> None:
    assert [key for key, _, _ in keys(edges)] == expected


def test_an_edge_without_a_label_is_offered_by_its_target() -> None:
    assert keys("g -> deploy") == [("D", "deploy", "deploy")]
    run = SchedulerDriver(f"{GATE} g -> deploy; g -> abort; deploy -> e; abort -> e")
    run.answer("D")
    assert run.path == ["deploy"]


def test_of_two_edges_with_one_label_the_chosen_one_is_taken() -> None:
    run = SchedulerDriver(f"{GATE} g -> a [label=go]; g -> b [label=go]; a -> e; b -> e")
    run.answer("b")
    assert run.path == ["b"]


def test_edges_with_a_condition_are_choices_too() -> None:
    body = f'{BODY} g -> late [condition="preferred_label=late"]; late -> e'
    run = SchedulerDriver(body)
    assert [c.target for c in asked(run).choices] == ["yes", "no", "late"]
    run.answer("late")
    assert run.path == ["late"]


def test_a_choice_whose_condition_is_not_true_leads_nowhere_else() -> None:
    body = f'{GATE} g -> ship [label=Ship, condition="outcome=success"]; ship -> e;'
    run = SchedulerDriver(f'{body} g -> fix [label=Fix, condition="outcome=fail"]; fix -> e')
    run.answer("fix")
    assert run.path == []
    assert "the condition of the choice 'Fix' is not true" in run.finish.reason


def test_a_condition_that_is_true_does_not_replace_the_choice_of_a_person() -> None:
    body = f'{GATE} g -> ship [label=Ship, condition="outcome=success"]; ship -> e;'
    run = SchedulerDriver(f"{body} g -> fix [label=Fix]; fix -> e")
    run.answer("fix")
    assert run.path == ["fix"]


def test_of_two_edges_that_are_one_choice_the_one_that_can_be_followed_is_taken() -> None:
    run = SchedulerDriver(
        f'{GATE} g -> a [condition="outcome=fail"]; g -> a; g -> b; a -> e; b -> e'
    )
    run.answer("a")
    assert run.path == ["a"]


def test_a_skipped_gate_follows_its_edge_for_failures() -> None:
    run = SchedulerDriver(f'{BODY} g -> late [condition="outcome=fail"]; late -> e')
    run.answer(skipped=True)
    assert run.path == ["late"]


def test_a_skipped_question_fails_and_chooses_nothing() -> None:
    run = SchedulerDriver(BODY)
    run.answer(skipped=True)
    assert run.path == []
    assert run.status == "fail"
    assert "skipped" in run.finish.reason


def expire(run: SchedulerDriver) -> None:
    id = asked(run).id
    del run.waiting[id]
    run.send(Expired(id=id))


def test_at_the_timeout_the_default_is_chosen() -> None:
    run = SchedulerDriver(BODY + "g [human.timeout=15m, human.default_choice=no]")
    assert (asked(run).timeout, asked(run).default) == (900.0, "N")
    expire(run)
    assert run.path == ["no"]
    assert run.context["human.gate.label"] == "No"


@pytest.mark.parametrize(
    ("before", "own", "seconds"),
    [
        ("node [timeout=5m]; ", "", None),
        ("node [timeout=5m]; ", "human.timeout=15m", 900.0),
        ("node [timeout=5m]; ", "timeout=1h", 3600.0),
        ("node [timeout=5m, human.timeout=2d]; ", "", 172_800.0),
        ("", "timeout=1h", 3600.0),
    ],
)
def test_a_default_timeout_of_nodes_is_not_the_timeout_of_a_gate(
    before: str, own: str, seconds: float | None
) -> None:
    run = SchedulerDriver(f"{before}{BODY} g [{own}]" if own else before + BODY)
    assert asked(run).timeout == seconds


def test_a_gate_that_is_only_named_in_an_edge_inherits_no_timeout() -> None:
    body = (
        "node [timeout=5m, type=human]; s -> g; node [type=tool, tool_command=true]; g -> yes -> e"
    )
    assert asked(SchedulerDriver(f"s [type=start]; e [type=exit]; {body}")).timeout is None


def test_without_a_default_it_is_asked_again_and_then_fails() -> None:
    run = SchedulerDriver(BODY + "g [human.timeout=1s, max_retries=1]")
    expire(run)
    assert asked(run).id == "g.1#2"
    assert run.send(Expired(id="g.1")) == []
    expire(run)
    assert run.finish.reason == "node 'g' failed: no answer before the timeout"
    assert run.scheduler.state.retries == {"g": 1}


def test_an_invalid_answer_is_asked_again_and_then_fails() -> None:
    run = SchedulerDriver(BODY + "g [max_retries=1]")
    run.answer("maybe")
    run.answer("perhaps")
    assert "'perhaps' is not one of the choices: Y (Yes), N (No)" in run.finish.reason


def test_find_choice_rejects_an_invalid_answer() -> None:
    choices = asked(SchedulerDriver(BODY)).choices
    assert human_gate.find_choice(choices, "maybe") is None
    assert human_gate.find_choice(choices, "no") == choices[1]


def test_a_gate_without_edges_fails() -> None:
    run = SchedulerDriver(GATE)
    assert run.finish.reason == "node 'g' failed: the gate has no edges to choose from"


def test_a_free_text_is_not_a_choice() -> None:
    run = SchedulerDriver(f"{BODY} yes [shape=hexagon]")
    run.answer("y")
    assert asked(run).choices == ()
    run.answer("whatever I want")
    assert run.context["human.gate.text"] == "whatever I want"
    assert run.context["human.gate.selected"] == run.context["human.gate.label"] == ""
    assert run.status == "success"


def test_a_gate_without_an_interviewer_fails() -> None:
    run = SchedulerDriver(BODY)
    del run.waiting["g.1"]
    run.send(Ended(id="g.1", outcome=failed("there is no interviewer")))
    assert run.finish.reason == "node 'g' failed: there is no interviewer"


def test_a_second_answer_is_ignored() -> None:
    run = SchedulerDriver(BODY)
    run.answer("y")
    run.waiting["g.1"] = AskHuman(question=Question(id="g.1", node="g", text=""))
    assert run.answer("n") == []
    assert run.path == ["yes"]
    assert [type(order) for order in run.waiting.values()] == [RunNode]
