from collections.abc import Callable
from typing import Any

from inspect_ai.tool import ToolCall, ToolCallError, ToolChoice, ToolInfo

class ContentText:
    def __init__(self, *, text: str) -> None: ...

class ContentReasoning:
    def __init__(self, *, reasoning: str) -> None: ...

Content = ContentText | ContentReasoning

class ChatMessageBase:
    content: str | list[Content]
    @property
    def text(self) -> str: ...

class ChatMessageSystem(ChatMessageBase): ...
class ChatMessageUser(ChatMessageBase): ...

class ChatMessageAssistant(ChatMessageBase):
    def __init__(
        self,
        *,
        content: str | list[Content],
        tool_calls: list[ToolCall] | None = None,
        model: str | None = None,
        source: str | None = None,
    ) -> None: ...

class ChatMessageTool(ChatMessageBase):
    def __init__(
        self,
        *,
        content: str,
        tool_call_id: str,
        function: str,
        error: ToolCallError | None,
    ) -> None: ...

ChatMessage = ChatMessageSystem | ChatMessageUser | ChatMessageAssistant | ChatMessageTool

class ModelUsage:
    def __init__(
        self,
        *,
        input_tokens: int = 0,
        output_tokens: int = 0,
        total_tokens: int = 0,
        input_tokens_cache_write: int | None = None,
        input_tokens_cache_read: int | None = None,
        reasoning_tokens: int | None = None,
        total_cost: float | None = None,
    ) -> None: ...

class ChatCompletionChoice:
    def __init__(self, *, message: ChatMessageAssistant, stop_reason: str = "stop") -> None: ...

class ModelOutput:
    def __init__(
        self,
        *,
        model: str,
        choices: list[ChatCompletionChoice],
        usage: ModelUsage | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> None: ...
    @property
    def message(self) -> ChatMessageAssistant: ...

class GenerateConfig: ...

class ModelAPI:
    def __init__(self, model_name: str, **more: Any) -> None: ...
    async def generate(
        self,
        input: list[ChatMessage],
        tools: list[ToolInfo],
        tool_choice: ToolChoice,
        config: GenerateConfig,
    ) -> ModelOutput: ...

class Model:
    async def generate(self, input: list[ChatMessage]) -> ModelOutput: ...

def get_model(model: str, *, memoize: bool = True, **model_args: Any) -> Model: ...
def modelapi(
    name: str,
) -> Callable[[Callable[[], type[ModelAPI]]], Callable[[], type[ModelAPI]]]: ...
