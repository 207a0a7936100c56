"""A node of LangGraph that is a coding agent. The id of its session is part of the graph's state:
a later node can continue the conversation with ``resume=``."""

from typing import TypedDict

from langgraph.graph import END, START, StateGraph

import corral


class State(TypedDict, total=False):
    task: str
    answer: str
    session: str


async def code(state: State) -> State:
    async with corral.session(policy="edits") as session:
        result = await session.run(state["task"])
        return {"answer": result.raise_for_status().text, "session": session.id}


graph = StateGraph(State).add_node("code", code).add_edge(START, "code").add_edge("code", END)
app = graph.compile()
