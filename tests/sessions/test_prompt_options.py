"""Options of one prompt apply to it, and not to the next."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace
from support.builtin_agent import MODELS, BuiltinAgent, model_env
from support.scripted_acp import agent
from support.scripted_agent import GOOD, PROGRAM, child_pids, scripted_options

import corral
from corral import Policy, errors
from corral._agents import acp_command
from corral._agents.spec import AcpTransport, AgentSpec
from corral._protocol.acp.quirks import AcpQuirks
from corral._sessions.prepare import check_narrower, prepare
from corral.errors import ConfigError
from corral.policy import Preset
from corral.testing import Call, Turn

if TYPE_CHECKING:
    from support.real_agents import RealAgent

pytest_plugins = ["support.builtin_agent_fixture"]

ASKS = Policy(
    read="allow", write="allow", shell="allow", network="allow", mcp="allow", own_mcp="ask"
)
"""All but unlimited."""

POLICIES: list[tuple[str, Preset | None]] = [("a.txt", None), ("b.txt", "reads"), ("c.txt", None)]
"""What each prompt writes, and its policy."""


def steps(*names: str) -> list[Turn]:
    """For each name an attempt to write the file, and an answer."""
    made: list[Turn] = []
    for name in names:
        made.append(Turn(calls=[Call("write_file", {"file_path": name, "content": "x"})]))
        made.append(Turn(text=f"tried {name}"))
    return made


# Deadlines


async def test_a_timeout_of_one_prompt_ends_only_that_prompt(workspace: Path) -> None:
    async with corral.session("gemini-cli", **scripted_options(workspace)) as session:
        late = await session.run("init\ntext x\nhang", timeout=1)
        assert (late.status, late.error and late.error.code) == ("timeout", "total_timeout")
        idle = await session.run("init\ntext x\nhang", idle_timeout=1)
        assert (idle.status, idle.error and idle.error.code) == ("timeout", "idle_timeout")
        assert session.prepared.run.timeout == 30
        assert (await session.run(GOOD)).ok


@pytest.mark.parametrize(
    ("given", "expected_text"),
    [
        ({"timeout": 0}, "timeout must be more than 0"),
        ({"timeout": True}, "timeout must be a number"),
        ({"idle_timeout": -1}, "idle_timeout must be more than 0"),
        ({"model": " "}, "model is empty"),
        ({"policy": "everything"}, "policy"),
        ({"policy": 7}, "policy"),
        ({"images": ["missing.png"]}, "does not exist"),
        ({"audio": ["a.wav"]}, "gemini-cli has no option 'audio'"),
    ],
)
async def test_a_wrong_option_is_an_error_before_anything_starts(
    workspace: Path, given: dict[str, Any], expected_text: str
) -> None:
    async with corral.session("gemini-cli", **scripted_options(workspace)) as session:
        with pytest.raises(errors.ConfigError, match=expected_text):
            session.prompt(GOOD, **given)
        assert (await session.run(GOOD)).ok


# Model


async def test_the_next_process_of_a_stream_agent_gets_the_model(workspace: Path) -> None:
    options = scripted_options(workspace, model="gemini-2.5-flash")
    async with corral.session("gemini-cli", **options) as session:
        reported: list[bool] = []
        for model in (None, "gemini-2.5-pro", None):
            await session.run("init\nargv argv.json\ntext x\nresult", model=model)
            reported.append("gemini-2.5-pro" in (workspace / "argv.json").read_text())
    assert reported == [False, True, False]


# Files


async def test_an_image_is_sent_with_one_prompt(ours: BuiltinAgent) -> None:
    (ours.workspace / "dot.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"0" * 30)
    async with ours.session([Turn(text="a dot"), Turn(text="none")]) as session:
        await session.run("What is it?", images=["dot.png"])
        await session.run("And now?")
    sent = [str(request.body).count("image/png") for request in ours.requests]
    assert sent == [1, 1]  # of the first prompt, in the history of the second one


# Policy


@pytest.mark.parametrize(
    "policy", ["edits", "all", Policy(shell="ask"), Policy.native(), Policy(writable=("/tmp",))]
)
async def test_a_wider_policy_is_refused_and_nothing_starts(workspace: Path, policy: Any) -> None:
    options = scripted_options(workspace, policy="reads")
    async with corral.session("gemini-cli", **options) as session:
        with pytest.raises(errors.ConfigError, match="may only be narrower"):
            session.prompt("init\nwrite a.txt\nresult", policy=policy)
    assert list(workspace.iterdir()) == []


async def test_the_builtin_agent_applies_the_narrower_policy_to_one_prompt(
    ours: BuiltinAgent,
) -> None:
    async with ours.session(steps("a.txt", "b.txt", "c.txt"), policy="edits") as session:
        for name, policy in POLICIES:
            result = await session.run(f"write {name}", policy=policy)
            assert result.text == f"tried {name}"
    assert sorted(path.name for path in ours.workspace.iterdir()) == ["a.txt", "c.txt"]
    # One conversation all the time.
    assert "write a.txt" in str(ours.requests[-1].body)


async def test_the_builtin_agent_uses_another_vendors_model_for_one_prompt(
    ours: BuiltinAgent,
) -> None:
    script = [Turn(text="one"), Turn(text="two"), Turn(text="three")]
    options = ours.options(script)
    options["env"] = {**options.get("env", {}), **model_env(ours.lane, "anthropic")}
    async with corral.session(**options) as session:
        results = [
            await session.run("1"),
            await session.run("2", model=MODELS["anthropic"]),
            await session.run("3"),
        ]
    assert [result.text for result in results] == ["one", "two", "three"]
    assert [list(result.usage_by_model) for result in results] == [
        [MODELS["gemini"]],
        [MODELS["anthropic"]],
        [MODELS["gemini"]],
    ]
    assert "two" in str(ours.requests[-1].body)  # the conversation went on


async def test_the_broker_of_an_acp_agent_judges_by_the_narrower_policy(workspace: Path) -> None:
    orders = f"ask edit {workspace}/a.txt\npid"
    async with corral.session(agent(), cwd=workspace, timeout=30, policy=ASKS) as session:
        first = await session.run(orders)
        second = await session.run(orders, policy=Policy(write="deny"))
        third = await session.run(orders)
    answers = [result.text.replace("\n\n", "") for result in (first, second, third)]
    pid = answers[0].removeprefix("[b-once]")
    assert answers == [f"[b-once]{pid}", f"[c-no]{pid}", f"[b-once]{pid}"]  # one process


async def test_a_prompt_of_a_pool_may_have_a_narrower_policy(workspace: Path) -> None:
    orders = f"ask edit {workspace}/a.txt"
    async with corral.pool(agent(), cwd=workspace, timeout=30, policy=ASKS) as pool:
        denied = await pool.run(orders, policy=Policy(write="deny"), track_files=False)
        allowed = await pool.run(orders, track_files=False)
        assert pool.started == 1
        with pytest.raises(errors.ConfigError, match="may only be narrower"):
            await pool.run(orders, policy="all")
    assert ["[c-no]" in denied.text, "[b-once]" in allowed.text] == [True, True]


async def test_a_pool_refuses_what_is_fixed_when_its_processes_start(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GEMINI_API_KEY", "scripted-key-0123456789")
    options: Any = {"cwd": workspace, "program": str(PROGRAM), "policy": "edits"}
    async with corral.pool("gemini-acp", **options) as pool:
        chosen: list[dict[str, Any]] = [{"policy": "reads"}, {"model": "gemini-2.5-pro"}]
        for given in chosen:
            with pytest.raises(errors.ConfigError, match="fixed when a process of the pool starts"):
                await pool.run("text x", **given)
        assert pool.started == 0


# The real Gemini CLI: what is on disk


@pytest.mark.deep
@pytest.mark.gemini_cli
@pytest.mark.parametrize("name", ["gemini-cli", "gemini-acp"])
async def test_gemini_applies_the_narrower_policy_to_one_prompt(
    name: str, gemini: RealAgent
) -> None:
    """In ACP its process is started again, and loads the conversation: one that was started for
    "all" asks no one. The CLI is started for each prompt: the first two show it."""
    options = gemini.options(steps("a.txt", "b.txt", "c.txt"), policy="all")
    prompts = POLICIES if name == "gemini-acp" else POLICIES[:2]
    async with corral.session(name, **options) as session:
        for file, policy in prompts:
            result = await session.run(f"write {file}", policy=policy)
            assert (result.status, result.text) == ("success", f"tried {file}")
    written = [file for file, policy in prompts if policy is None]
    assert sorted(p.name for p in gemini.workspace.glob("*.txt")) == written
    assert "write a.txt" in str(gemini.requests[-1].body)


# ACP agents that are not like the Gemini CLI


def changed(monkeypatch: pytest.MonkeyPatch, transport: AcpTransport) -> None:
    """From here on the scripted ACP agent has this transport."""
    make = acp_command.agent_for

    def other(name: str) -> AgentSpec:
        return replace(make(name), transport=transport)

    monkeypatch.setattr(acp_command, "agent_for", other)


async def test_an_acp_agent_that_can_switch_answers_one_prompt_with_another_model(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed(monkeypatch, AcpTransport(quirks=AcpQuirks(set_model="session/set_model")))
    orders = "told session/set_model"
    async with corral.session(agent(), cwd=workspace, timeout=30, model="first") as session:
        asked = [await session.run(orders, model=model) for model in (None, "second", None, None)]
    assert [json.loads(each.text)["modelId"] for each in asked] == [
        "first",
        "second",
        "first",
        "first",
    ]


async def test_the_model_of_one_prompt_is_not_used_for_the_next(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed(monkeypatch, AcpTransport(quirks=AcpQuirks(set_model="session/set_model")))
    async with corral.session(agent(), cwd=workspace, timeout=30) as session:
        assert (await session.run("text a")).ok
        assert (await session.run("text b", model="other")).ok
        with pytest.raises(errors.ConfigError, match="does not report which model it started with"):
            await session.run("text c")
        assert (await session.run("text d", model="other")).ok


@pytest.mark.parametrize("loads", [True, False])
async def test_options_fixed_at_the_start_need_a_new_process_that_loads_the_conversation(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, loads: bool
) -> None:
    changed(monkeypatch, AcpTransport(quirks=acp_command.QUIRKS, model_at_start=True))
    given = ["--loads"] if loads else []
    async with corral.session(agent(*given), cwd=workspace, timeout=30, model="one") as session:
        first = await session.run("pid")
        if not loads:
            with pytest.raises(errors.ConfigError, match="cannot load the conversation"):
                await session.run("pid", model="two")
            assert (await session.run("pid")).text == first.text  # nothing was lost
            return
        second = await session.run("pid\nhistory", model="two")
        third = await session.run("pid\nhistory")
    assert len({first.text, second.text, third.text}) == 3
    assert second.text.endswith('["(loaded)"]')
    assert third.text.endswith('["(loaded)"]')
    assert child_pids() == []


def test_a_writable_folder_of_a_prompt_is_compared_by_where_it_leads(workspace: Path) -> None:
    """The agent may have made a link in a folder that it writes."""
    (workspace / "out" / "sub").mkdir(parents=True)
    (workspace / "out" / "link").symlink_to("/etc")
    session = prepare("manual", {"cwd": workspace, "strict": False, "sandbox": "off",
                                 "policy": Policy(write="allow", writable=("out",))})  # fmt: skip
    check_narrower(Policy(write="allow", writable=("out/sub",)), session)
    with pytest.raises(ConfigError, match="may only be narrower"):
        check_narrower(Policy(write="allow", writable=("out/link",)), session)
