"""Rounds of ``until`` through ``corral.run``, with a scripted program that follows complaints."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.scripted_agent import GOOD, child_pids, scripted_options

import corral
from corral import errors
from corral._sessions.goals import TimeLimit, Until, until_done
from corral._verification.check import CheckResult, files_exist
from corral._verification.command_check import command_succeeds
from corral.errors import from_event
from corral.events import Done
from corral.prompt import Prompt, Section
from corral.result import Result
from corral.values import FileChanged, Usage

AGENT = "gemini-cli"
FIX = "init\nwrite done\ntext mended\nresult"
"""Orders, as a complaint gives them to the scripted program."""


def error_of(result: Result) -> errors.CorralError:
    assert result.error is not None
    return from_event(result.error, result)


async def test_a_task_that_is_done_at_once_needs_one_turn(workspace: Path) -> None:
    orders = "init\nwrite a.txt\ntext x\nresult"
    seen: list[corral.Event] = []
    result = await corral.run(
        AGENT,
        orders,
        until=files_exist("a.txt"),
        on_event=seen.append,
        **scripted_options(workspace),
    )
    assert result.ok
    assert result == corral.result_from_events(seen)


async def test_a_complaint_goes_back_to_the_same_session(workspace: Path) -> None:
    def check(result: Result) -> str | None:
        if (workspace / "done").exists():
            return None
        return f"after {result.final_text}:\n{FIX}\nargv second.json"

    seen: list[corral.Event] = []
    result = await corral.run(
        AGENT,
        "init abc\nwrite first\ntext one\nresult",
        until=check,
        on_event=seen.append,
        **scripted_options(workspace),
    )
    assert result.ok
    assert result.text == "mended"
    assert {Path(file.path).name for file in result.files} == {"first", "done", "second.json"}
    assert result.usage.total == 60
    assert [type(event) for event in seen].count(Done) == 2
    argv = json.loads((workspace / "second.json").read_text())["argv"]
    assert argv[argv.index("--resume") + 1] == "abc"


async def test_the_end_of_a_commands_output_is_the_complaint(workspace: Path) -> None:
    reported = " ".join(f"echo '{line}';" for line in FIX.splitlines())
    check = command_succeeds(f"test -f done || {{ {reported} exit 1; }}")
    result = await corral.run(AGENT, GOOD, until=check, **scripted_options(workspace))
    assert result.ok
    assert result.text == "mended"


@pytest.mark.deep
async def test_rounds_that_are_spent_are_an_error_with_the_last_complaint(workspace: Path) -> None:
    count = iter(range(100))

    def check(_result: Result) -> str:
        return f"number {next(count)}:\n{GOOD}"

    result = await corral.run(AGENT, GOOD, until=check, rounds=2, **scripted_options(workspace))
    assert result.status == "max_turns"
    assert result.usage.total == 90
    error = error_of(result)
    assert isinstance(error, errors.TurnLimit)
    assert "number 2" in error.message
    with pytest.raises(errors.TurnLimit, match=r"do not exist: a\.txt"):
        await corral.run(
            AGENT,
            GOOD,
            until=files_exist("a.txt"),
            rounds=0,
            check=True,
            **scripted_options(workspace),
        )


async def test_tokens_are_counted_over_all_turns(workspace: Path) -> None:
    turns: list[Result] = []

    def check(result: Result) -> str:
        turns.append(result)
        return f"no:\n{GOOD}"

    options = scripted_options(workspace)
    options["max_total_tokens"], options["strict"] = 60, False  # the agent itself counts
    result = await corral.run(AGENT, GOOD, until=check, **options)
    assert result.status == "max_budget"
    assert len(turns) == 2
    assert isinstance(error_of(result), errors.BudgetExceeded)
    assert "60 of 60 tokens" in error_of(result).message


async def test_the_timeout_applies_to_all_rounds_and_a_late_turn_still_ends_with_done(
    workspace: Path,
) -> None:
    def check(_result: Result) -> str:
        return "no:\ninit\nwrite half\nchild\ntext half\nhang"

    seen: list[corral.Event] = []
    result = await corral.run(
        AGENT,
        GOOD,
        until=check,
        on_event=seen.append,
        **scripted_options(workspace, timeout=4),
    )
    assert result.status == "timeout"
    assert isinstance(error_of(result), errors.TotalTimeout)
    assert "over all rounds" in error_of(result).message
    assert result.text == "half"
    assert "half" in {Path(file.path).name for file in result.files}
    assert isinstance(seen[-1], Done)
    # The late turn had only what the first one left of the time.
    late = seen[-1].error
    assert late is not None
    assert late.message != "timed out after 4s in all"
    assert child_pids() == []


async def test_the_timeout_also_ends_a_check(workspace: Path) -> None:
    check = command_succeeds([sys.executable, "-c", "import time; time.sleep(300)"])
    result = await corral.run(AGENT, GOOD, until=check, **scripted_options(workspace, timeout=3))
    assert isinstance(error_of(result), errors.TotalTimeout)
    assert result.text == "hello"
    assert child_pids() == []


async def test_a_failed_turn_ends_the_rounds(workspace: Path) -> None:
    def check(_result: Result) -> str:
        return "no:\ninit\ntext half"

    result = await corral.run(AGENT, GOOD, until=check, **scripted_options(workspace))
    assert result.status == "incomplete"
    assert result.usage.total == 30


async def test_what_a_check_raises_is_raised_and_leaves_nothing(workspace: Path) -> None:
    def check(_result: Result) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await corral.run(AGENT, GOOD, until=check, **scripted_options(workspace))
    assert child_pids() == []


async def test_a_typed_answer_is_requested_in_every_round(workspace: Path) -> None:
    outputs: list[Any] = []

    def check(result: Result) -> str | None:
        outputs.append(result.output)
        return None if result.output == [2] else "no:\ninit\ntext [2]\nresult"

    orders = "init\ntext [1]\nresult"
    result = await corral.run(
        AGENT, orders, output=list[int], until=check, **scripted_options(workspace)
    )
    assert result.ok
    assert result.output == [2]
    assert outputs == [[1], [2]]


async def test_a_prompt_file_is_sent_once(workspace: Path) -> None:
    (workspace / "prompt.md").write_text(GOOD)

    def check(_result: Result) -> str | None:
        return None if (workspace / "done").exists() else f"no:\n{FIX}"

    result = await corral.run(
        AGENT, until=check, rounds=1, **scripted_options(workspace, prompt_file="prompt.md")
    )
    assert result.ok
    assert result.text == "mended"


async def test_a_prompt_in_parts_brings_its_output(workspace: Path) -> None:
    prompt = Prompt(
        "init\ntext {number}\nresult",
        sections=[Section("Off", "exit 3", enabled=False)],
        parameters={"number": int},
        output=int,
    )
    result = await corral.run(AGENT, prompt.with_(number=7), **scripted_options(workspace))
    assert result.output == 7
    other = await corral.run(
        AGENT, prompt.with_(number=7), output=list[int], repairs=0, **scripted_options(workspace)
    )
    assert isinstance(error_of(other), errors.SchemaNotMet)
    with pytest.raises(errors.PromptError, match="'number'"):
        await corral.run(AGENT, prompt, **scripted_options(workspace))


async def test_a_prompt_in_parts_brings_its_tools(workspace: Path) -> None:
    def look() -> str:
        """Looks."""
        return ""

    prompt = Prompt(GOOD, sections=[Section("Look", tools=[look])])
    missed = await corral.run(AGENT, prompt, **scripted_options(workspace))
    assert isinstance(error_of(missed), errors.ToolFailed)  # the program never asks for them
    assert (await corral.run(AGENT, prompt.without("Look"), **scripted_options(workspace))).ok
    assert (await corral.run(AGENT, prompt, tools=[], **scripted_options(workspace))).ok


@pytest.mark.parametrize(
    ("given", "expected_text"),
    [
        ({"until": "pytest"}, "until must be a check, got: str"),
        ({"until": files_exist("a"), "rounds": -1}, "rounds cannot be negative"),
        ({"until": files_exist("a"), "max_total_tokens": 0}, "max_total_tokens must be at least 1"),
        ({"max_total_tokens": 100}, "the model calls of .* cannot be counted"),
    ],
    ids=str,
)
async def test_an_impossible_goal_starts_nothing(
    workspace: Path, given: dict[str, Any], expected_text: str
) -> None:
    with pytest.raises(errors.ConfigError, match=expected_text):
        await corral.run(AGENT, "write a", **given, **scripted_options(workspace))
    assert not (workspace / "a").exists()


@pytest.mark.parametrize(
    "make",
    [
        files_exist,
        lambda: files_exist(""),
        lambda: command_succeeds(" "),
        lambda: command_succeeds([]),
        lambda: command_succeeds("true", timeout=0),
        lambda: command_succeeds("true", timeout="soon"),
    ],
)
def test_a_check_without_a_command_is_refused(make: Callable[[], object]) -> None:
    with pytest.raises(errors.ConfigError):
        make()


COUNTED = Usage(input=1, output=2)


class Agent:
    """A session whose turns succeed. It stores its prompts."""

    def __init__(self, usage: Usage = COUNTED) -> None:
        self.prompts: list[str] = []
        self.usage = usage

    async def run(self, prompt: str) -> Result:
        self.prompts.append(prompt)
        name = str(len(self.prompts))
        return Result(
            status="success", text=name, usage=self.usage, files=(FileChanged(name, "created"),)
        )


async def complaint_of(check: Until, cwd: Path = Path()) -> str | None:
    """The prompt that an agent gets after its first turn."""
    result = await until_done(Agent().run, "go", check, TimeLimit(30), rounds=0, cwd=cwd)
    return result.error.message if result.error else None


class Wrapped:
    """An object that is called; nothing about it says that its answer is to be awaited."""

    def __init__(self, inner: Callable[[Result], Awaitable[CheckResult]]) -> None:
        self.inner = inner

    def __call__(self, result: Result) -> Awaitable[CheckResult]:
        return self.inner(result)


@pytest.mark.parametrize(
    ("verdict", "expected_text"),
    [
        (None, None),
        (True, None),
        (False, "the check of your work did not pass"),
        (" ", "the check of your work did not pass"),
        ("not yet", "not yet"),
    ],
)
async def test_a_check_returns_done_or_a_complaint(
    verdict: CheckResult, expected_text: str | None
) -> None:
    def check(_result: Result) -> CheckResult:
        return verdict

    async def async_check(_result: Result) -> CheckResult:
        await asyncio.sleep(0)
        return verdict

    for each in (check, async_check, partial(async_check), Wrapped(async_check)):
        reported = await complaint_of(each)
        assert reported is None if expected_text is None else expected_text in (reported or "")


async def test_a_check_that_returns_another_type_is_refused() -> None:
    def check(_result: Result) -> Any:
        return 3

    with pytest.raises(errors.ConfigError, match="returned a int"):
        await complaint_of(check)


async def test_a_check_that_blocks_does_not_stop_the_loop() -> None:
    went_on = threading.Event()

    def check(_result: Result) -> bool:
        return went_on.wait(10)

    asyncio.get_running_loop().call_later(0.05, went_on.set)
    assert await complaint_of(check) is None


async def test_the_first_prompt_is_the_callers_and_the_next_the_complaint() -> None:
    agent = Agent()
    result = await until_done(agent.run, "go", lambda r: r.text == "3" or "more!", TimeLimit(30))
    assert agent.prompts[0] == "go"
    assert agent.prompts[1:] == ["It is not done yet: more!\n\nGo on until it is."] * 2
    assert [file.path for file in result.files] == ["1", "2", "3"]
    assert result.usage.total == 9


async def test_ten_rounds_are_the_default_limit() -> None:
    agent = Agent()
    assert (await until_done(agent.run, "go", lambda _: False, TimeLimit(30))).status == "max_turns"
    assert len(agent.prompts) == 11


async def test_a_passed_check_is_a_success_despite_the_budget() -> None:
    assert (
        await until_done(Agent().run, "go", lambda _: True, TimeLimit(30), max_total_tokens=1)
    ).ok


async def test_a_token_budget_without_reported_usage_allows_no_second_turn() -> None:
    agent = Agent(Usage())
    result = await until_done(
        agent.run, "go", lambda _: False, TimeLimit(30), max_total_tokens=1_000_000
    )
    assert result.status == "max_budget"
    assert "are unknown" in error_of(result).message
    assert len(agent.prompts) == 1


async def test_a_timeout_error_of_the_check_is_passed_on() -> None:
    def check(_result: Result) -> None:
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        await until_done(Agent().run, "go", check, TimeLimit(30))


async def test_a_cancellation_is_passed_on() -> None:
    async def run(_prompt: str) -> Result:
        await asyncio.sleep(300)
        raise AssertionError

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await until_done(run, "go", lambda _: True, TimeLimit(30))


async def test_the_error_of_a_later_turn_that_cannot_start_has_the_earlier_result() -> None:
    agent = Agent()

    async def run(prompt: str) -> Result:
        if agent.prompts:
            raise errors.NotInstalled("gone")
        return await agent.run(prompt)

    with pytest.raises(errors.NotInstalled) as caught:
        await until_done(run, "go", lambda _: False, TimeLimit(30))
    assert caught.value.result.text == "1"


async def test_only_files_count_as_files(workspace: Path) -> None:
    (workspace / "folder").mkdir()
    (workspace / "a.txt").touch()
    check = files_exist("a.txt", workspace / "a.txt", "folder", "b.txt")
    reported = await complaint_of(check, workspace)
    assert reported is not None
    assert reported.endswith("these files do not exist: folder, b.txt")


async def test_a_command_runs_in_the_sessions_folder_and_both_streams_are_reported(
    workspace: Path,
) -> None:
    reported = await complaint_of(command_succeeds("pwd; echo wrong >&2; exit 3"), workspace)
    assert reported is not None
    assert f"exited with 3:\n\n```\n{workspace}\nwrong\n```" in reported


@pytest.mark.parametrize(
    ("command", "expected_text"),
    [
        ("exit 1", "`exit 1` exited with 1, without output"),
        ("kill -9 $$", "was killed by signal 9"),
        (["false"], "`false` exited with 1"),
        ("true", None),
        (["true"], None),
    ],
    ids=str,
)
async def test_the_complaint_says_how_a_command_ended(
    command: str | list[str], expected_text: str | None
) -> None:
    reported = await complaint_of(command_succeeds(command))
    assert reported is None if expected_text is None else expected_text in (reported or "")


async def test_only_the_end_of_a_long_output_is_reported() -> None:
    reported = await complaint_of(command_succeeds("seq 1 100000; exit 1"))
    assert reported is not None
    assert "\n100000\n" in reported
    assert len(reported) < 5_000


async def test_characters_that_no_prompt_may_have_are_left_out_of_a_complaint(
    workspace: Path,
) -> None:
    def check(_result: Result) -> str | None:
        return None if (workspace / "done").exists() else f"\0odd \ud800:\n{FIX}"

    assert (await corral.run(AGENT, GOOD, until=check, **scripted_options(workspace))).ok


async def test_a_command_that_hangs_is_ended_with_all_it_started(workspace: Path) -> None:
    command = "echo begun; sleep 300 & setsid sleep 300 & wait"
    reported = await complaint_of(command_succeeds(command, timeout="2s"), workspace)
    assert reported is not None
    assert "did not end within 2s" in reported
    assert "begun" in reported
    assert child_pids() == []


async def test_what_a_command_leaves_behind_is_ended(workspace: Path) -> None:
    check = command_succeeds("setsid sleep 300 >/dev/null 2>&1 &")
    assert await complaint_of(check, workspace) is None
    assert child_pids() == []  # orphans come to us


async def test_a_command_does_not_get_our_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgres://private")
    reported = await complaint_of(command_succeeds("env; exit 1", env={"MINE": "yes"}))
    assert reported is not None
    assert "postgres" not in reported
    assert "MINE=yes" in reported


@pytest.mark.parametrize("stream", [1, 2])
@pytest.mark.parametrize("length", [4_000, 16_000])
async def test_the_end_of_a_commands_output_does_not_start_with_part_of_a_secret(
    stream: int, length: int
) -> None:
    env = {"SOME_API_KEY": "canary-secret-0123456789"}
    filler = length - len("0123456789\n")  # what is kept begins inside the secret
    command = f"printf '%s%0{filler}d\\n' $SOME_API_KEY 0 >&{stream}; exit 1"
    reported = await complaint_of(command_succeeds(command, env=env))
    assert reported is not None
    assert "0000" in reported
    assert "123" not in reported


async def test_a_missing_program_is_an_error_and_not_a_complaint() -> None:
    with pytest.raises(errors.NotInstalled):
        await complaint_of(command_succeeds(["no-such-program-here"]))
