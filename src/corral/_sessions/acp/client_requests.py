"""What an agent requests of its client in one session: permissions, a person's answers, files.

Permissions are answered by the policy of the current prompt or by a person, questions by a person.
Files are read and written below the folders of the run, where the policy or a person allows it:
every path is checked by the guard after links are resolved. An editor that drives corral and has
the file reads or writes it (``editor_files``). Otherwise it is opened here, without following links
(``path_guard.open_beneath``): if a folder is replaced by a link meanwhile, that is an error.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from corral._protocol.acp.client import (
    AcpClient,
    AcpPermissionRequest,
    AcpQuestion,
    Command,
    FileRequest,
    PermissionWithdrawn,
)
from corral._protocol.common_events import named_paths
from corral._protocol.ndjson import RawEvent
from corral._sessions.permissions import (
    Asker,
    PermissionAnswer,
    PermissionQuestion,
    PermissionQuestions,
    broker_of,
)
from corral._sessions.prepared_run import EditorError, EditorFiles
from corral._system import fs
from corral._system.path_guard import Access, PathGuard, PathRefused, open_beneath
from corral.events import (
    FileChange,
    PermissionDecision,
    PermissionRequest,
    QuestionAnswer,
)
from corral.policy import Action
from corral.values import Json, JsonObject, as_object, as_text

if TYPE_CHECKING:
    from corral._core.question_replies import QuestionReply
    from corral._sessions.prepared_run import PreparedRun
    from corral._sessions.store import SessionRecord


_OWN_PREFIXES = ("mcp_corral_", "mcp__corral__", "corral_")
"""How agents name the tools of corral's MCP server."""


