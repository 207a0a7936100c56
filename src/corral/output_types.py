"""The type variables of typed output: ``Result[T]``, ``Prompt[T]``, ``Generation[T]``, ...

Without a parameter, ``Result`` is ``Result[Any]``. Only type checkers know this default: they have
``typing_extensions`` themselves, so that it is not needed at run time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    T = TypeVar("T")
    T_co = TypeVar("T_co", covariant=True, default=Any)
else:
    from typing import TypeVar

    T = TypeVar("T")
    T_co = TypeVar("T_co", covariant=True)

__all__ = ["T", "T_co"]
