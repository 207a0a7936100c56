"""The scenarios of the conformance kit: each is a conversation and the effects it must have.

A ``Stage`` is what a scenario uses: a folder, a scripted model, an agent.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Unpack

import msgspec
from msgspec.structs import replace

from corral._agents.spec import AgentSpec, Probe
from corral._sessions import store
from corral._sessions.api import run, session
from corral._sessions.permissions import Asker
from corral._testing.model_server.request import Call, Request
from corral._testing.model_server.script import Source, Turn, hang
from corral._testing.model_server.server import Lane, ModelServer
from corral.errors import ConfigError, CorralError, PermissionRefused
from corral.events import Decision, Done, Event, Init, PermissionRequest, Text, ToolResult, ToolUse
from corral.policy import Policy
from corral.result import Result, result_from_events
from corral.run_kwargs import RunKwargs
from corral.values import JsonObject

KEY = "check-needs-no-key-0123456789"


class ScenarioSkipped(Exception):
    """The agent does not claim to support this."""


class ScenarioFailed(Exception):
    """The scenario failed. The message describes what happened."""


class Stage:
    """One scenario's folder, scripted model and options."""

    def __init__(
        self,
        name: str,
        agent: AgentSpec,
        server: ModelServer,
        cwd: Path,
        *,
        options: RunKwargs,
        scenario: str,
    ) -> None:
        self.name = name
        self.agent = agent
        self.cwd: Path = cwd.resolve()
        self._server = server
        self.options = options
        self._scenario = "".join(c if c.isalnum() else "-" for c in f"{name}-{scenario}")
        self._lanes = 0
        self.lane: Lane | None = None
        self.events: list[Event] = []
        """Those of the last run."""

    @property
    def probe(self) -> Probe:
        if self.agent.probe is None:
            raise ScenarioSkipped("its model cannot be scripted: the spec has no probe")
        return replace(self.agent.probe, folder=str(self.cwd))

    @property
    def requests(self) -> list[Request]:
        """The requests to the model, without the agent's calls outside the conversation."""
        sent = self.lane.requests if self.lane else []
        return [request for request in sent if not request.aside]

    def scripted(self, script: Source, **options: Unpack[RunKwargs]) -> RunKwargs:
        """The options of a run against this script."""
        probe = self.probe
        self._lanes += 1
        self.lane = self._server.lane(f"{self._scenario}-{self._lanes}", script)
        env = probe.env(self.lane.url, KEY)
        return {
            "cwd": self.cwd,
            "model": probe.model,
            "timeout": 120,
            "keep": False,
            "probe": "trust",
            **self.options,
            **options,
            "env": {**self.options.get("env", {}), **env},
        }

    async def run(
        self,
        prompt: str,
        script: Source,
        *,
        ask: Asker | None = None,
        tools: Sequence[Callable[..., object]] = (),
        output: type[object] | None = None,
        **options: Unpack[RunKwargs],
    ) -> Result:
        given = self.scripted(script, **options)
        self.events = []
        return await run(
            self.name,
            prompt,
            on_event=self.events.append,
            ask=ask,
            tools=tools,
            output=output,
            **given,
        )


WORDS = [f"word {number}, " for number in range(400)]
"""Long and without repetition: agents stop a model that repeats itself."""
UNREPORTED = 3.0
"""Seconds after the model's first text until the turn is cancelled if the agent has not reported
it. Some agents report only complete messages."""
MAGIC = 7041
"""The result of the test's own tool: no model writes it by chance."""


@dataclass(frozen=True)
class ConformanceCheck:
    tier: str
    name: str
    play: Callable[[Stage], Awaitable[str]]
    """Returns a description of what happened; raises ``ScenarioFailed``."""
    gates: tuple[Callable[[Stage], None], ...] = ()
    """Each raises ``ScenarioSkipped`` if the agent does not claim to support it."""


def must(condition: object, message: str) -> None:
    if not condition:
        raise ScenarioFailed(message)


def describe(result: Result) -> str:
    return result.error.message if result.error else result.status


def success(result: Result) -> None:
    must(result.ok, f"ended as {result.status}: {describe(result)}")


def texts_to_model(stage: Stage) -> str:
    """The texts of all requests: some agents send their own request first."""
    return "\n".join(text for request in stage.requests for text in request.texts)


def calls_then_answers(call: tuple[str, JsonObject], text: str) -> Callable[[Request], Turn]:
    """A model that makes one call and then answers. Other requests get the answer too."""

    def answer(request: Request) -> Turn:
        if call[0] in request.tools and not request.tool_results:
            return Turn(text="Working. ", calls=[Call(*call)])
        return Turn(text=text, usage={"input": 100, "output": 20})

    return answer


