from pydantic import BaseModel

class AgentCapabilities(BaseModel):
    atif: bool = False
    native_web_tools: bool = False
    reasoning_effort: bool = False
