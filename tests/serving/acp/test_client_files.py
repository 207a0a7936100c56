"""Files through the editor: unsaved text is read, what is written goes to the editor, and an editor
that fails is an error of the tool. The agent is a real process; the editor is a client of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.acp_editor import Editor, RpcFailed, allow, blocks, editor
from support.installed_agents import installed
from support.scripted_acp import agent

from corral._sessions import store
from corral.events import Event, FileChange
from corral.testing import Call, ModelServer, Turn

BOTH = {"readTextFile": True, "writeTextFile": True}
MODEL = "gemini:gemini-2.5-flash"
PATCHES = "openai:gpt-5.5"
"""A model that gets the tool for patches."""
FileAnswer = Callable[[str, dict[str, Any]], Any]


class Buffers:
    """The open files of an editor: path → text. What is written is saved."""

    def __init__(self, **texts: str) -> None:
        self.texts = texts
        self.requests: list[tuple[str, dict[str, Any]]] = []

    def __call__(self, method: str, params: dict[str, Any]) -> Any:
        if not method.startswith("fs/"):
            return allow(method, params)
        self.requests.append((method, params))
        path = Path(params["path"])
        if method == "fs/write_text_file":
            self.texts.pop(path.name, None)
            path.write_text(params["content"])
            return {}
        if path.name not in self.texts and not path.exists():
            return RpcFailed({"code": -32603, "message": f"ENOENT: {path}"})
        text = self.texts.get(path.name) or path.read_text()
        first = params.get("line", 1) - 1
        lines = text.splitlines(keepends=True)[first:]
        return {"content": "".join(lines[: params.get("limit")])}

    @property
    def methods(self) -> list[str]:
        return [method.removeprefix("fs/") for method, _ in self.requests]


class Agent:
    """The built-in agent behind ``corral acp``, which makes one tool call after another."""

    def __init__(self, model: ModelServer, workspace: Path) -> None:
        self._model = model
        self.workspace = workspace
        self.results: list[str] = []
        """What the calls of the last prompt returned to the model."""
        self.client: Editor
        self.session = ""
        self.calls: list[Call] = []
        self._seen = self._earlier = 0
        """Results in the last request, and those of earlier prompts."""
        self._lane = model.lane("files", self._answer)

    def _answer(self, request: Any) -> Turn:
        results: list[tuple[str, Any]] = request.tool_results[self._earlier :]
        self.results = [r if isinstance(r, str) else next(iter(r.values())) for _, r in results]
        self._seen = len(request.tool_results)
        done = len(self.results)
        return Turn(calls=[self.calls[done]]) if done < len(self.calls) else Turn(text="done")

    @contextlib.asynccontextmanager
    async def open(
        self,
        answer: FileAnswer,
        *options: str,
        fs: dict[str, bool] = BOTH,
        cwd: Path | None = None,
        model: str = MODEL,
    ) -> AsyncGenerator[None]:
        options = ("-m", model, *(options or ("--approve", "edits")))
        async with editor(*options, env=self._lane.env, answer=answer) as self.client:
            await self.client.initialize(fs=fs)
            self.session = await self.client.session(cwd or self.workspace)
            yield

    async def call(self, *calls: Call) -> Any:
        """Prompt; the model makes these calls. The stop reason."""
        return (await self.client.result(self.start(*calls)))["stopReason"]

    def start(self, *calls: Call) -> asyncio.Future[Any]:
        self.calls, self._earlier = [*calls], self._seen
        return self.client.start("session/prompt", sessionId=self.session, prompt=blocks("go"))[1]

    def changes(self) -> list[tuple[str, str]]:
        """The files that were reported as changed: name and kind."""
        events: list[Event] = list(store.find(self.session).events())
        return [
            (Path(each.path).name, each.kind) for each in events if isinstance(each, FileChange)
        ]


@pytest.fixture
def ours(workspace: Path) -> Iterator[Agent]:
    with ModelServer() as model:
        yield Agent(model, workspace)


def read(path: object, **window: int) -> Call:
    return Call("read_file", {"file_path": str(path), **window})


def write(path: object, content: str = "new\n") -> Call:
    return Call("write_file", {"file_path": str(path), "content": content})


def edit(path: object, old: str, new: str) -> Call:
    return Call("edit_file", {"file_path": str(path), "old_string": old, "new_string": new})


def patch(*rows: str) -> Call:
    return Call("apply_patch", {"patch": "\n".join(["*** Begin Patch", *rows, "*** End Patch"])})


async def test_unsaved_text_is_read_and_edited_and_the_editor_writes_it(ours: Agent) -> None:
    (ours.workspace / "a.txt").write_text("saved\n")
    buffers = Buffers(**{"a.txt": "unsaved\nsecond\n", "untitled.txt": "not on disk\n"})
    async with ours.open(buffers):
        await ours.call(
            read("a.txt"),
            edit("a.txt", "unsaved", "edited"),
            write("deep/b.txt"),
            read("untitled.txt"),
        )
    assert "1\tunsaved\n     2\tsecond\n" in ours.results[0]
    assert "Edited a.txt (+1 -1)" in ours.results[1]
    assert "not on disk" in ours.results[3]
    assert (ours.workspace / "a.txt").read_text() == "edited\nsecond\n"
    assert (ours.workspace / "deep" / "b.txt").read_text() == "new\n"
    assert buffers.methods == [
        *("read_text_file", "read_text_file", "write_text_file"),
        *("write_text_file", "read_text_file"),
    ]
    assert {params["sessionId"] for _, params in buffers.requests} == {ours.session}
    assert ours.changes() == [("a.txt", "modified"), ("b.txt", "created")]


async def test_a_window_of_lines_is_what_the_editor_is_asked_for(ours: Agent) -> None:
    (ours.workspace / "a.txt").write_text("".join(f"line {n}\n" for n in range(1, 11)))
    buffers = Buffers()
    ignores = False

    def answer(method: str, params: dict[str, Any]) -> Any:
        complete = {name: params[name] for name in params if name not in ("line", "limit")}
        return buffers(method, complete if ignores else params)

    async with ours.open(answer):
        calls = (
            read("a.txt", offset=3, limit=2),
            read("a.txt", offset=9, limit=5),
            read("a.txt", offset=40, limit=5),
        )
        await ours.call(*calls)
        windows = [(params["line"], params["limit"]) for _, params in buffers.requests]
        first, second, third = ours.results
        ignores = True
        await ours.call(calls[0])
    assert windows == [(3, 3), (9, 6), (40, 6)]
    assert "3\tline 3\n     4\tline 4\n(lines 3 to 4; continue with offset=5)" in first
    assert "9\tline 9\n    10\tline 10\n" in second
    assert "continue" not in second
    assert "a.txt has no line 40" in third
    # An editor that sends the complete file: the window is cut here.
    assert "3\tline 3\n     4\tline 4\n(lines 3 to 4 of 10;" in ours.results[-1]


async def test_the_policy_and_the_workspace_decide_before_the_editor_is_asked(
    ours: Agent, tmp_path: Path
) -> None:
    (tmp_path / "secret.txt").write_text("secret\n")
    (ours.workspace / "way").symlink_to(tmp_path)
    (ours.workspace / ".git").mkdir()
    buffers = Buffers(**{"secret.txt": "unsaved secret\n"})
    async with ours.open(buffers):
        await ours.call(
            read(tmp_path / "secret.txt"),
            read("way/secret.txt"),
            edit("way/secret.txt", "secret", "x"),
            write("../outside.txt"),
            write(".git/hooks/pre-commit"),
            write(".vscode/tasks.json"),
        )
        assert buffers.requests == []
        assert all(
            any(why in result for why in ("outside the workspace", "belongs to git", "protected"))
            for result in ours.results
        )
        await ours.client.call("session/set_mode", sessionId=ours.session, modeId="reads")
        await ours.call(write("a.txt"))
        assert "not allowed" in ours.results[-1]
        assert buffers.requests == []
    async with ours.open(buffers, "--approve", "all"):  # a policy without a workspace's protection
        await ours.call(write("way/secret.txt"))
    assert buffers.requests == []
    assert (tmp_path / "secret.txt").read_text() == "secret\n"


async def test_a_link_inside_is_resolved_and_a_folder_keeps_the_name_the_client_knows(
    ours: Agent, tmp_path: Path
) -> None:
    (ours.workspace / "real.txt").write_text("text\n")
    (ours.workspace / "link.txt").symlink_to("real.txt")
    (tmp_path / "project").symlink_to(ours.workspace)
    buffers = Buffers()
    async with ours.open(buffers, cwd=tmp_path / "project"):
        await ours.call(edit("link.txt", "text", "new"))
    paths = {params["path"] for _, params in buffers.requests}
    assert paths == {f"{tmp_path}/project/real.txt"}
    assert (ours.workspace / "link.txt").is_symlink()
    assert (ours.workspace / "real.txt").read_text() == "new\n"


async def test_files_that_an_editor_does_not_have_stay_on_disk(ours: Agent, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "lib.txt").write_text("of a library\n")
    (ours.workspace / "binary").write_bytes(b"\0\1\2")
    (ours.workspace / "latin.txt").write_bytes(b"\xe9t\xe9 old\n")
    buffers = Buffers()
    async with ours.open(buffers, "--approve", "edits", "--add-dir", str(other)):
        await ours.call(
            read("binary"),
            edit("latin.txt", " old", " new"),
            read(other / "lib.txt"),
            read("absent.txt"),
        )
        methods = buffers.methods
    assert "a binary file of 3 bytes" in ours.results[0]
    assert (ours.workspace / "latin.txt").read_bytes() == b"\xe9t\xe9 new\n"
    assert "of a library" in ours.results[2]
    assert "absent.txt does not exist" in ours.results[3]
    assert methods == ["read_text_file"]  # the editor may have a new file that is not saved


async def test_a_program_that_is_moved_keeps_its_mode_and_its_unsaved_text(ours: Agent) -> None:
    (ours.workspace / "script.sh").write_text("saved\n")
    (ours.workspace / "script.sh").chmod(0o755)
    buffers = Buffers(**{"script.sh": "unsaved\n"})
    move = ("*** Update File: script.sh", "*** Move to: moved.sh", "-unsaved", "+moved")
    async with ours.open(buffers, model=PATCHES):
        await ours.call(patch(*move))
    moved = ours.workspace / "moved.sh"
    assert (moved.read_text(), moved.stat().st_mode & 0o777) == ("moved\n", 0o755)
    assert os.listdir(ours.workspace) == ["moved.sh"]


@pytest.mark.parametrize("fs", [{}, {"readTextFile": True}, {"writeTextFile": True}])
async def test_only_what_the_client_offers_is_asked_for(ours: Agent, fs: dict[str, bool]) -> None:
    (ours.workspace / "a.txt").write_text("saved\n")
    buffers = Buffers()
    async with ours.open(buffers, fs=fs):
        await ours.call(edit("a.txt", "saved", "edited"))
    assert buffers.methods == [
        *(["read_text_file"] if "readTextFile" in fs else []),
        *(["write_text_file"] if "writeTextFile" in fs else []),
    ]
    assert (ours.workspace / "a.txt").read_text() == "edited\n"
    assert ours.changes() == [("a.txt", "modified")]


@pytest.mark.parametrize(
    ("result", "error"),
    [
        (RpcFailed({"code": -32603, "message": "the buffer is gone"}), "the buffer is gone"),
        ({}, "its reply is not valid"),
        ({"content": 7}, "its reply is not valid"),
        ([], "its reply is not valid"),
        ({"content": "x" * 50_000_000}, "is over 16,777,216 characters"),
        (None, "it did not answer within 0.5 s"),
    ],
)
@pytest.mark.deep_but_first
async def test_an_editor_that_fails_is_an_error_of_the_tool(
    ours: Agent, result: Any, error: str
) -> None:
    (ours.workspace / "a.txt").write_text("saved\n")

    def answer(method: str, params: dict[str, Any]) -> Any:
        return result if method == "fs/read_text_file" else allow(method, params)

    timeout = "0.5" if result is None else "30"
    async with ours.open(answer, "--approve", "edits", "--answer-timeout", timeout):
        assert await ours.call(read("a.txt"), edit("a.txt", "saved", "edited")) == "end_turn"
        withdrawn = [each["params"]["requestId"] for each in ours.client.notices]
        asked = [each["id"] for each in ours.client.requests]
    assert [error in each and "a.txt" in each for each in ours.results] == [True, True], (
        ours.results
    )
    assert (ours.workspace / "a.txt").read_text() == "saved\n"
    assert withdrawn == (asked if result is None else [])


async def test_a_write_that_the_editor_refuses_is_not_made_on_disk(ours: Agent) -> None:
    (ours.workspace / "a.txt").write_text("saved\n")
    silent = False

    def answer(method: str, params: dict[str, Any]) -> Any:
        refused = RpcFailed({"code": -32000, "message": "the user declined"})
        return refused if not silent else None

    async with ours.open(
        answer, "--approve", "edits", "--answer-timeout", "0.5", fs={"writeTextFile": True}
    ):
        await ours.call(write("a.txt"), write("b.txt"))
        assert all("cannot write" in r and "the user declined" in r for r in ours.results)
        silent = True
        await ours.call(write("a.txt"))
        assert "it is not known whether the file was written" in ours.results[-1]
    assert (ours.workspace / "a.txt").read_text() == "saved\n"
    assert os.listdir(ours.workspace) == ["a.txt"]
    assert ours.changes() == []


async def test_a_patch_is_applied_through_the_editor_or_undone(ours: Agent) -> None:
    for name in ("a.txt", "b.txt", "c.txt"):
        (ours.workspace / name).write_text("saved\n")
    buffers = Buffers(**{"a.txt": "unsaved\n"})
    fails = True

    def answer(method: str, params: dict[str, Any]) -> Any:
        if fails and method == "fs/write_text_file" and params["path"].endswith("b.txt"):
            return RpcFailed({"code": -32603, "message": "it is locked"})
        return buffers(method, params)

    change = patch(
        *("*** Update File: a.txt", "-unsaved", "+first"),
        *("*** Update File: b.txt", "-saved", "+second"),
        "*** Delete File: c.txt",
    )
    async with ours.open(answer, model=PATCHES):
        await ours.call(change)
        assert "it is locked" in ours.results[-1]
        assert (ours.workspace / "a.txt").read_text() == "unsaved\n"  # as it was in the editor
        assert (ours.workspace / "b.txt").read_text() == "saved\n"
        assert (ours.workspace / "c.txt").exists()
        fails, buffers.texts["a.txt"] = False, "unsaved\n"
        await ours.call(change)
        assert "Applied the patch" in ours.results[-1]
    assert (ours.workspace / "a.txt").read_text() == "first\n"
    assert (ours.workspace / "b.txt").read_text() == "second\n"
    assert not (ours.workspace / "c.txt").exists()


async def test_a_prompt_is_cancelled_while_the_editor_writes_a_patch(ours: Agent) -> None:
    for name in ("a.txt", "b.txt"):
        (ours.workspace / name).write_text("saved\n")
    buffers = Buffers()
    is_stuck = True

    def answer(method: str, params: dict[str, Any]) -> Any:
        done = buffers(method, params)
        stays = is_stuck and method == "fs/write_text_file" and params["path"].endswith("b.txt")
        return None if stays else done  # it was written, but there is no reply

    change = patch(
        *("*** Update File: a.txt", "-saved", "+first"),
        *("*** Update File: b.txt", "-saved", "+second"),
    )
    async with ours.open(answer, model=PATCHES):
        turn = ours.start(change)
        await ours.client.until(lambda: buffers.methods.count("write_text_file") == 2)
        is_stuck = False
        ours.client.notify("session/cancel", sessionId=ours.session)
        assert (await ours.client.result(turn))["stopReason"] == "cancelled"
        assert [n["method"] for n in ours.client.notices] == ["$/cancel_request"]
    assert (ours.workspace / "a.txt").read_text() == "saved\n"
    assert (ours.workspace / "b.txt").read_text() == "saved\n"


async def test_an_editor_that_closes_while_it_is_asked_leaves_nothing(ours: Agent) -> None:
    (ours.workspace / "a.txt").write_text("saved\n")

    def answer(method: str, params: dict[str, Any]) -> Any:
        return None

    async with ours.open(answer):
        ours.start(read("a.txt"))
        await ours.client.until(lambda: ours.client.requests)
        # Leaving the block closes our side: the process ends by itself, with code 0.
    assert (ours.workspace / "a.txt").read_text() == "saved\n"
    assert os.listdir(ours.workspace) == ["a.txt"]


async def test_the_files_of_two_sessions_are_asked_for_by_their_sessions(
    ours: Agent, tmp_path: Path
) -> None:
    other = tmp_path / "second"
    other.mkdir()
    for folder in (ours.workspace, other):
        (folder / "a.txt").write_text("saved\n")
    buffers = Buffers()
    async with ours.open(buffers):
        second = await ours.client.session(other)
        ours.calls = [edit("a.txt", "saved", "edited")]
        turns = [
            ours.client.start("session/prompt", sessionId=id, prompt=blocks("go"))[1]
            for id in (ours.session, second)
        ]
        for turn in turns:
            await ours.client.result(turn)
    asked = {(params["sessionId"], params["path"]) for _, params in buffers.requests}
    assert asked == {(ours.session, f"{ours.workspace}/a.txt"), (second, f"{other}/a.txt")}


@pytest.mark.deep
@pytest.mark.gemini_cli
async def test_the_gemini_cli_behind_corral_writes_through_the_editor(workspace: Path) -> None:
    (workspace / "a.txt").write_text("saved\n")
    buffers = Buffers(**{"a.txt": "unsaved\nsecond\n"})
    change = {"old_string": "unsaved", "new_string": "edited", "instruction": "edit it"}
    calls = [
        Call("write_file", {"file_path": f"{workspace}/b.txt", "content": "new\n"}),
        Call("replace", {"file_path": f"{workspace}/a.txt", **change}),
    ]

    def turn(request: Any) -> Turn:
        done = len(request.tool_results)
        return Turn(calls=[calls[done]]) if done < len(calls) else Turn(text="done")

    command = ("--agent", "gemini-acp", "--program", installed("gemini-acp"))
    with ModelServer(turn) as model:
        async with editor(*command, env=model.env, answer=buffers) as client:
            await client.initialize(fs=BOTH)
            await client.prompt(await client.session(workspace), "go")
    assert buffers.methods.count("write_text_file") == 2
    assert (workspace / "b.txt").read_text() == "new\n"
    assert (workspace / "a.txt").read_text() == "edited\nsecond\n"


async def test_what_an_agent_behind_corral_asks_of_its_client_goes_to_the_editor(
    workspace: Path, tmp_path: Path
) -> None:
    (workspace / "a.txt").write_text("saved")
    (tmp_path / "secret.txt").write_text("secret")
    (workspace / "way").symlink_to(tmp_path)
    buffers = Buffers(**{"a.txt": "unsaved"})
    orders = [
        f"read {workspace}/a.txt",
        f"write {workspace}/b.txt new",
        f"read {workspace}/absent.txt",
        f"read {workspace}/way/secret.txt",
        f"write {tmp_path}/secret.txt new",
        f"write {workspace}/.vscode/tasks.json new",
    ]
    async with editor("--agent", agent(), "--approve", "edits", "--no-strict", answer=buffers) as e:
        await e.initialize(fs=BOTH)
        session = await e.session(workspace)
        await e.prompt(session, "\n".join(orders))
        text = e.text
    assert "unsaved" in text
    assert (workspace / "b.txt").read_text() == "new"
    assert "not found" in text
    assert [Path(params["path"]).name for _, params in buffers.requests] == [
        *("a.txt", "b.txt", "absent.txt"),
    ]
    assert (tmp_path / "secret.txt").read_text() == "secret"
    events = list(store.find(session).events())
    changed = [(Path(e.path).name, e.kind) for e in events if isinstance(e, FileChange)]
    assert ("b.txt", "created") in changed
