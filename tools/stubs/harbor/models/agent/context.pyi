from pydantic import BaseModel

class ModelUsage(BaseModel):
    n_input_tokens: int = 0
    n_cache_tokens: int = 0
    n_output_tokens: int = 0
    cost_usd: float | None = None

class AgentContext(BaseModel):
    n_input_tokens: int | None
    n_cache_tokens: int | None
    n_output_tokens: int | None
    cost_usd: float | None
    model_usage: dict[str, ModelUsage] | None
    metadata: dict[str, object] | None
