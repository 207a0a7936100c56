"""The real agents that the tests run, each connected to a scripted model.

``RECORDS`` has one record per agent and interface: where it differs from the others, as the tests
see it. How it is installed, its mark, its model API and its tool calls come from its entry in
``corral._agents.registry``. ``for_agents`` runs a test once for each agent, with the agent as the
fixture ``agent`` and its name as the id::

    @for_agents(lambda record: record.asks)
    async def test_the_caller_decides(agent: RealAgent) -> None: ...
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Literal, Unpack

import pytest
from support.installed_agents import ON_DEMAND, installed, mark_of
from support.model_scripts import ModelClient, Script
from support.processes import FifoSignal, processes_matching
from support.stream_checks import check_stream

import corral
from corral._agents import registry
from corral._agents.spec import Act, AgentSpec, Probe
from corral._sessions.permissions import Asker
from corral._sessions.tools.hooks import Before
from corral.events import Event
from corral.result import Result, result_from_events
from corral.run_kwargs import RunKwargs
from corral.testing import Call, ModelServer, Request, Turn
from corral.values import Json, Usage

KEY = "canary-key-0123456789abcdef"
USAGE = {"input": 120, "cached": 20, "output": 7, "thoughts": 3}
"""What the scripted model reports for a turn in the tests of usage; see ``AgentRecord.usage``."""


@dataclass(frozen=True, kw_only=True)
class AgentRecord:
    """What the tests need to know about one agent and interface, beside its registry entry."""

    name: str
    url_path: str = "/v1"
    """What its variable for the base URL ends with."""
    usage: Usage | None
    """The usage that it reports for ``USAGE``; ``None``: it reports no usage."""
    thinks: bool = True
    """It reports the thoughts of the model."""
    streams: bool = True
    """It reports text in the pieces in which the model sends it."""
    writes_outside: bool = True
    """Its tools write outside the workspace where the policy allows it."""
    own_prompt: str = ""
    """A phrase from the system prompt of the agent."""
    effort_field: str = ""
    """The field of the model request that has the reasoning effort."""
    adds_after_prompt: str = ""
    """How the text begins that it adds after each prompt."""
    needs_model: bool = False
    """It has no default model."""
    reads_documents: bool = False
    """It always sends ``AGENTS.md`` to the model."""
    ends_turn_at_denial: bool = False
    """It ends its turn when a call is denied. The next prompt of the session is served."""
    reports_denied_turn: bool = False
    """A turn that it ended when a call was denied has the status ``denied``."""
    asks_always: bool = False
    """It sends permission requests under every policy; the policy answers them."""
    calls_per_turn: int = 1
    """How many calls the scripted model may make in one message, so that all of them are served."""
    reports_hidden_calls: bool = True
    """It reports the call of a tool that it does not offer."""
    asks_about_shell: bool = True
    """It sends a permission request for shell commands."""
    asks_strictly: bool = True
    """It asks about every command; an agent that does not needs ``strict=False``."""
    has_rules: bool = True
    """It can enforce shell rules."""
    always_offers: tuple[str, ...] = ()
    """Tools that it offers under every policy; the policy applies to what they do."""
    unreported_tools: tuple[str, ...] = ()
    """Tools of which it never reports a denied call."""
    mcp_model: str | None = None
    """A model for which it declares the tools of MCP servers at once, with fewer tools."""
    side_turns: tuple[Turn, ...] = ()
    """Answers to the requests that it makes beside the conversation."""
    options: RunKwargs = field(default_factory=RunKwargs)
    """Options that all its runs need, beside its model."""

    @property
    def spec(self) -> AgentSpec:
        return registry.find(self.name)

    @property
    def probe(self) -> Probe:
        found = self.spec.probe
        assert found is not None, f"{self.name} has no probe"
        return found

    @property
    def mark(self) -> str:
        return mark_of(self.name)

    @property
    def persistent(self) -> bool:
        """One process serves all prompts of a session."""
        return self.spec.transport.kind == "acp"

    @property
    def asks(self) -> bool:
        return self.spec.asks

    def supports(self, option: str) -> bool:
        return option in self.spec.supports

    def has_tool(self, act: Act) -> bool:
        return bool(self.probe.forms.get(act))


def _usage(
    cache_write: int | None = 0,
    coverage: Literal["complete", "partial"] = "complete",
    reasoning: int | None = 3,
) -> Usage:
    return Usage(
        input=120,
        output=10,
        reasoning=reasoning,
        cache_read=20,
        cache_write=cache_write,
        coverage=coverage,
    )


RECORDS: Mapping[str, AgentRecord] = {
    record.name: record
    for record in (
        AgentRecord(
            name="gemini-cli",
            url_path="",
            usage=_usage(None),
            thinks=False,
            own_prompt="# Core Mandates",
            calls_per_turn=100,
            writes_outside=False,
        ),
        AgentRecord(
            name="gemini-acp",
            url_path="",
            usage=Usage(input=120, output=7, coverage="partial"),
            own_prompt="# Core Mandates",
            calls_per_turn=100,
            writes_outside=False,
        ),
        AgentRecord(
            name="claude-cli",
            url_path="",
            usage=_usage(),
            own_prompt="software engineering",
            effort_field="output_config",
            always_offers=("Agent",),
            calls_per_turn=12,
        ),
        AgentRecord(
            name="claude-acp",
            url_path="",
            usage=_usage(reasoning=None),
            own_prompt="software engineering",
            always_offers=("Agent",),
            calls_per_turn=12,
            # It asks the model for a title of each session, and no option prevents it.
            side_turns=(
                Turn(
                    text='{"title": "x"}',
                    match="dominant language of the session",
                    repeat="forever",
                ),
            ),
        ),
        AgentRecord(
            name="codex-cli",
            usage=_usage(),
            streams=False,
            own_prompt="You are Codex",
            effort_field="reasoning",
            has_rules=False,
            always_offers=("apply_patch",),
            unreported_tools=("spawn_agent",),
            mcp_model="scripted",
        ),
        AgentRecord(
            name="codex-acp",
            usage=_usage(),
            own_prompt="You are Codex",
            always_offers=("apply_patch",),
            ends_turn_at_denial=True,
            reports_denied_turn=True,
            reports_hidden_calls=False,
            asks_about_shell=False,
            has_rules=False,
        ),
        AgentRecord(name="opencode-acp", usage=_usage(None, "partial"), asks_strictly=False),
        AgentRecord(name="opencode-cli", usage=_usage(), streams=False, calls_per_turn=12),
        AgentRecord(
            name="copilot-cli",
            usage=_usage(),
        ),
        AgentRecord(
            name="copilot-acp",
            usage=_usage(),
            reads_documents=True,
            ends_turn_at_denial=True,
            reports_hidden_calls=False,
            asks_strictly=False,
        ),
        AgentRecord(
            name="qwen-cli",
            usage=_usage(None, reasoning=None),
            effort_field="reasoning",
            asks_always=True,
        ),
        AgentRecord(
            name="qwen-acp",
            usage=_usage(None),
            effort_field="reasoning",
            ends_turn_at_denial=True,
            reports_denied_turn=True,
            asks_always=True,
        ),
        AgentRecord(
            name="pi-cli",
            usage=_usage(reasoning=None),
            effort_field="reasoning_effort",
            has_rules=False,
        ),
        AgentRecord(
            name="cline-acp",
            usage=None,
            ends_turn_at_denial=True,
            asks_always=True,
            reports_hidden_calls=False,
        ),
        AgentRecord(
            name="goose-acp",
            usage=Usage(input=120, output=10, coverage="partial"),
            own_prompt="created by AAIF",
            adds_after_prompt="\n<turn-context>",
            needs_model=True,
            asks_always=True,
            reports_hidden_calls=False,
        ),
        AgentRecord(
            name="antigravity-acp",
            url_path="",
            usage=_usage(None),
            own_prompt="Antigravity",
            adds_after_prompt="\n</USER_REQUEST>",
            asks_always=True,
            reports_hidden_calls=False,
        ),
    )
}
EVERY_DAY = frozenset(name for name, record in RECORDS.items() if record.mark not in ON_DEMAND)
"""The agents that ``make test`` installs."""
CHEAP = frozenset({"codex-cli"})
"""A run of it costs less than a CPU second: it runs every test in ``make test``."""


def agent_cases(
    where: Callable[[AgentRecord], bool], *, spine: Collection[str] = ()
) -> list[object]:
    """A parameter for each agent with ``where``. Those in ``spine`` and the cheap ones are run by
    ``make test``, the others are ``deep``."""
    cases: list[object] = []
    for name, record in RECORDS.items():
        if where(record):
            marks = [getattr(pytest.mark, record.mark)]
            if name in spine:
                marks.append(pytest.mark.spine)
            elif name not in CHEAP:
                marks.append(pytest.mark.deep)
            cases.append(pytest.param(name, id=name, marks=marks))
    assert cases, "no agent is selected"
    assert all(where(RECORDS[name]) for name in spine), spine
    return cases


def for_agents(
    where: Callable[[AgentRecord], bool] | str = lambda _record: True,
    *more: str,
    spine: Collection[str] = (),
) -> pytest.MarkDecorator:
    """Run the test for each agent with ``where``, or for the named agents."""
    if isinstance(where, str):
        names = (where, *more)
        assert all(name in RECORDS for name in names), names
        cases = agent_cases(lambda record: record.name in names, spine=spine)
    else:
        cases = agent_cases(where, spine=spine)
    return pytest.mark.parametrize("agent", cases, indirect=True)


class RealAgent(ModelClient):
    """An installed agent, connected to a scripted model: runs and sessions, and tool calls for the
    script. A path in a tool call is relative to the workspace where the agent accepts that."""

    def __init__(
        self,
        name: str,
        server: ModelServer,
        workspace: Path,
        test_name: str,
        env: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(server, test_name)
        self.record = RECORDS[name]
        self.name = name
        self.program = installed(name)
        self.workspace = workspace
        self._env = dict(env or {})

    @property
    def requests(self) -> list[Request]:
        """The requests of the last conversation; those beside it are left out."""
        side = [turn.match or "" for turn in self.record.side_turns]
        return [
            request
            for request in self.lane.requests
            if not any(text in request.last_text for text in side)
        ]

    @property
    def turns(self) -> list[Request]:
        """The requests that offer tools: some agents make others, for a title or a summary."""
        return [request for request in self.requests if request.tools and not request.aside]

    def env(self, url: str) -> dict[str, str]:
        """The variables that connect the agent to a model at this URL."""
        probe = self.record.probe
        return {probe.key_env: KEY, probe.url_env: f"{url}{self.record.url_path}", **self._env}

    def options(self, script: Script, **options: Unpack[RunKwargs]) -> RunKwargs:
        """The options that connect a run to this script."""
        lane = self.add_lane(_with_side_turns(script, self.record.side_turns))
        usual: RunKwargs = {
            "cwd": self.workspace,
            "program": self.program,
            "model": self.record.probe.model,
            "timeout": 150,
        }
        if self.record.supports("retries"):
            usual["retries"] = 0
        env = {**self.env(lane.url), **options.get("env", {})}
        return {**usual, **self.record.options, **options, "env": env}

    def session(
        self,
        script: Script,
        ask: Asker | None = None,
        on_tool_call: Before | None = None,
        **options: Unpack[RunKwargs],
    ) -> corral.Session:
        return corral.session(
            self.name, ask=ask, on_tool_call=on_tool_call, **self.options(script, **options)
        )

    async def events(
        self,
        script: Script,
        prompt: str = "do it",
        ask: Asker | None = None,
        on_tool_call: Before | None = None,
        **options: Unpack[RunKwargs],
    ) -> list[Event]:
        """The events of one prompt, checked by ``check_stream``."""
        async with self.session(script, ask, on_tool_call, **options) as session:
            return check_stream([event async for event in session.prompt(prompt)])

    async def run(
        self,
        script: Script,
        prompt: str = "do it",
        ask: Asker | None = None,
        on_tool_call: Before | None = None,
        **options: Unpack[RunKwargs],
    ) -> Result:
        return result_from_events(await self.events(script, prompt, ask, on_tool_call, **options))

    async def attempt(
        self,
        calls: Sequence[Call],
        ask: Asker | None = None,
        on_tool_call: Before | None = None,
        **options: Unpack[RunKwargs],
    ) -> list[Result]:
        """Have the model make all these calls in one session, whatever their results are: in one
        turn, or in a prompt each where the agent ends its turn when a call is denied."""
        if not self.record.ends_turn_at_denial:
            size = self.record.calls_per_turn
            parts = [calls[start : start + size] for start in range(0, len(calls), size)]

            def next_part(request: Request) -> Turn:
                # A function: a list may only call tools that the agent offers.
                return Turn(calls=parts.pop(0)) if parts and request.tools else Turn(text="done")

            async with self.session(next_part, ask, on_tool_call, **options) as session:
                return [await session.run("do it")]

        def answer(request: Request) -> Turn:
            words = request.last_text.split()
            numbers = [int(word[7:]) for word in words if re.fullmatch(r"attempt\d+", word)]
            if not request.tools or not numbers or request.history[-1].results:
                return Turn(text="done")
            return Turn(calls=[calls[numbers[-1]]])

        async with self.session(answer, ask, on_tool_call, **options) as session:
            return [await session.run(f"please make attempt{n}") for n in range(len(calls))]

    def calls(self, act: Act, **values: str) -> list[Call]:
        """One call for each tool that the agent has for ``act``."""
        if "path" in values:
            values["abspath"] = os.path.join(self.workspace, values["path"])
        forms = self.record.probe.forms.get(act, ())
        return [
            Call(name, {key: _fill(value, values) for key, value in given.items()})
            for name, given in forms
        ]

    def tool_name(self, act: Act) -> str:
        return self.record.probe.forms[act][0][0]

    def shell(self, command: str) -> Call:
        return self.calls("run", command=command)[0]

    def write(self, path: str | Path, content: str = "written\n") -> Call:
        return self.calls("write", path=str(path), text=content)[0]

    def read(self, path: str | Path) -> Call:
        return self.calls("read", path=str(path))[0]

    def edit(self, path: str | Path, before: str, after: str) -> Call:
        """``before`` is a complete line: some agents edit by patches."""
        return self.calls("edit", path=str(path), before=before, after=after)[0]

    def mcp_tool(self, server: str, tool: str, **arguments: Json) -> Call:
        return Call(self.record.probe.mcp_name.format(server=server, tool=tool), arguments)


def _with_side_turns(script: Script, side: tuple[Turn, ...]) -> Script:
    if not side:
        return script
    if not callable(script):
        return [*side, *script]

    def answer(request: Request) -> Turn:
        found = [turn for turn in side if turn.match and turn.match in request.last_text]
        return found[0] if found else script(request)

    return answer


def _fill(value: Json, values: Mapping[str, str]) -> Json:
    """The arguments of a call with its placeholders filled in, at any depth."""
    if isinstance(value, str):
        if "+{text}" in value and "text" in values:  # a patch: each line has a sign
            text = values["text"].removesuffix("\n").replace("\n", "\n+")
            values = {**values, "text": text}
        return re.sub(r"\{(\w+)\}", lambda hole: values.get(hole[1], hole[0]), value)
    if isinstance(value, dict):
        return {key: _fill(each, values) for key, each in value.items()}
    if isinstance(value, list):
        return [_fill(each, values) for each in value]
    return value


def denied_tools(*results: Result) -> list[str]:
    """The names of the tools that were denied, each with a reason."""
    denied = [each for result in results for each in result.denied]
    assert all(each.reason for each in denied), denied
    return [each.name for each in denied]


def remove_keys(patch: pytest.MonkeyPatch) -> None:
    """Remove all variables of this machine that configure an agent from the environment."""
    patterns = {pattern for agent in registry.all_agents() for pattern in agent.env_names}
    for name in list(os.environ):
        if any(fnmatch(name, pattern) for pattern in patterns):
            patch.delenv(name)


async def cancel_during_command(
    session: corral.Session, sleep_time: str, started: FifoSignal
) -> corral.Result:
    """Cancel a prompt when its command has started. Nothing of the command is left afterwards."""
    turn = session.prompt("do it")
    reading = asyncio.create_task(turn.collect())
    await asyncio.to_thread(started.wait)
    assert processes_matching(sleep_time)
    turn.cancel()
    async with asyncio.timeout(60):
        result = await reading
        while processes_matching(sleep_time):  # a persistent agent ends the command itself
            await asyncio.sleep(0.01)
    assert result.status == "interrupted"
    return result
