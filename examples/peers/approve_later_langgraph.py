"""approve_later.dot with LangGraph: ``run GOAL``, and later ``answer Y`` or ``answer N``."""

import subprocess
import sys
from typing import TypedDict

from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt

THREAD = {"configurable": {"thread_id": "approve-later"}}


class State(TypedDict):
    goal: str
    answer: str


def ask(prompt: str) -> str:
    command = ["gemini", "--approval-mode", "auto_edit", "--prompt", prompt]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def plan(state: State) -> dict[str, str]:
    return {"answer": ask(f"Make a short plan in PLAN.md. Goal: {state['goal']}")}


def implement(state: State) -> dict[str, str]:
    return {"answer": ask(f"Carry out PLAN.md; see REVIEW.md. Goal: {state['goal']}")}


def review(state: State) -> dict[str, str]:
    return {"answer": ask(f"Review the changes; write REVIEW.md. Goal: {state['goal']}")}


def approve(state: State) -> Command[str]:
    choice = interrupt(f"Is it good? [Y/N]\n{state['answer']}")
    return Command(goto=END if choice == "Y" else "implement")


graph = StateGraph(State)
for step in (plan, implement, review):
    graph.add_node(step.__name__, step)
graph.add_node("approve", approve, destinations=("implement", END))
graph.add_edge(START, "plan")
graph.add_edge("plan", "implement")
graph.add_edge("implement", "review")
graph.add_edge("review", "approve")
with SqliteSaver.from_conn_string("approve-later.sqlite") as saver:
    app = graph.compile(checkpointer=saver)
    if sys.argv[1] == "run":
        result = app.invoke({"goal": sys.argv[2], "answer": ""}, THREAD)
    else:
        result = app.invoke(Command(resume=sys.argv[2]), THREAD)
    for waiting in result.get("__interrupt__", ()):
        print(waiting.value)
