"""Short tracebacks: an error shows the line of the caller, not the lines inside corral.

The message and the hint say what happened; the frames inside corral, and the errors that led to it,
only hide that. Public functions remove them with ``short_traceback``. With the logger ``corral`` at
level ``DEBUG`` the complete traceback is logged first.
"""

from __future__ import annotations

from contextlib import ContextDecorator
from types import TracebackType

from corral.errors import CorralError, lacks_descriptors, no_descriptor_error


class _ShortTraceback(ContextDecorator):
    """A block whose ``CorralError`` shows no frame of the block, nor of what it called.

    Python adds a frame to a traceback when an error leaves it, but not when a ``with`` statement
    raises it again. So the frame of the block itself is not shown either.

    Without a free descriptor Python itself raises, wherever a file is opened or a module is loaded.
    That becomes a ``ProcessFailed``.
    """

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, CorralError):
            import logging

            log = logging.getLogger("corral")
            if error.__traceback__ is not None and log.isEnabledFor(logging.DEBUG):
                log.debug("%s was raised", type(error).__name__, exc_info=error)
            if error.__cause__ is not None:
                error.__context__ = error.__cause__
            error.__cause__ = None  # this also hides the context, which stays for debuggers
            error.__traceback__ = None
        elif error is not None and lacks_descriptors(error):
            raise no_descriptor_error(error) from error


short_traceback = _ShortTraceback()
"""``with short_traceback:`` in a public function, or ``@short_traceback`` above it."""
