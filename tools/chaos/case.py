"""One faulted run: which surface, which fault, with a sandbox or not; and how it went."""

from __future__ import annotations

import json
import random
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True)
class Case:
    surface: str
    fault: str
    is_boxed: bool
    number: int
    seed: str
    uses_gemini: bool = False
    """The agent is the real Gemini CLI; otherwise a scripted program."""

    @property
    def name(self) -> str:
        how = "sandbox" if self.is_boxed else "plain"
        agent = "gemini" if self.uses_gemini else "scripted"
        return f"{self.surface}/{self.fault}/{how}/{agent}/{self.number}"

    def chance(self, purpose: str) -> random.Random:
        """A source of random numbers that depends on nothing but the seed and the case."""
        return random.Random(f"{self.seed}/{self.name}/{purpose}")


@dataclass
class Verdict:
    """What was seen of a case. ``problems`` explains each False."""

    has_struck: bool = True
    """False: the run was over before the fault could be applied."""
    ended: bool = True
    true_status: bool = True
    nothing_left: bool = True
    succeeded: bool = False
    """All of its work is done, and it said so."""
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list[str])

    @property
    def is_right(self) -> bool:
        return self.ended and self.true_status and self.nothing_left

    def late(self, problem: str) -> None:
        self.ended = False
        self.problems.append(f"not ended: {problem}")

    def false(self, problem: str) -> None:
        self.true_status = False
        self.problems.append(f"false status: {problem}")

    def left(self, problem: str) -> None:
        self.nothing_left = False
        self.problems.append(f"left: {problem}")

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, data: bytes) -> Verdict:
        return cls(**json.loads(data))
