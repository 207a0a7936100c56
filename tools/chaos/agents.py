"""The agents of the faulted runs: scripted programs, and the real Gemini CLI."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from support import scripted_acp

PROGRAMS = Path(__file__).parents[2] / "tests" / "programs"
STREAM_PROGRAM = PROGRAMS / "scripted_gemini.py"
KEY = "scripted-key-0123456789"
BYTES_OF_NOISE = 80
"""The length of each further line of text that a scripted agent sends."""


@dataclass(frozen=True)
class ChaosAgent:
    name: str
    """What ``--agent`` gets."""
    program: str
    """What ``--program`` gets; empty: the name is the command."""
    sign: str
    """Is in the command line of its processes."""
    kind: str
    """``stream``, ``acp`` or ``gemini``."""

    def prompt(self, work: str, chance: random.Random, *, noise: int = 0) -> str:
        """Orders to write the file ``work`` and to answer. Sometimes the agent also leaves a
        child or a daemon behind."""
        if self.kind == "gemini":
            return f"Please write {work} now"
        pause = f"sleep {chance.uniform(0, 0.15):.3f}"
        more = chance.choice(["", "", "child", "daemon"])
        many = f"many {noise}" if noise else ""
        if self.kind == "stream":
            orders = ["init", "text begin", more, pause, f"write {work}", many, "text end", pause]
            return "\n".join([*filter(None, orders), "result"])
        orders = ["text begin", more, pause, f"touch {work}", many, "text end", pause]
        return "\n".join(filter(None, orders))

    @property
    def last_word(self) -> str:
        """How its answer ends."""
        return "done" if self.kind == "gemini" else "end"

    @property
    def flags(self) -> list[str]:
        program = ["--program", self.program] if self.program else []
        model = ["--model", "gemini-2.5-flash"] if self.kind == "gemini" else []
        return ["--agent", self.name, *program, *model]


STREAM = ChaosAgent("gemini-cli", str(STREAM_PROGRAM), STREAM_PROGRAM.name, "stream")
ACP = ChaosAgent(
    scripted_acp.agent(),
    "",
    scripted_acp.PROGRAM.name,
    "acp",
)


def real_gemini(name: str, program: str) -> ChaosAgent:
    return ChaosAgent(name, program, "gemini", "gemini")
