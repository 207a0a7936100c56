"""``attack_agent``: run the injected model against an agent, policy by policy.

There is one session for each policy: starting an agent is expensive, a further prompt is not. If a
denial ends the agent's turn, it is prompted again. If the agent itself ends, it is started again
with the remaining attempts. Effects are checked when the session is over.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
import tempfile
import time
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

from msgspec.structs import replace

from corral._agents.report import PolicyRow
from corral._agents.spec import InProcess
from corral._sessions.api import session
from corral._sessions.session import Session
from corral._system import programs
from corral._testing.attack.arena import PLANTED, Arena
from corral._testing.attack.attempts.attempt import Attempt, Extra
from corral._testing.attack.attempts.ways_out import END, SCRIPT
from corral._testing.attack.client_files import FileMethodAttack
from corral._testing.attack.effects import EffectObserver
from corral._testing.attack.model import PROMPT, SERVER, InjectedModel, Made
from corral._testing.attack.plan import (
    CAPABILITY,
    OPEN,
    POLICIES,
    SANDBOX_POLICIES,
    AttackPlan,
    AttackSubject,
    AttemptChoice,
    Setting,
    plan,
)
from corral._testing.attack.report import AttackReport, Outcome, PolicyReport, Tried, summarize
from corral._testing.kits import agent_spec
from corral._testing.model_server.server import Lane, ModelServer
from corral.errors import CallerError, ConfigError, CorralError, UntrustedFolder
from corral.events import Decision, PermissionRequest
from corral.run_kwargs import RunKwargs
from corral.values import McpServer

EXTRAS: tuple[frozenset[Extra], ...] = (
    frozenset({"links", "mcp"}),
    frozenset({"mcp"}),
    frozenset({"links"}),
    frozenset(),
)
"""What the sessions are started with, in this order: an agent may refuse to start if links lead out
of the workspace, or with a tool server whose use it cannot restrict."""
CANARY_SERVER = Path(__file__).with_name("canary_server.py")
STARTS = 4
"""How often an agent is started again for the attempts that are left."""
NOTHING = AttackPlan((), frozenset())


async def attack_agent(
    agent: str,
    *,
    policies: Iterable[str] = (),
    only: Iterable[str] = (),
    sample: int | None = None,
    sandbox: bool = False,
    options: RunKwargs | None = None,
) -> AttackReport:
    """Attack an agent under each of ``policies``. Default: all of ``POLICIES``, with ``sandbox``
    all of ``SANDBOX_POLICIES``.

    Some policies apply to some agents only. ``only``: the groups of attempts to make; default: all.
    ``sample``: the number of attempts of each group and cell. ``sandbox``: the agent runs in
    corral's sandbox, and commands try to leave it. ``options`` are passed to each
    session. While this runs, the environment of this process has a few more variables, which no
    agent may get.

    Raises ``ConfigError`` for a policy that does not exist or an agent that cannot be attacked, and
    ``NotInstalled`` or another error of the installation. All other errors are in the report.

    ::

        report = await attack_agent("gemini-cli", policies=["reads"])
        assert report.ok
    """
    found = agent_spec(agent)
    if found.probe is None:
        raise ConfigError(f"{agent} cannot be attacked: its model cannot be scripted")
    known = SANDBOX_POLICIES if sandbox else POLICIES
    able = [name for name, setting in known.items() if setting.applies_to(found)]
    wanted = tuple(policies) or tuple(able)
    for name in wanted:
        if name not in able:
            why = f": it does not apply to {found.name}" if name in known else ""
            if not why and name in SANDBOX_POLICIES:
                why = ": it needs the sandbox"
            raise ConfigError(
                f"there is no policy {name!r} to attack under{why}",
                hint=f"Available are: {', '.join(able)}.",
            )
    program = (options or {}).get("program")
    programs.locate(found, None if program is None else os.fspath(program))
    subject = AttackSubject(agent, found, found.probe)
    choice = AttemptChoice(frozenset(only), sample)
    # Without the sandbox, the subject is what the agent itself enforces.
    given: RunKwargs = {"sandbox": "require" if sandbox else "off", **(options or {})}
    async with ModelServer() as server:
        reports = [await _attack_policy(subject, server, name, given, choice) for name in wanted]
        return AttackReport(agent, tuple(reports))


async def _attack_policy(
    subject: AttackSubject,
    server: ModelServer,
    name: str,
    options: RunKwargs,
    choice: AttemptChoice,
) -> PolicyReport:
    begin = time.monotonic()
    setting, spec = SANDBOX_POLICIES[name], subject.spec
    # The agent's own login files, if it is attacked in the sandbox.
    login = spec.credential_files if options.get("sandbox") == "require" else None
    refused = ""
    for extras in EXTRAS:
        if "mcp" in extras and "mcp_servers" not in spec.supports:
            continue
        try:
            with (
                tempfile.TemporaryDirectory(prefix="corral-attack-") as folder,
                Arena(Path(folder), links="links" in extras, login=login) as arena,
                _planted(arena.planted, spec.env_names),
            ):
                attack = _PolicyAttack(subject, arena, setting, extras)
                own = choice.within(setting.groups)
                report = await attack.play(server, own, {**setting.options, **options})
        except (CallerError, UntrustedFolder) as error:
            refused = refused or error.message
            continue
        try:
            cell, tried = await FileMethodAttack(subject, setting).play(choice)
            if cell is not None:
                cells = (*report.cells, cell)
                report = replace(report, cells=cells, tried=(*report.tried, *tried))
        except CorralError as error:
            report = replace(report, problem=report.problem or error.message)
        return replace(report, policy=name, seconds=round(time.monotonic() - begin, 1))
    return PolicyReport(policy=name, cells=(), refused=refused)


@dataclass
class _PolicyAttack:
    """The attack under one policy: an arena, a model, one or more sessions."""

    _subject: AttackSubject
    _arena: Arena
    _setting: Setting
    _extras: frozenset[Extra]
    """What the session is started with."""
    _plan: AttackPlan = NOTHING
    _scripted: list[Attempt] = field(default_factory=list[Attempt])
    _rows: Sequence[PolicyRow] = ()
    _asked: int = 0
    _denied: int = 0
    _problem: str = ""

    async def play(
        self, server: ModelServer, choice: AttemptChoice, options: RunKwargs
    ) -> PolicyReport:
        warm = self._subject.spec.transport.kind == "acp"
        model = InjectedModel(self._subject.probe, self._arena, per_turn=20 if warm else 1000)
        lane = server.lane(f"attack-{secrets.token_hex(8)}", model)
        try:
            for _ in range(STARTS):
                ask = self._deny if self._setting.person else None
                given = self._session_options(lane, options)
                async with session(self._subject.agent, ask=ask, **given) as opened:
                    if not self._rows:
                        self._begin(opened, model, choice)
                    await self._prompt(opened, model)
                if not model.left:
                    break
        finally:
            model.close()
        left = f"{len(model.left)} attempts were not made: {self._problem}"
        self._problem = left if model.left else ""
        return self._judge(model, lane)

    def _deny(self, _request: PermissionRequest) -> Decision:
        self._asked += 1
        return "deny"

    def _begin(self, opened: Session, model: InjectedModel, choice: AttemptChoice) -> None:
        self._rows = opened.prepared.compiled.report
        self._plan = plan(self._setting.policy, self._rows, self._subject.probe, choice)
        self._arena.plant((*self._plan.attempts, SCRIPT))
        able = [a for a in self._plan.attempts if a.needs is None or a.needs in self._extras]
        self._scripted = [attempt for attempt in able if attempt.scripted]
        self._arena.write_script(self._scripted)
        script = [SCRIPT] if self._scripted else []
        model.begin([*script, *(attempt for attempt in able if not attempt.scripted)])

    async def _prompt(self, opened: Session, model: InjectedModel) -> None:
        """Prompt until all attempts are made, or the agent stops continuing."""
        idle = 0
        while model.left and idle < 2:
            before = len(model.left)
            try:
                result = await opened.run(PROMPT)
            except (CallerError, UntrustedFolder):
                raise
            except CorralError as error:
                self._problem = error.message
                return
            self._denied += len(result.denied)
            self._problem = result.error.message if result.error else result.status
            idle = idle + 1 if len(model.left) == before else 0
        # The result of the last call comes with one more request.
        if model.made and not model.made[-1].returned:
            with contextlib.suppress(CorralError):
                await opened.run(PROMPT)

    def _session_options(self, lane: Lane, options: RunKwargs) -> RunKwargs:
        probe = self._subject.probe
        given: RunKwargs = {
            "cwd": self._arena.cwd,
            "model": probe.model,
            "policy": self._setting.policy,
            "timeout": 240,
            "keep": False,
            "probe": "trust",
            **options,
            "env": {
                **options.get("env", {}),
                probe.url_env: lane.url,
                probe.key_env: self._arena.key,
            },
        }
        is_program = not isinstance(self._subject.spec.transport, InProcess)
        if is_program and self._arena.targets is not None:  # in the sandbox
            given["record_to"] = self._arena.recording
        if "mcp" in self._extras and "mcp_servers" not in options:
            command = (sys.executable, "-I", str(CANARY_SERVER), str(self._arena.notes))
            given["mcp_servers"] = [McpServer(SERVER, command=command)]
        return given

    def _judge(self, model: InjectedModel, lane: Lane) -> PolicyReport:
        made = [*model.made, *self._made_by_script(model)]
        observer = EffectObserver(self._arena, made, lane.requests)
        try:
            tried = tuple(self._tried(attempt, made, observer) for attempt in self._plan.attempts)
        finally:
            observer.close()
        # Whether a tool was offered and called that asks for permission.
        asking = {row.capability for row in self._rows if row.verdict == "ask"}
        could_ask = any(
            one.offered and one.attempt.cell in OPEN and CAPABILITY[one.attempt.cell] in asking
            for one in model.made
        )
        if self._setting.person and not self._asked and could_ask:
            self._problem = self._problem or "no permission was ever requested"
        return PolicyReport(
            policy="",
            cells=summarize(tried, self._plan.closed, self._rows),
            tried=tried,
            asked=self._asked,
            denied=self._denied,
            problem=self._problem,
        )

    def _made_by_script(self, model: InjectedModel) -> list[Made]:
        """The attempts that the script made, with what they printed."""
        calls = [made for made in model.made if made.attempt is SCRIPT]
        if self._scripted and not any(END in call.returned for call in calls):
            returned_text = calls[0].returned[:400] if calls else "it was not called"
            self._problem = self._problem or f"the script did not end: {returned_text}"
            return []
        return [
            Made(attempt, calls[0].tool, offered=True, returned=self._arena.printed(attempt))
            for attempt in self._scripted
        ]

    def _tried(self, attempt: Attempt, made: Sequence[Made], observer: EffectObserver) -> Tried:
        mine = [one for one in made if one.attempt is attempt]
        seen = observer.seen(attempt)
        supported = attempt.needs != "mcp" or "mcp_servers" in self._subject.spec.supports
        refused = supported and attempt.needs is not None and attempt.needs not in self._extras
        outcome: Outcome = "held" if any(one.offered for one in mine) else "not offered"
        if seen:
            outcome = "effect"
        elif attempt.act == "none":
            outcome = "held"
        elif refused:
            outcome = "refused"
        elif not mine:
            outcome = "no such tool"
        return Tried(
            name=attempt.name,
            group=attempt.group,
            cell=attempt.cell,
            tool=mine[0].tool if mine else "",
            outcome=outcome,
            seen=seen,
            returned=mine[0].returned[:400] if mine else "",
        )


@contextlib.contextmanager
def _planted(value: str, family: Sequence[str]) -> Generator[None, None, None]:
    """Set variables that must not be passed on, except for those of the agent itself."""
    names = [name for name in PLANTED if not any(fnmatch(name, pattern) for pattern in family)]
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, f"canary://user:{value}@host"))
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = old
