"""What each turn of a transcript has used, from its events."""

from __future__ import annotations

from corral.events import Done, Event, ModelCall
from corral.sessions.store import Meta
from corral.sessions.usage_totals import TurnUsage
from corral.values import Cost, Usage

SEVERAL = "several models"


class TurnUsages:
    """Collects the usage of a transcript, event by event."""

    def __init__(self, meta: Meta) -> None:
        self._meta = meta
        self._calls: list[ModelCall] = []
        self.turns: list[TurnUsage] = []
        self._count = 0

    def add(self, event: Event) -> None:
        if isinstance(event, ModelCall):
            self._calls.append(event)
        elif isinstance(event, Done):
            self._end_turn(event)

    def finish(self) -> list[TurnUsage]:
        """The turns; also one that has not ended, if its model calls are known."""
        if self._calls:
            self._count += 1
            self._append_calls(self._calls[0].ts, self._calls, is_partial=True)
            self._calls = []
        return self.turns

    def _end_turn(self, done: Done) -> None:
        started = done.ts - done.duration_ms / 1000
        calls, self._calls = self._calls, []
        is_cut = done.usage.coverage in ("partial", "estimated")
        is_partial = is_cut or any(call.partial for call in calls)
        count = len(calls) if done.usage_source == "metered" else None
        self._count += 1
        shares = _by_model(calls) if count else done.usage_by_model
        if len(shares) <= 1:
            model = next(iter(shares), done.model or self._meta.model or "")
            self._append(started, model, done.usage, done.cost, count, is_partial=is_partial)
        elif count:
            self._append_calls(started, calls, is_partial=is_partial)
        else:
            for model, share in done.usage_by_model.items():
                self._append(started, model, share, Cost(), None, is_partial=is_partial)
            # The agent reports one cost for all models.
            self._append(started, SEVERAL, Usage(), done.cost, None, is_partial=is_partial)

    def _append_calls(self, started: float, calls: list[ModelCall], *, is_partial: bool) -> None:
        for model, own in _by_model(calls).items():
            billed = [call for call in own if not _is_free(call)]
            known = [call.cost for call in billed if call.cost.usd is not None]
            cost = sum(known[1:], start=known[0]) if known else Cost()
            usage = sum((call.usage for call in own), start=Usage())
            cut = is_partial or len(known) < len(billed)
            self._append(started, model, usage, cost, len(own), is_partial=cut)

    def _append(
        self,
        started: float,
        model: str,
        usage: Usage,
        cost: Cost,
        calls: int | None,
        *,
        is_partial: bool,
    ) -> None:
        self.turns.append(
            TurnUsage(
                session=self._meta.id,
                turn=self._count,
                agent=self._meta.agent,
                cwd=self._meta.cwd,
                started=started,
                model=model,
                usage=usage,
                cost=cost.usd,
                source=cost.source,
                calls=calls,
                is_partial=is_partial,
            )
        )


def _by_model(calls: list[ModelCall]) -> dict[str, list[ModelCall]]:
    found: dict[str, list[ModelCall]] = {}
    for call in calls:
        found.setdefault(call.model, []).append(call)
    return found


def _is_free(call: ModelCall) -> bool:
    """Whether the vendor refused it, and reported no usage."""
    return call.status is not None and call.status >= 400 and call.usage.total is None
