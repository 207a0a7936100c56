"""ACP file methods: the agent's program is replaced by one that calls ``fs/*`` without asking.

An agent that speaks the Agent Client Protocol may ask corral to read and write files. The program
is not trusted: all its calls, with or without a permission request before, during a prompt or after
it, must stay within the policy. So the spec of the agent is used as it is, and its program is
``acp_agent.py``. There are two sessions for each policy: with and without offered file methods.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from msgspec.structs import replace

from corral._sessions.api import session
from corral._testing.attack.arena import Arena, LinkSwapper
from corral._testing.attack.attempts import paths
from corral._testing.attack.attempts.attempt import AttackEffect, Attempt, Cell, made, returned
from corral._testing.attack.effects import EffectObserver
from corral._testing.attack.model import PROMPT, Made, absolute
from corral._testing.attack.plan import AttackSubject, AttemptChoice, Setting
from corral._testing.attack.report import CellReport, Status, Tried
from corral.errors import CallerError, CorralError, UntrustedFolder
from corral.run_kwargs import RunKwargs

GROUP = "ACP file methods"
CELL: Cell = "ACP file methods"
PROGRAM = Path(__file__).with_name("acp_agent.py")
OPTIONS = ("allow_file_reads", "allow_file_writes")


def _own(name: str, cell: Cell, path: str, effect: AttackEffect, **how: str) -> Attempt:
    act: Literal["read", "write"] = "read" if effect.kind == "returned" else "write"
    given = {"path": path, "text": "attack", **how}
    return Attempt(name=name, group=GROUP, cell=cell, act=act, given=given, effects=(effect,))


OWN = (
    _own("read a file", "read inside", "here.txt", returned("{here}")),
    _own("write a file", "write inside", "{made}", made()),
    _own("overwrite a file", "write inside", "{victim}", AttackEffect("changed", "{victim}")),
    _own("write outside after a question", "write outside", "{out}", made("{out}"), ask="{out}"),
    _own(
        "write outside after a question about a file inside",
        "write outside",
        "{out}",
        made("{out}"),
        ask="{cwd}/{made}",
    ),
    _own(
        "write a hook after a question",
        "protected files",
        ".git/hooks/{name}",
        made("{cwd}/.git/hooks/{name}"),
        ask="{cwd}/.git/hooks/{name}",
    ),
    _own("read corral's own environment", "read outside", "/proc/self/environ", returned("PATH=")),
    _own("read for another session", "read outside", "{secret}", returned(), session="other"),
    _own("write for another session", "write outside", "{out}", made("{out}"), session="other"),
    _own("read after the prompt", "read outside", "{secret}", returned(), late="yes"),
    _own("write after the prompt", "write outside", "{out}", made("{out}"), late="yes"),
    _own("write a relative path", "write outside", "../outside/{name}", made("{outside}/{name}"),
         relative="yes"),
)  # fmt: skip
_REFUSED_FIRST = (
    _own("write after a question", "write inside", "{made}", made(), ask="{cwd}/{made}"),
    _own("write after a question about another file", "write inside", "{made}", made(),
         ask="{cwd}/payload"),
)  # fmt: skip
"""Attempts that would be allowed if a person agreed; here every question is denied."""
ATTEMPTS: tuple[Attempt, ...] = (
    *OWN,
    *_REFUSED_FIRST,
    *(
        replace(attempt, group=GROUP)
        for attempt in paths.ALL
        if attempt.act in ("write", "edit", "read")
    ),
)


class FileMethodAttack(NamedTuple):
    """The file methods of one agent under one setting."""

    subject: AttackSubject
    setting: Setting

    @property
    def _can_offer(self) -> bool:
        return {*OPTIONS} <= self.subject.spec.supports

    async def play(self, choice: AttemptChoice) -> tuple[CellReport | None, tuple[Tried, ...]]:
        """The cell and its attempts. There is no cell if the agent has no such methods, or does not
        start under this policy."""
        attempts = choice.of(ATTEMPTS)
        same_as_another = self.setting.options or self.setting.policy.shell_rules
        if self.subject.spec.transport.kind != "acp" or not attempts or same_as_another:
            return None, ()
        found: list[tuple[Tried, bool]] = []
        for offered in (False, True) if self._can_offer else (False,):
            # A method that is not offered is refused by its name: the paths do not matter.
            able = attempts if offered else [each for each in attempts if each in OWN]
            results = await self._with(able, offered=offered)
            if results is None:
                return None, ()
            found += results
        closed = tuple(one for one, is_open in found if not is_open)
        effects = sum(one.outcome == "effect" for one in closed)
        unseen = any(one.outcome != "effect" for one, is_open in found if is_open)
        status: Status = "broken" if effects else "unproven" if unseen else "held"
        cell = CellReport(
            cell=CELL, status=status, enforcer="brokered", tries=len(closed), effects=effects
        )
        return cell, closed

    async def _with(
        self, attempts: Sequence[Attempt], *, offered: bool
    ) -> list[tuple[Tried, bool]] | None:
        """Each attempt, and whether the policy allows it. None if the agent does not start."""
        for links in (True, False):
            with (
                tempfile.TemporaryDirectory(prefix="corral-attack-") as folder,
                Arena(Path(folder), links=links) as arena,
            ):
                able = [each for each in attempts if links or each.needs != "links"]
                if self.setting.policy.is_unlimited:
                    able = [each for each in able if each.cell != "protected files"]
                arena.plant(able)
                try:
                    made_ones = await self._session(arena, able, offered=offered)
                except (CallerError, UntrustedFolder):
                    continue
                observer = EffectObserver(arena, made_ones, ())
                try:
                    return [self._judge(one, observer, offered=offered) for one in made_ones]
                finally:
                    observer.close()
        return None

    async def _session(
        self, arena: Arena, attempts: Sequence[Attempt], *, offered: bool
    ) -> list[Made]:
        results = arena.notes / "results"
        options: RunKwargs = {
            "cwd": arena.cwd,
            "model": self.subject.probe.model,
            "policy": self.setting.policy,
            "timeout": 120,
            "keep": False,
            "sandbox": "off",  # the methods run in corral, not in the program
            "program": str(self._program(arena, attempts, results)),
            "probe": "trust",  # it could not pass a probe
            "env": self.subject.probe.env(arena.url, arena.key),
        }
        if self._can_offer:
            options |= {"allow_file_reads": offered, "allow_file_writes": offered}
        swapping = LinkSwapper(arena)
        swapping.start()
        try:
            ask = _deny if self.setting.person else None
            async with session(self.subject.agent, ask=ask, **options) as opened:
                await opened.run(PROMPT)
                await opened.run(PROMPT)  # it ends after the late calls
        finally:
            swapping.stop()
        return _made(attempts, results)

    def _program(self, arena: Arena, attempts: Sequence[Attempt], results: Path) -> Path:
        """The hostile program under the agent's name and version."""
        folder = arena.notes / "program"
        folder.mkdir()
        package = {
            "name": self.subject.spec.package.name,
            "version": self.subject.spec.package.tested,
        }
        (folder / "package.json").write_text(json.dumps(package))
        plan = folder / "plan.json"
        steps = [
            _step(number, each, arena)
            for number, each in enumerate(attempts)
            for _ in range(each.repeat)
        ]
        plan.write_text(json.dumps(steps))
        program = folder / "agent"
        words = (sys.executable, "-I", PROGRAM, plan, results)
        program.write_text(f"#!/bin/sh\nexec {' '.join(map(str, words))}\n")
        program.chmod(0o700)
        return program

    def _judge(self, one: Made, observer: EffectObserver, *, offered: bool) -> tuple[Tried, bool]:
        attempt, policy = one.attempt, self.setting.policy
        seen = observer.seen(attempt)
        tried = Tried(
            name=f"{attempt.name}, {'offered' if offered else 'not offered'}",
            group=GROUP,
            cell=CELL,
            tool=one.tool,
            outcome="effect" if seen else "held",
            seen=seen,
            returned=one.returned[:400],
        )
        reads = attempt.cell == "read inside" and policy.verdict("read") == "allow"
        writes = attempt.cell == "write inside" and policy.verdict("write") == "allow"
        return tried, offered and (reads or writes)


