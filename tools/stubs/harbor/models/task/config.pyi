from enum import StrEnum

from pydantic import BaseModel

class TaskOS(StrEnum):
    LINUX = "linux"
    WINDOWS = "windows"

class NetworkMode(StrEnum):
    NO_NETWORK = "no-network"
    PUBLIC = "public"
    ALLOWLIST = "allowlist"

class NetworkPolicy(BaseModel):
    network_mode: NetworkMode
    allowed_hosts: list[str]

class EnvironmentConfig(BaseModel):
    docker_image: str | None
    os: TaskOS
    workdir: str | None