class ClientRequests:
    """Answers the requests of one session, by the policy of a run (see ``broker_of``), below the
    folders of that run. ``emit`` gets the events, ``carry_out`` executes the
    commands of the answers; it holds the connection weakly."""

    def __init__(
        self,
        session_id: str,
        acp: AcpClient,
        policy: tuple[PreparedRun, Asker | None, SessionRecord | None],
        emit: Callable[[RawEvent], None],
        carry_out: Callable[[list[Command]], None],
    ) -> None:
        self._session_id = session_id
        self._acp = acp
        self._emit = emit
        self._carry_out = carry_out
        self._questions = PermissionQuestions(broker_of(*policy), emit, set())
        self._files = WorkspaceFiles(policy[0].guard)
        self._editor = policy[0].editor
        self._passed_on: set[asyncio.Task[None]] = set()
        """Requests for files that the editor has not answered yet. Each ends in bounded time."""
        self._asked: set[str] = set()
        """Ids of questions, to tell them from permission requests."""
        self._granted_reads: set[str] = set()
        """Paths that a person let the agent read."""
        self._granted_writes: set[str] = set()
        """Paths that a person allowed to write once; the agent then asks us to write them."""
        self._granted_all_writes = False

    def use_policy(
        self, prepared: PreparedRun, ask: Asker | None, record: SessionRecord | None
    ) -> None:
        """From now on requests are answered by the policy of this run."""
        self._questions.broker = broker_of(prepared, ask, record)
        self._files = WorkspaceFiles(prepared.guard)
        self._editor = prepared.editor

    @property
    def is_asking(self) -> bool:
        """Whether the agent waits for a person's answer."""
        return self._questions.is_asking

    async def close(self) -> None:
        """Cancel the open questions, and the requests for files."""
        for task in self._passed_on:
            task.cancel()
        if self._passed_on:
            await asyncio.wait([*self._passed_on])
        await self._questions.close()

    def handle_permission_request(self, ask: AcpPermissionRequest) -> None:
        """The agent requests a permission: answered by the policy, or by a person."""
        call = ask.call
        request = PermissionRequest(
            str(ask.request_id),
            call_id=call.call_id,
            kind=call.kind,
            title=call.title,
            input=call.input,
        )
        self._emit(request)
        own = call.kind == "mcp" and call.name.startswith(_OWN_PREFIXES)
        action = Action(call.name, call.kind, ask.command, own=own)
        named = (*call.paths, *named_paths(call.name, call.kind, call.input))
        self._questions.put(PermissionQuestion(request, action, named, partial(self._reply, ask)))

    def handle_question(self, asked: AcpQuestion) -> None:
        """The agent asks a person."""
        self._asked.add(asked.question.request_id)
        self._emit(asked.question)
        self._questions.put_question(asked.question, partial(self._answer_question, asked))

    def handle_withdrawal(self, withdrawn: PermissionWithdrawn) -> None:
        """The agent took a request back."""
        request_id = str(withdrawn.request_id)
        if not self._questions.withdraw(request_id):
            return
        if request_id in self._asked:
            self._emit(QuestionAnswer(request_id, "cancelled", reason="the agent"))
        else:
            self._emit(PermissionDecision(request_id, "cancel", "agent"))

    def serve(self, request: FileRequest) -> None:
        """The agent wants to read or write a file through us."""
        params = as_object(request.params)
        path = params.get("path")
        reads = request.method == "fs/read_text_file"
        try:
            if not isinstance(path, str):
                raise PermissionError("no path was given")
            if not reads and not isinstance(params.get("content"), str):
                raise PermissionError("no content was given")
            self._check_permission(path, reads=reads)
            real = self._files.check(path, "read" if reads else "write")
            editor = self._editor
            if editor is not None and (editor.reads(real) if reads else editor.writes(real)):
                task = asyncio.get_running_loop().create_task(self._pass_on(request, editor, real))
                self._passed_on.add(task)
                task.add_done_callback(self._passed_on.discard)
                return
        except OSError as error:
            self._carry_out(self._acp.reject_file_request(request.request_id, str(error)))
            return
        self._serve_from_disk(request)

    async def _pass_on(self, request: FileRequest, editor: EditorFiles, real: str) -> None:
        """Let the editor that drives corral read or write the file."""
        params = as_object(request.params)
        content: Json = None
        try:
            if request.method == "fs/read_text_file":
                content = {"content": await editor.read(real, *_window(params))}
            else:
                is_new = not fs.exists(real)
                await editor.write(real, as_text(params.get("content")))
                self._emit(FileChange(real, "created" if is_new else "modified"))
        except EditorError as error:
            if error.is_missing:
                self._serve_from_disk(request)
                return
            answer = self._acp.reject_file_request(request.request_id, f"the editor: {error}")
        else:
            answer = self._acp.answer_file_request(request.request_id, content)
        self._carry_out(answer)

    def _serve_from_disk(self, request: FileRequest) -> None:
        params = as_object(request.params)
        path = as_text(params.get("path"))
        content: Json = None
        try:
            if request.method == "fs/read_text_file":
                content = {"content": self._files.read(path, *_window(params))}
            else:
                written, is_new = self._files.write(path, as_text(params.get("content")))
                self._emit(FileChange(str(written), "created" if is_new else "modified"))
            answer = self._acp.answer_file_request(request.request_id, content)
        except FileNotFoundError:
            answer = self._acp.answer_missing_file(request.request_id, path)
        except OSError as error:
            answer = self._acp.reject_file_request(request.request_id, str(error))
        self._carry_out(answer)

    def _check_permission(self, path: str, *, reads: bool) -> None:
        """Raises ``PermissionError`` if neither the policy nor a person has allowed it."""
        if reads:
            answer = self._questions.broker.policy_answer(Action("fs/read_text_file", "read"))
            if answer is not None and not answer.is_allowed:
                raise PermissionError(f"reading is not allowed ({answer.rule})")
            if answer is None and path not in self._granted_reads:
                raise PermissionError("reading needs a permission that was not given yet")
            return
        answer = self._questions.broker.policy_answer(Action("fs/write_text_file", "edit"))
        granted = self._granted_all_writes or path in self._granted_writes
        if not (granted if answer is None else answer.is_allowed):
            raise PermissionError("writing is not allowed")
        self._granted_writes.discard(path)

    def _reply(self, ask: AcpPermissionRequest, answer: PermissionAnswer) -> None:
        decision = answer.decision
        if answer.by == "person":
            # What a person allowed: the agent may ask us to read or write these files next.
            call = ask.call
            if call.kind == "read" and decision.startswith("allow"):
                self._granted_reads.update(call.paths)
            if call.kind == "edit" and decision == "allow_session":
                self._granted_all_writes = True
            if call.kind == "edit" and decision == "allow_once":
                self._granted_writes.update(call.paths)
        if decision == "cancel":
            self._carry_out(self._acp.cancel(self._session_id))
        if decision == "allow_session" and not self._questions.broker.is_unlimited:
            # An agent that may always do it asks no more, and paths and rules are not judged.
            decision = "allow_once"
        self._carry_out(self._acp.answer_permission(ask.request_id, ask.option_for(decision)))

    def _answer_question(self, asked: AcpQuestion, reply: QuestionReply) -> None:
        if reply.outcome == "cancelled":
            self._carry_out(self._acp.cancel(self._session_id))
        answers = reply.answers if reply.outcome == "answered" else None
        self._carry_out(self._acp.answer_question(asked.request_id, answers))


