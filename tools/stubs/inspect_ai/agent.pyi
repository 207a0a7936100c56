from collections.abc import Callable
from typing import ParamSpec, Protocol

from inspect_ai.model import ChatMessage, ModelOutput

P = ParamSpec("P")

class AgentState:
    messages: list[ChatMessage]
    output: ModelOutput

class Agent(Protocol):
    async def __call__(self, state: AgentState) -> AgentState: ...

def agent(func: Callable[P, Agent]) -> Callable[P, Agent]: ...
