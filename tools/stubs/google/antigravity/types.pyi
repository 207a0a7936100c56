from enum import Enum
from typing import Any

class ModelType(Enum):
    TEXT = "text"

class SessionContinuationMode(Enum):
    RESUME = "resume"
    CREATE_OR_RESUME = "create_or_resume"
    CREATE_ONLY = "create_only"

class BuiltinTools:
    def __init__(self, name: str) -> None: ...

class GeminiAPIEndpoint:
    def __init__(self, *, base_url: str | None, api_key: str) -> None: ...

class ModelTarget:
    def __init__(
        self, *, name: str, types: list[ModelType], endpoint: GeminiAPIEndpoint
    ) -> None: ...

class CapabilitiesConfig:
    def __init__(
        self,
        *,
        enable_subagents: bool,
        enabled_tools: list[BuiltinTools],
        mcp_max_output_bytes: int,
    ) -> None: ...

class ModelAPIRetryConfig:
    def __init__(self, *, max_retries: int) -> None: ...

class ModelOutputRetryConfig:
    def __init__(self, *, max_retries: int) -> None: ...

class RetryConfig:
    def __init__(
        self, *, api_retry: ModelAPIRetryConfig, model_output_retry: ModelOutputRetryConfig
    ) -> None: ...

class McpStdioServer:
    def __init__(
        self,
        *,
        name: str,
        command: str,
        args: list[str],
        env: dict[str, str],
        force_all_tools_eager: bool,
    ) -> None: ...

class McpStreamableHttpServer:
    def __init__(
        self, *, name: str, url: str, headers: dict[str, str], force_all_tools_eager: bool
    ) -> None: ...

class Media: ...

def from_bytes(data: bytes, mime_type: str) -> Media: ...

class UsageMetadata:
    prompt_token_count: int | None
    cached_content_token_count: int | None
    candidates_token_count: int | None
    thoughts_token_count: int | None
    total_token_count: int | None

class Step:
    trajectory_id: str
    step_index: int
    depth: int
    source: Enum
    target: Enum
    status: Enum
    content: str
    content_delta: str
    thinking_delta: str
    error: str

class ToolCall:
    name: str | BuiltinTools
    args: dict[str, Any]
    id: str | None
    server_name: str | None

class ToolResult:
    id: str | None
    result: object
    error: str | None

class HookResult:
    def __init__(
        self, *, allow: bool, message: str, modified_args: dict[str, Any] | None
    ) -> None: ...

class AntigravityCancelledError(Exception): ...
class AntigravityConnectionError(Exception): ...
class AntigravityExecutionError(Exception): ...