def _window(params: JsonObject) -> tuple[int | None, int | None]:
    """The lines that are to be read: the first one, and how many."""
    line, limit = params.get("line"), params.get("limit")
    return line if isinstance(line, int) else None, limit if isinstance(limit, int) else None


LARGEST = 64 * 1024 * 1024


class WorkspaceFiles:
    def __init__(self, guard: PathGuard) -> None:
        self._guard = guard

    def read(self, path: str, line: int | None = None, limit: int | None = None) -> str:
        """The text, or ``limit`` lines of it from ``line`` (counted from 1). Raises
        ``FileNotFoundError``, ``PermissionError`` or ``OSError``."""
        fd = self._open(self.check(path, "read"), path, "read", os.O_RDONLY)
        with os.fdopen(fd, "rb") as file:
            if os.fstat(fd).st_size > LARGEST:
                raise OSError(f"{path} is over {LARGEST:,} bytes")
            text = file.read(LARGEST + 1).decode("utf-8", "replace")
        if line is None and limit is None:
            return text
        lines = text.split("\n")
        lines = [f"{text}\n" for text in lines[:-1]] + lines[-1:]
        lines = lines[max(0, (line or 1) - 1) :]
        return "".join(lines if limit is None else lines[: max(0, limit)])

    def write(self, path: str, content: str) -> tuple[Path, bool]:
        """Write the text, folders included; the path that was written, and whether it is new.
        Raises ``PermissionError`` or ``OSError``."""
        real = self.check(path, "write")
        new = not os.path.lexists(real)
        fd = self._open(real, path, "write", os.O_WRONLY | os.O_CREAT)
        with os.fdopen(fd, "wb") as file:
            file.truncate()
            file.write(content.encode())
        return Path(real), new

    def _open(self, real: str, path: str, access: Access, flags: int) -> int:
        """A descriptor of a regular file. A pipe or a device would block the event loop."""
        root = self._guard.root_of(real, access)
        if real == root or os.path.isdir(real):
            raise OSError(f"not a regular file: {path}")
        if os.path.exists(real) and not os.path.isfile(real):
            raise OSError(f"not a regular file: {path}")
        fd = open_beneath(root, real, flags | os.O_NONBLOCK)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise OSError(f"not a regular file: {path}")
        return fd

    def check(self, path: str, access: Access) -> str:
        """The path without links. Raises ``PermissionError`` if it may not be used."""
        if not os.path.isabs(path):
            raise PermissionError(f"not an absolute path: {path}")
        try:
            return self._guard.check(path, access)
        except PathRefused as error:
            raise PermissionError(str(error)) from error
