from typing import TypeVar

T = TypeVar("T")

class LimitExceededError(Exception): ...

class SandboxEnvironment:
    def as_type(self, sandbox_cls: type[T]) -> T: ...

def sandbox() -> SandboxEnvironment: ...
