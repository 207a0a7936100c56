from pydantic import BaseModel

class AgentOptions(BaseModel):
    base_url: str | None = None
    disable_web_search: bool = False
    reasoning_effort: str | None = None
