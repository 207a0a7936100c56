"""The real pi: proven on the disk, on the wire and in the request."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.gemini_tools import (
    denied_tools,
    fifo_signal,
    file_names,
    processes_matching,
    sent_json,
    steps,
)
from support.real_agents import cancel_while_running

import corral
from corral import Policy, errors
from corral.options import RunKwargs
from corral.testing import Call, Turn, say

if TYPE_CHECKING:
    from pi.conftest import Pi

pytestmark = [pytest.mark.pi, pytest.mark.timeout(180)]


def write(path: str | Path) -> Call:
    return Call("write", {"path": str(path), "content": "words\n"})


def read(path: str | Path) -> Call:
    return Call("read", {"path": str(path)})


async def test_a_prompt_is_text_the_session_goes_on_and_nothing_of_the_repository_is_said(
    pi: Pi, workspace: Path
) -> None:
    (workspace / "AGENTS.md").write_text("WORDS of the repository")
    (workspace / "Be KIND.").write_text("WORDS of a file")  # named like the system prompt
    prompt = '/help --tools bash "quoted" @AGENTS.md $HOME\nend'
    options = pi.options(
        [say("Hello Ada."), say("Ada."), say("again")],
        system_prompt="Be KIND.",
        reasoning_effort="high",
    )
    first = await corral.run("pi-cli", prompt, **options)
    assert first.final_text == "Hello Ada."
    assert pi.requests[0].last_text == prompt
    assert "Be KIND." in sent_json(pi.requests)
    assert pi.requests[0].body["reasoning_effort"] == "high"
    options["resume"] = first.resume_token
    again = await corral.run("pi-cli", "second", **options)
    assert again.session_id == first.session_id
    options["fork"] = True
    forked = await corral.run("pi-cli", "third", **options)
    assert forked.session_id != first.session_id
    said = [text for m in pi.requests[-1].history if m.role == "model" for text in m.texts]
    assert said == ["Hello Ada.", "Ada."]
    assert "WORDS" not in sent_json(pi.requests)
    assert pi.failures == []


async def test_the_fence_holds_whatever_a_path_is_called(
    pi: Pi, workspace: Path, tmp_path: Path
) -> None:
    (tmp_path / "up.txt").write_text("secret words\n")
    more = tmp_path / "more"
    more.mkdir()
    (workspace / "way").symlink_to(tmp_path)
    (workspace / "file").symlink_to(tmp_path / "up.txt")
    (workspace / "sub").mkdir()
    script = steps(
        write("new.txt"),
        write("deep/er/new.txt"),
        write(more / "also.txt"),
        write("../out.txt"),
        write("way/out.txt"),
        write("sub/../../out.txt"),
        write(f"{workspace}-beside.txt"),
        write(f"@{tmp_path}/out.txt"),  # to pi the sign is nothing, to us a name in the workspace
        Call("edit", {"path": "file", "edits": [{"oldText": "secret", "newText": "told"}]}),
        read("file"),
        read("~/../up.txt"),
        Call("ls", {"path": ".."}),
        Call("ls", {}),
    )
    policy = Policy(write="allow", shell="deny", writable=(str(more),))
    result = await pi.run(script, policy=policy)
    assert result.ok
    assert len(denied_tools(result)) == 7
    assert (workspace / "new.txt").exists()
    assert (workspace / "deep/er/new.txt").exists()
    assert file_names(more) == ["also.txt"]
    assert (tmp_path / "up.txt").read_text() == "secret words\n"
    assert not [*tmp_path.glob("out.txt"), *tmp_path.glob("*-beside.txt")]
    assert "secret words" not in sent_json(pi.requests)


async def test_only_listed_tools_are_there(pi: Pi, workspace: Path) -> None:
    script = steps(Call("bash", {"command": "touch ran.txt"}), write("new.txt"))
    policy = Policy(allow_tools=("bash", "read"), deny_tools=("read",))
    result = await pi.run(script, policy=policy)
    assert denied_tools(result) == ["write"]
    assert file_names(workspace) == ["ran.txt"]
    assert pi.requests[0].tools == ("bash",)


async def test_a_repository_with_settings_is_refused_and_obeyed_only_where_it_is_trusted(
    pi: Pi, workspace: Path, tmp_path: Path
) -> None:
    (workspace / ".pi").mkdir()
    prefix = f"touch {tmp_path}/loot;"
    (workspace / ".pi" / "settings.json").write_text(json.dumps({"shellCommandPrefix": prefix}))
    script = steps(Call("bash", {"command": "true"}))
    with pytest.raises(errors.UntrustedFolder, match="settings"):
        await pi.run(script, policy="all")
    assert pi.requests == []
    assert not (tmp_path / "loot").exists()
    await pi.run(script, policy="all", inherit="project")
    assert (tmp_path / "loot").exists()


async def test_a_fence_that_does_not_stand_ends_the_run(
    pi: Pi, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("corral.agents.pi.FENCE", "this is no code")
    result = await pi.run(steps(write("new.txt")), policy="edits")
    assert not result.ok
    assert file_names(workspace) == []


async def test_cancelling_leaves_nothing_of_its_command(pi: Pi, tmp_path: Path) -> None:
    sign = f"300.{uuid.uuid4().int}"
    with fifo_signal(tmp_path / "bell") as rung:
        command = f"sleep {sign} & echo up > {rung.path}; sleep {sign}"
        options = pi.options([Turn(calls=[Call("bash", {"command": command})])], policy="all")
        async with corral.session("pi-cli", **options) as session:
            await cancel_while_running(session, sign, rung)
        assert processes_matching(str(tmp_path)) == []


@pytest.mark.parametrize(
    ("options", "kind", "said"),
    [
        ({"policy": Policy.plan()}, errors.PolicyError, "planning mode"),
        ({"policy": Policy(shell_rules=("allow git *",))}, errors.PolicyNotEnforceable, "shell"),
        (
            {"policy": Policy(shell="allow", network="deny")},
            errors.PolicyNotEnforceable,
            "network",
        ),
        ({"images": ("a.png",)}, errors.ConfigError, "images"),
        ({"max_turns": 3}, errors.ConfigError, "max_turns"),
        ({"inherit": "user"}, errors.ConfigError, "inherit"),
        ({"model": None}, errors.ConfigError, "model"),
    ],
)
async def test_what_it_cannot_do_is_refused_by_name_before_it_starts(
    pi: Pi, options: RunKwargs, kind: type[Exception], said: str
) -> None:
    whole: RunKwargs = {**pi.options([say("no")]), **options}
    with pytest.raises(kind, match=said):
        await corral.run("pi-cli", "do it", **whole)
    assert pi.requests == []
