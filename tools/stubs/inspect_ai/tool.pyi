from typing import Any

class ToolCall:
    def __init__(self, id: str, function: str, arguments: dict[str, Any]) -> None: ...

class ToolCallError:
    def __init__(self, type: str, message: str) -> None: ...

class ToolInfo: ...

ToolChoice = str
