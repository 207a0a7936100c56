"""What a probe found out about a program: the checks that it passed and failed.

A version of an agent's program that was not tested with corral is run once with a scripted model
before its first real call. The verdict belongs to the files of that program. A check that fails
has one of these consequences, by its ``row``:

- no row: the program is not used;
- a capability of the policy, or ``shell rules``: nothing that the program itself enforces of it
  counts, so a policy that needs it is refused, or left to the sandbox;
- ``default model``: a run must name its model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec

from corral.policy import Capability

PLAN = 1
"""The number of the probe. A change of what is checked raises it: verdicts of another number do
not count."""

ProbeRow: TypeAlias = Capability | Literal["shell rules", "default model", ""]


class ProbeCheck(msgspec.Struct, frozen=True):
    """One check of a probe."""

    check: str
    """What must be true."""
    ok: bool
    seen: str
    row: ProbeRow = ""
    """What does not count if it failed; empty: the program is not used."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a probe."""

    agent: str
    version: str | None
    program: str
    digest: str
    """Of the program's files."""
    date: float
    """Seconds since the epoch."""
    seconds: float
    """How long it took."""
    checks: tuple[ProbeCheck, ...]
    plan: int = PLAN
    corral: str = ""
    """The version of corral that made it."""

    @property
    def failed(self) -> tuple[ProbeCheck, ...]:
        return tuple(check for check in self.checks if not check.ok)

    @property
    def broken(self) -> tuple[ProbeCheck, ...]:
        """The failed checks without which the program is not used."""
        return tuple(check for check in self.failed if not check.row)

    @property
    def failed_rows(self) -> Mapping[str, str]:
        """The rows that do not count, each with what was seen."""
        return {check.row: check.seen for check in reversed(self.failed) if check.row}

    @property
    def is_good(self) -> bool:
        return bool(self.checks) and not self.failed
