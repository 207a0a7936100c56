from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from harbor.agents.capabilities import AgentCapabilities
from harbor.agents.options import AgentOptions
from harbor.environments.base import BaseEnvironment
from harbor.models.agent.context import AgentContext
from harbor.models.trial.result import AgentInfo

class BaseAgent:
    capabilities: ClassVar[AgentCapabilities]
    options_model: ClassVar[type[AgentOptions] | None]
    logs_dir: Path
    model_name: str | None
    skip_model_parsing: bool
    options: Any

    @staticmethod
    def name() -> str: ...
    def version(self) -> str | None: ...
    def to_agent_info(self) -> AgentInfo: ...
    @property
    def extra_env(self) -> dict[str, str]: ...
    @classmethod
    def parse_options(
        cls, kwargs: dict[str, object] | None = None, env: Mapping[str, str] | None = None
    ) -> AgentOptions | None: ...
    @classmethod
    def preflight(
        cls, kwargs: dict[str, object] | None = None, env: Mapping[str, str] | None = None
    ) -> None: ...
    async def setup(self, environment: BaseEnvironment) -> None: ...
    async def run(
        self, instruction: str, environment: BaseEnvironment, context: AgentContext
    ) -> None: ...