async def starts(stage: Stage) -> str:
    if stage.agent.probe is None:  # with the model it has
        own: RunKwargs = {"cwd": stage.cwd, "timeout": 120, "keep": False, **stage.options}
        events = [event async for event in _events(stage, "Answer with the one word: hello", own)]
    else:
        options = stage.scripted([Turn(text="hello", repeat="forever")])
        events = [event async for event in _events(stage, "Say hello", options)]
    must(isinstance(events[0], Init), f"the first event is {type(events[0]).__name__}")
    must(isinstance(events[-1], Done), f"the last event is {type(events[-1]).__name__}")
    must([e.seq for e in events] == list(range(1, len(events) + 1)), "the numbers have gaps")
    result = result_from_events(events)
    success(result)
    must(result.text.strip(), "there is no answer")
    return f"{len(events)} events, {result.agent_version or 'no version'}"


async def _events(stage: Stage, prompt: str, options: RunKwargs) -> AsyncGenerator[Event, None]:
    async with session(stage.name, **options) as opened:
        async for event in opened.prompt(prompt):
            yield event


async def text_is_complete(stage: Stage) -> str:
    pieces = ["Grüße, ", "世界. ", 'a "quote", a \\ and\n\na blank line. ', *WORDS, " End."]
    result = await stage.run("Say it", [Turn(text=pieces, repeat="forever")])
    success(result)
    must(result.text.strip() == "".join(pieces).strip(), f"the text came as {result.text[:80]!r}")
    return f"{len(result.text)} characters"


async def prompt_is_complete(stage: Stage) -> str:
    prompt = 'Line one: "quoted" $HOME `date` \\n\nLine two: -x --flag ✓ ünï'
    result = await stage.run(prompt, [Turn(text="ok", repeat="forever")])
    success(result)
    texts = texts_to_model(stage)
    must(prompt in texts, f"the model received {texts[-200:]!r}")
    return "byte for byte"


async def reads(stage: Stage) -> str:
    (stage.cwd / "here.txt").write_text("the content\n")
    call = stage.probe.read
    if call is None:
        raise ScenarioSkipped("its spec has no tool that reads files")
    options = stage.scripted(calls_then_answers(call, "Read."), policy=Policy.reads())
    events = [event async for event in _events(stage, "Read here.txt", options)]
    success(result_from_events(events))
    uses = [event for event in events if isinstance(event, ToolUse)]
    results = [event for event in events if isinstance(event, ToolResult)]
    must(
        len(uses) == len(results) == 1, f"{len(uses)} uses and {len(results)} results were reported"
    )
    must(results[0].status == "success", f"the result is {results[0].status}: {results[0].error}")
    must(uses[0].kind in ("read", "search"), f"its kind is {uses[0].kind}")
    returned = str(stage.requests[-1].tool_results)
    must("the content" in returned, f"the model received {returned[:200]}")
    return f"{uses[0].name}, reported once"


async def writes(stage: Stage) -> str:
    script = calls_then_answers(stage.probe.write, "Written.")
    result = await stage.run("Write probe.txt", script, policy=Policy.edits())
    success(result)
    must((stage.cwd / "probe.txt").exists(), f"probe.txt does not exist: {describe(result)}")
    kinds = {Path(file.path).name: file.kind for file in result.files}
    must(kinds == {"probe.txt": "created"}, f"files are {kinds}")
    return "probe.txt, created"


async def write_refused(stage: Stage) -> str:
    script = calls_then_answers(stage.probe.write, "I may not.")
    result = await stage.run("Write probe.txt", script, policy=Policy.reads())
    must(not (stage.cwd / "probe.txt").exists(), "probe.txt was written")
    return _denial_reported(stage, result)


async def shell_refused(stage: Stage) -> str:
    script = calls_then_answers(stage.probe.shell, "I may not.")
    result = await stage.run("Run it", script, policy=Policy.edits())
    must(not (stage.cwd / "shell.txt").exists(), "the command ran")
    return _denial_reported(stage, result)


def _denial_reported(stage: Stage, result: Result) -> str:
    """The tool was not offered, or its call was denied. In both cases nothing happened."""
    offered = any(
        call[0] in request.tools
        for request in stage.requests
        for call in (stage.probe.write, stage.probe.shell)
    )
    if offered and stage.probe.reports_denials and not result.denied:
        used = any(request.tool_results for request in stage.requests)
        must(not used, "the denial is not in result.denied")
    return f"nothing happened; {len(result.denied)} denials reported, {result.status}"


