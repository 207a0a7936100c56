"""Workflow files that an agent or a model wrote: their mark, and what it allows.

Such a file has a mark: a line, usually the first, with its bounds and the agents that it may use::

    # corral: drafted steps=30 runs=12 cost=5 agents=gemini-cli,openai:gpt-5

A file with a mark is checked before it is loaded (``syntax_rules``), and its program runs in the
sandbox (``sandboxed_program``). The text of a run is stored with the mark, so this holds on every
machine that continues it. A person who has read the file and removes the line makes it a file like
any other.
"""

from __future__ import annotations

import re

import msgspec

from corral.errors import ConfigError

_BEGIN = "# corral: drafted"
_MARK = re.compile(
    rf"{_BEGIN} steps=(\d{{1,6}}) runs=(\d{{1,6}}) cost=(\d{{1,6}}(?:\.\d{{1,6}})?)"
    r" agents=([^\s,]+(?:,[^\s,]+)*)",
    re.ASCII,
)
NOTE = """\
# It was written by a model. It runs in the sandbox, within these bounds. If you have read it and
# want to run it as your own code, remove the line above.
"""


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """What a run of a drafted workflow may do."""

    agents: tuple[str, ...]
    """Agents, and models as ``vendor:name``."""
    steps: int = 50
    runs: int = 20
    """Steps that run an agent or a model."""
    cost: float = 5.0
    """In USD."""

    def mark(self) -> str:
        """The first line of a file with these bounds. Raises ``ConfigError``."""
        for each in self.agents:
            if re.search(r"[\s,]", each):
                raise ConfigError(f"a drafted workflow cannot use {each!r}: it needs one word")
        line = (
            f"{_BEGIN} steps={self.steps} runs={self.runs} cost={self.cost:g}"
            f" agents={','.join(self.agents)}"
        )
        if not self.agents or _MARK.fullmatch(line) is None:
            raise ConfigError(
                "the bounds of a drafted workflow are not valid",
                hint="steps, runs and cost are numbers from 0 to 999999, and it needs an agent.",
            )
        return line


def find_bounds(text: str) -> Bounds | None:
    """The bounds of a drafted file; None: it is not drafted. Raises ``ConfigError`` if the mark
    cannot be read."""
    marks = [line.rstrip() for line in text.splitlines() if line.startswith(_BEGIN)]
    if not marks:
        return None
    found = _MARK.fullmatch(marks[0])
    if found is None or len(marks) > 1:
        raise ConfigError(
            f"this is not the mark of a drafted workflow: {marks[-1]!r}",
            hint=f"Write {_BEGIN} steps=30 runs=12 cost=5 agents=NAME,NAME, or remove the line, if"
            " the file shall run as your own code.",
        )
    steps, runs, cost, agents = found.groups()
    return Bounds(
        agents=tuple(agents.split(",")), steps=int(steps), runs=int(runs), cost=float(cost)
    )


def with_mark(body: str, bounds: Bounds) -> str:
    """The text of a drafted file."""
    note = NOTE.splitlines()
    lines = [line for line in body.splitlines() if not line.startswith(_BEGIN) and line not in note]
    return f"{bounds.mark()}\n{NOTE}\n" + "\n".join(lines).strip("\n") + "\n"
