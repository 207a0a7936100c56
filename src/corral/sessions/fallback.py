"""``on_limit="fallback:AGENT,AGENT"``: at a limit, the next agent continues the work.

The session of the next agent continues the conversation of the one before (``handover``): it gets
the prompt, what was done and what was answered so far. All agents are checked before the first one
starts. Each has its own stream of events, one after the other.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Protocol, TypeVar

from corral.errors import QuotaSpent, RateLimited
from corral.events import Error

if TYPE_CHECKING:
    from corral.prompt import Prompt
    from corral.sessions.session import Session

CONTINUE = "The agent before you reached a limit of its model. Continue its work where it ended."
_CODES = (RateLimited.code, QuotaSpent.code)


class Ended(Protocol):
    """A result, or the last event of a turn."""

    @property
    def error(self) -> Error | None: ...


T = TypeVar("T", bound=Ended | None)


async def run_with_fallback(
    session: Session,
    prompt: str | Prompt | None,
    run: Callable[[Session, str | Prompt | None], Awaitable[T]],
) -> list[T]:
    """Run the prompt in the session, and as long as a limit ends it, in the next agent. Returns
    what each of them returned; the last one counts. Raises ``CorralError`` before the first starts
    if one of the agents cannot be used."""
    for name in session.fallbacks:
        session.for_fallback(name).check()
    results = [await run(session, prompt)]
    before = session
    async with AsyncExitStack() as opened:
        for name in session.fallbacks:
            if not _is_limit(results[-1]):
                break
            following = await opened.enter_async_context(before.for_fallback(name))
            text = CONTINUE if following.sends_history else prompt
            results.append(await run(following, text))
            before = following
    return results


def _is_limit(ended: Ended | None) -> bool:
    return ended is not None and ended.error is not None and ended.error.code in _CODES