async def shell_runs(stage: Stage) -> str:
    script = calls_then_answers(stage.probe.shell, "Done.")
    result = await stage.run("Run it", script, policy=Policy.all(), strict=False)
    success(result)
    must((stage.cwd / "shell.txt").exists(), f"the command did not run: {result.denied}")
    return "shell.txt exists"


def asks(stage: Stage) -> None:
    if not stage.agent.asks:
        raise ScenarioSkipped("it cannot ask for permission")


async def person_answers(answer: Decision, stage: Stage) -> str:
    questions: list[PermissionRequest] = []

    def ask(request: PermissionRequest) -> Decision:
        questions.append(request)
        return answer

    script = calls_then_answers(stage.probe.write, "Over.")
    result = await stage.run("Write probe.txt", script, ask=ask)
    must(questions, "no permission was requested")
    exists = (stage.cwd / "probe.txt").exists()
    must(exists == (answer == "allow_once"), f"answered {answer}, and probe.txt exists: {exists}")
    if answer == "deny":
        must(result.denied, "the denial is not in result.denied")
        stopped = result.error is not None and result.error.code == PermissionRefused.code
        must(result.ok or stopped, f"ended as {result.status}: {describe(result)}")
    else:
        success(result)
    return f"asked: {questions[0].title or questions[0].kind}"


async def key_refused(stage: Stage) -> str:
    refused = Turn(status=401, message="API key not valid", repeat="forever")
    options = stage.scripted([refused])
    if "retries" in stage.agent.supports:
        options["retries"] = 0
    result = await run(stage.name, "hi", **options)
    must(not result.ok, "it ended as a success")
    code = result.error.code if result.error else None
    must(code == "authentication", f"the error is {code}: {describe(result)}")
    return describe(result)


async def ends_when_cancelled(stage: Stage) -> str:
    loop = asyncio.get_running_loop()

    def answer(request: Request) -> Turn:
        if not request.tools:  # for example a request for a title
            return Turn(text="x")
        loop.call_later(UNREPORTED, turn.cancel)
        return hang("Once upon a time")

    async with session(stage.name, **stage.scripted(answer)) as opened:
        turn = opened.prompt("Tell a story")
        events: list[Event] = []
        async for event in turn:
            events.append(event)
            if isinstance(event, Text):
                turn.cancel()
    done = events[-1]
    must(isinstance(done, Done), "the stream has no end")
    status = result_from_events(events).status
    must(status == "interrupted", f"it ended as {status}")
    return "interrupted"


def can_resume(stage: Stage) -> None:
    if not stage.agent.resumes:
        raise ScenarioSkipped("it cannot resume")


async def resumes_session(stage: Stage) -> str:
    hello = [Turn(text="Hello Ada.", repeat="forever")]
    first = await stage.run("My name is Ada.", hello, keep=True)
    success(first)
    token = first.resume_token
    must(token, "there is no token to resume with")
    try:
        name = [Turn(text="Ada.", repeat="forever")]
        second = await stage.run("What is my name?", name, keep=True, resume=token)
    finally:
        store.find(token or "").close(keep=False)
    success(second)
    texts = texts_to_model(stage)
    must("My name is Ada." in texts, f"the model received only {texts[-200:]!r}")
    return "the history was sent"


def counts_tokens(stage: Stage) -> None:
    if stage.agent.transport.kind != "builtin" and "usage" not in stage.agent.capabilities:
        raise ScenarioSkipped("it reports no token usage")


async def counts(stage: Stage) -> str:
    usage = {"input": 1234, "output": 56}
    result = await stage.run("Say hello", [Turn(text="hello", usage=usage, repeat="forever")])
    success(result)
    seen = (result.usage.input, result.usage.output)
    must(seen != (None, None), "no usage was reported")
    asked = max(1, len(stage.requests))
    must(seen[0] and seen[0] % 1234 == 0, f"input is {seen[0]} for {asked} requests of 1234")
    must(seen[1], "the output was not counted")
    return f"{seen[0]:,} in, {seen[1] or 0:,} out"


@dataclass
class SampleAnswer:
    number: int
    words: list[str]


def answer_typed(request: Request) -> Turn:
    """The turn of a model that returns a ``SampleAnswer``, as the agent asks for it."""
    value: JsonObject = {"number": 3, "words": ["a", "b"]}
    text = msgspec.json.encode(value).decode()
    plain = isinstance(request.body.get("text"), dict)  # the request has a schema
    return Turn(text=text if plain else f"```json\n{text}\n```")