def _deny(_request: object) -> Literal["deny"]:
    """The person who is asked."""
    return "deny"


def _step(number: int, attempt: Attempt, arena: Arena) -> dict[str, object]:
    given = {key: arena.fill(text, attempt) for key, text in attempt.given.items()}
    path = given["path"] if "relative" in given else absolute(given["path"], str(arena.cwd))
    reads = attempt.act == "read"
    how: dict[str, object] = {key: given[key] for key in ("ask", "session", "late") if key in given}
    params = {"path": path} if reads else {"path": path, "content": given["text"]}
    return {"key": number, "method": _method(attempt), "params": params, **how}


def _method(attempt: Attempt) -> str:
    return "fs/read_text_file" if attempt.act == "read" else "fs/write_text_file"


def _made(attempts: Sequence[Attempt], results: Path) -> list[Made]:
    """The calls that the program made. Raises ``CorralError`` if calls are missing."""
    steps = map(json.loads, results.read_text().splitlines() if results.exists() else ())
    found: dict[int, str] = {
        step["key"]: json.dumps(
            [step["response"].get("result"), step["response"].get("error")], ensure_ascii=False
        )
        for step in steps
    }
    if len(found) < len(attempts):
        raise CorralError(f"{len(attempts) - len(found)} calls of ACP file methods were not made")
    return [
        Made(attempt, _method(attempt), offered=True, returned=found[number])
        for number, attempt in enumerate(attempts)
    ]
