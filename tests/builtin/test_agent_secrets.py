"""The vendor's key is not in commands, events, transcripts, histories or errors."""

from __future__ import annotations

import pytest
from support.builtin_agent import KEY, MODELS, BuiltinAgent, events_of, last_tool_result, model_env

import corral
from corral._models import registry
from corral._sessions import store
from corral._system.environment import SecretRedactor, StreamRedactor, for_commands, is_secret
from corral.events import Event, PermissionRequest, Thinking, ToolOutput, ToolResult, ToolUse
from corral.result import result_from_events
from corral.testing import Call, Turn, call, fail, say

pytest_plugins = ("support.builtin_agent_fixture",)

MARK = "[GEMINI_API_KEY redacted]"


def written(events: list[Event]) -> str:
    return b"\n".join(corral.to_json(event) for event in events).decode()


@pytest.mark.parametrize("given", ["by environment", "by option"])
async def test_a_command_sees_no_key(
    ours: BuiltinAgent, given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_options = ours.options([call("shell", command="env > seen"), say("ok")], policy="all")
    if given == "by environment":
        for name, value in model_env(ours.lane).items():
            monkeypatch.setenv(name, value)
        del run_options["env"]
    monkeypatch.setenv("DATABASE_PASSWORD", "hunter2hunter2")
    async with corral.session(**run_options) as session:
        assert (await session.run("do it")).ok
    seen = (ours.workspace / "seen").read_text()
    assert "PATH=" in seen
    assert KEY not in seen
    assert "GEMINI_API_KEY" not in seen
    assert "hunter2" not in seen


def test_no_vendors_key_has_a_name_that_commands_would_see() -> None:
    for provider in registry.all_providers():
        for name in provider.key_env:
            assert is_secret(name, "any-value-at-all"), name
            assert name not in for_commands(environ={name: "any-value-at-all"})


async def test_a_key_that_is_passed_on_purpose_is_redacted_in_all_output(
    ours: BuiltinAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours.options([call("shell", command="echo $GEMINI_API_KEY | tee k"), say("ok")])
    for name, value in model_env(ours.lane).items():
        monkeypatch.setenv(name, value)
    async with corral.session(
        model=MODELS["gemini"],
        cwd=ours.workspace,
        policy="all",
        pass_env=["GEMINI_API_KEY"],
        record=True,
    ) as session:
        events = [event async for event in session.prompt("print it")]
    assert (ours.workspace / "k").read_text() == f"{KEY}\n"
    assert KEY not in written(events)
    (result,) = events_of(events, ToolResult)
    assert result.output is not None
    assert MARK in result.output
    assert MARK in "".join(event.delta for event in events_of(events, ToolOutput))
    assert last_tool_result(ours.requests[1], "shell").startswith(MARK)
    stored = store.find(result_from_events(events).resume_token or "")
    for path in stored.folder.rglob("*"):
        if path.is_file():
            assert KEY not in path.read_text(), path


async def test_a_key_in_a_file_is_not_sent_to_the_model(ours: BuiltinAgent) -> None:
    (ours.workspace / ".env").write_text(f"GEMINI_API_KEY={KEY}\n")
    script = [call("read_file", file_path=".env"), call("grep", pattern="KEY"), say("ok")]
    events = await ours.events(script)
    assert KEY not in written(events)
    assert KEY not in str([request.body for request in ours.requests])


async def test_a_cut_in_a_long_output_shows_no_part_of_a_key(ours: BuiltinAgent) -> None:
    """The model sees half of the limit from each end; of a flood the event has as much."""
    (ours.workspace / "k").write_text(KEY)
    script = [
        call("shell", command=f"printf '%0{before}d' 0; cat k; printf '%0{after}d' 0")
        for before, after in ((14_950 - 4, 40_000), (40_000, 14_950 - 4), (500_000 - 4, 900_000))
    ]
    events = await ours.events([*script, say("ok")], policy="all")
    results = events_of(events, ToolResult)
    assert [result.status for result in results] == ["success"] * 3
    message = [str(result.output) for result in results]
    message += [last_tool_result(request, "shell") for request in ours.requests[1:]]
    for text in message:
        assert "left out" in text or "were dropped" in text or MARK in text
        for end in range(4, len(KEY)):
            assert KEY[:end] not in text
            assert KEY[-end:] not in text


async def test_a_key_in_the_arguments_of_a_call_is_redacted_in_events(ours: BuiltinAgent) -> None:
    def ask(_: PermissionRequest) -> corral.events.Decision:
        return "allow_once"

    calls = [Call("shell", {"command": f"echo {KEY} > k"}), Call("nope", {"key": [KEY]})]
    turns = iter([Turn(calls=calls), say("ok")])
    events = await ours.events(lambda _request: next(turns), ask=ask)
    assert KEY not in written(events)
    assert events_of(events, ToolUse)[0].input == {"command": f"echo {MARK} > k"}
    assert (ours.workspace / "k").read_text() == f"{KEY}\n"


@pytest.mark.parametrize("status", [400, 401, 429, 500])
async def test_a_key_in_an_error_is_redacted(ours: BuiltinAgent, status: int) -> None:
    events = await ours.events([fail(status, f"the key {KEY} is bad", retry_after=0.01)])
    assert result_from_events(events).error is not None
    assert KEY not in written(events)


async def test_a_key_in_a_warning_is_redacted(ours: BuiltinAgent) -> None:
    script = [fail(503, f"the key {KEY} is slow", retry_after=0.01), say("ok")]
    events = await ours.events(script, retries=1)
    assert result_from_events(events).ok
    assert KEY not in written(events)


async def test_a_key_in_an_exception_of_a_function_is_redacted(
    ours: BuiltinAgent,
) -> None:
    def leak() -> str:
        raise RuntimeError(f"refused: {KEY}")

    events = await ours.events([call("leak"), say("ok")], tools=[leak])
    assert KEY not in written(events)
    assert KEY not in str(ours.requests[-1].body)


async def test_a_key_that_a_command_writes_in_pieces_is_redacted(ours: BuiltinAgent) -> None:
    head, tail = KEY[:11], KEY[11:]
    command = f"printf {head}; sleep 0.3; printf '{tail} and {head}'"
    events = await ours.events([call("shell", command=command), say("ok")], policy="all")
    live = "".join(event.delta for event in events_of(events, ToolOutput))
    assert live == f"{MARK} and {head}"


async def test_a_key_that_the_model_writes_in_pieces_is_redacted(ours: BuiltinAgent) -> None:
    thoughts = ["a", KEY[:5], KEY[5:], "b"]
    script = [Turn(thoughts=thoughts, text=["It is ", *KEY, ", or so. ", KEY[:4]])]
    events = await ours.events(script, f"My key is {KEY}")
    assert result_from_events(events).text == f"It is {MARK}, or so. {KEY[:4]}"
    assert "".join(event.delta for event in events_of(events, Thinking)) == f"a{MARK}b"


@pytest.mark.parametrize("size", [1, 2, 7, 40])
def test_any_split_of_a_text_gives_the_same_result(size: int) -> None:
    secrets = {"A": "abcabcabd", "B": "cabd-and-more"}
    text = "xx abcabcabcabd yy abcabcab cabd-and-more abcabcabd-and-more zz abc"
    pieces = StreamRedactor(SecretRedactor(secrets))
    shown = [pieces.add(text[at : at + size]) for at in range(0, len(text), size)]
    complete = "".join([*shown, pieces.finish()])
    assert not any(secret in complete for secret in secrets.values())
    assert complete.startswith("xx abc[A redacted] yy abcabcab ")
    assert complete.endswith(" zz abc")
