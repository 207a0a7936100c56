"""The run folder, as a projection of the journal: for people and tools, never the truth.

Written behind the run, a few times a second at most, and never the run's loss when it
cannot be. A run that is taken up again writes it anew where it is gone.
"""

from __future__ import annotations

from types import TracebackType

from corral.engine.journal import Begun
from corral.pipelines.orders import Restart, Tell
from corral.pipelines.state import State


class Projection:
    def __init__(self, begun: Begun) -> None:
        self._begun = begun

    async def __aenter__(self) -> Projection:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass

    def see(self, state: State) -> None: ...

    def tell(self, order: Tell) -> None: ...

    def restart(self, order: Restart) -> None: ...

    async def close(self, state: State) -> None: ...