async def typed(stage: Stage) -> str:
    result = await stage.run("Answer", answer_typed, output=SampleAnswer)
    success(result)
    must(result.output == SampleAnswer(3, ["a", "b"]), f"the value is {result.output!r}")
    return "a dataclass"


async def calls_our_function(stage: Stage) -> str:
    called: list[int] = []

    def magic_number(doubled: bool = False) -> int:
        """The magic number."""
        called.append(1)
        return MAGIC * (2 if doubled else 1)

    def answer(request: Request) -> Turn:
        name = next((tool for tool in request.tools if tool.endswith("magic_number")), None)
        if {"tool_search", "ToolSearch"} & {*request.tools}:
            # It must be searched for, but a call without a search works too.
            name = name or "mcp__corral__magic_number"
        if name is not None and not request.tool_results:
            return Turn(calls=[Call(name, {})])
        return Turn(text="There it is.")

    result = await stage.run("Which number?", answer, tools=[magic_number], policy=Policy.edits())
    success(result)
    must(len(called) == 1, f"it was called {len(called)} times")
    # Not only of the last request: some agents ask for a title after the answer.
    returned = str([request.tool_results for request in stage.requests])
    must(str(MAGIC) in returned, f"the model received {returned[:200]}")
    return "called once"


def takes_tools(stage: Stage) -> None:
    if stage.agent.transport.kind != "builtin" and "mcp_servers" not in stage.agent.supports:
        raise ScenarioSkipped("it does not accept tools from corral")
    try:
        import mcp  # pyright: ignore[reportUnusedImport]  # noqa: F401
    except ImportError:
        raise ScenarioSkipped("mcp is not installed: pip install 'corral[tools]'") from None


async def three_at_once(stage: Stage) -> str:
    scripts = [[Turn(text=f"answer {number}", repeat="forever")] for number in range(3)]
    options = [stage.scripted(script) for script in scripts]
    results = await asyncio.gather(
        *(run(stage.name, f"question {number}", **each) for number, each in enumerate(options))
    )
    for number, result in enumerate(results):
        success(result)
        must(result.text.strip() == f"answer {number}", f"{number} received {result.text!r}")
    return "each run got its own answer"


async def bad_folder(stage: Stage) -> str:
    try:
        await run(stage.name, "hi", **stage.scripted([], cwd=stage.cwd / "nowhere"))
    except ConfigError as error:
        return error.message
    except CorralError as error:
        raise ScenarioFailed(f"raised {error.code}, not an error about the folder") from error
    raise ScenarioFailed("it ran in a folder that does not exist")


def scripted(stage: Stage) -> None:
    _ = stage.probe


SCENARIOS = (
    ConformanceCheck("start", "starts, answers and exits", starts),
    ConformanceCheck(
        "start", "a missing working directory is an error before the start", bad_folder, (scripted,)
    ),
    ConformanceCheck("text", "the answer arrives complete", text_is_complete, (scripted,)),
    ConformanceCheck("text", "the prompt arrives complete", prompt_is_complete, (scripted,)),
    ConformanceCheck(
        "tools", "each tool call is reported once, with its result", reads, (scripted,)
    ),
    ConformanceCheck("files", "a permitted write happens and is reported", writes, (scripted,)),
    ConformanceCheck("permissions", "a denied write does not happen", write_refused, (scripted,)),
    ConformanceCheck("permissions", "a denied command does not run", shell_refused, (scripted,)),
    ConformanceCheck("permissions", "a permitted command runs", shell_runs, (scripted,)),
    ConformanceCheck(
        "permissions",
        "a call that a person allows is made",
        partial(person_answers, "allow_once"),
        (scripted, asks),
    ),
    ConformanceCheck(
        "permissions",
        "a call that a person denies is not made",
        partial(person_answers, "deny"),
        (scripted, asks),
    ),
    ConformanceCheck(
        "errors", "a rejected API key is an authentication error", key_refused, (scripted,)
    ),
    ConformanceCheck("cancel", "exits when it is cancelled", ends_when_cancelled, (scripted,)),
    ConformanceCheck("resume", "resumes a session", resumes_session, (scripted, can_resume)),
    ConformanceCheck("usage", "reports token usage", counts, (scripted, counts_tokens)),
    ConformanceCheck("schema", "returns typed output", typed, (scripted,)),
    ConformanceCheck(
        "mcp",
        "calls a Python function given as a tool",
        calls_our_function,
        (scripted, takes_tools),
    ),
    ConformanceCheck("concurrency", "three concurrent runs do not mix", three_at_once, (scripted,)),
)
