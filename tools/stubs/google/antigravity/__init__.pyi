"""What is used of google-antigravity 0.1.22, which is installed beside its program only."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Self

from google.antigravity import types as types
from google.antigravity.conversation import Conversation
from google.antigravity.hooks import hooks

class LocalAgentConfig:
    def __init__(
        self,
        *,
        models: list[types.ModelTarget],
        api_key: str,
        workspaces: list[str],
        hooks: Sequence[hooks.Hook],
        policies: list[object],
        capabilities: types.CapabilitiesConfig,
        tools: Sequence[Callable[[str], Awaitable[str]]],
        mcp_servers: list[types.McpStdioServer | types.McpStreamableHttpServer],
        conversation_id: str,
        session_continuation_mode: types.SessionContinuationMode,
        save_dir: str,
        app_data_dir: str,
        retry_config: types.RetryConfig,
    ) -> None: ...

class Agent:
    def __init__(self, config: LocalAgentConfig) -> None: ...
    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, exc_type: None, exc_val: None, exc_tb: None) -> bool | None: ...
    @property
    def conversation(self) -> Conversation: ...
