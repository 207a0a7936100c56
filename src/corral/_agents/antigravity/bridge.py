"""Google's Antigravity, as a program that speaks the Agent Client Protocol on stdin and stdout.

``python -I -S bridge.py PACKAGES SETTINGS`` uses the package ``google-antigravity`` in
the folder ``PACKAGES``, its program ``localharness``, and the packages beside it. It runs in a
separate process and imports nothing of corral, whose packages may differ. The key is in
``GEMINI_API_KEY`` and the URL of the service in ``GOOGLE_GEMINI_BASE_URL``. ``SETTINGS`` is JSON,
see ``Settings``.

Theory of operation
-------------------
- A session is one ``Agent`` of the package, which starts one process of the harness (150 MB). The
  harness stores the conversation after each step, so a session of an earlier process can be
  resumed. A turn that fails ends the harness, and so does a new session where ``MOST_IDLE`` others
  are idle; the next prompt starts another harness, which resumes the conversation.
- The package runs a hook before every tool call, those of MCP servers too, and the call waits for
  it. The hook reports the call and requests permission. A hook that fails denies the call. The
  package decodes URLs among the paths otherwise than the harness does, so an allowed call is made
  with the paths that were reported.
- Commands are run here, by ``run_command``. The harness has such a tool too, but with it comes
  ``manage_task``, for which no hook runs: the model could type anything into a command that was
  allowed. That tool also keeps a turn open until the last command in the background has ended.
- Results come by a second hook, which may run twice for a call: the first result counts. Text and
  thoughts come as steps. What comes is written at once, so the reply to a prompt is the last
  message of its turn.
- A prompt of a session that is still working is refused. A cancelled prompt is answered when the
  harness has stopped.
- When stdin ends, all sessions are closed, and their processes with them.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import uuid
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, TypeAlias, TypedDict

if TYPE_CHECKING:
    from google.antigravity import Agent, LocalAgentConfig, types
    from google.antigravity.hooks import hooks

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
Object: TypeAlias = dict[str, Json]

KEY, URL = "GEMINI_API_KEY", "GOOGLE_GEMINI_BASE_URL"
PACKAGE = "google-antigravity"
LONGEST_LINE = 256 * 1024 * 1024
LARGEST_OUTPUT = 2**31 - 1
"""Of a tool of an MCP server: by default, what is longer than 4,096 bytes becomes a file."""
SHELL = "shell"
COMMAND_SECONDS = 600
COMMAND_OUTPUT = 100_000
PATHS = ("AbsolutePath", "TargetFile", "DirectoryPath", "SearchPath", "SearchDirectory")
"""The arguments with a path."""
CONTROL = r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]"
"""What the package and the harness replace by a blank."""
MOST_IDLE = 2
INVALID_CALLS = 100
"""In a row, of tools that do not exist or with wrong arguments: the turn then ends."""
UNAUTHENTICATED, FAILED, BAD_PARAMS, NO_METHOD = -32000, -32603, -32602, -32601
ALLOW, DENY = "allow_once", "reject_once"


class Settings(TypedDict):
    model: str
    tools: list[str]
    """Those that the model is offered."""
    folder: str
    """Where conversations are stored."""
    retries: int
    """Of a model call that failed."""


class Refused(Exception):
    """The reply to a request that fails."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Server:
    """Reads the requests of the client, and answers them."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        # The commands of the model inherit the environment.
        self.key = os.environ.pop(KEY, "")
        self.url = os.environ.pop(URL, "") or None
        self._sessions: dict[str, BridgeSession] = {}
        self._waiting: dict[str, asyncio.Future[Object]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def update(self, session: str, kind: str, **fields: Json) -> None:
        update = {"sessionUpdate": kind, **fields}
        _send(method="session/update", params={"sessionId": session, "update": update})

    async def ask(self, method: str, params: Object) -> Object:
        """The result of a request to the client; empty if it replies with an error."""
        number = uuid.uuid4().hex
        reply: asyncio.Future[Object] = asyncio.get_running_loop().create_future()
        self._waiting[number] = reply
        _send(id=number, method=method, params=params)
        try:
            return await reply
        finally:
            del self._waiting[number]

    async def serve(self) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=LONGEST_LINE)
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := await reader.readline():
            message = json.loads(line)
            if "method" in message:
                task = asyncio.ensure_future(self._answer(message))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            elif (reply := self._waiting.get(message.get("id"))) and not reply.done():
                reply.set_result(_object(message.get("result")))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for session in self._sessions.values():
            await session.close()

    async def _answer(self, message: Object) -> None:
        reply: Object
        try:
            reply = {"result": await self._call(message["method"], _object(message.get("params")))}
        except Refused as error:
            reply = {"error": {"code": error.code, "message": str(error)}}
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            reply = {"error": {"code": FAILED, "message": text}}
        if "id" in message:
            _send(id=message["id"], **reply)

    async def _call(self, method: Json, params: Object) -> Json:
        match method:
            case "initialize":
                return _initialize_result()
            case "session/new":
                name = uuid.uuid4().hex
                await self._open(name, params, "create_only")
                return {"sessionId": name}
            case "session/resume":
                await self._open(str(params["sessionId"]), params, "resume")
                return {}
            case "session/prompt":
                return await self._session(params).prompt(_objects(params["prompt"]))
            case "session/cancel":
                await self._session(params).cancel()
                return {}
            case _:
                raise Refused(NO_METHOD, f"no method {method}")

    def _session(self, params: Object) -> BridgeSession:
        session = self._sessions.get(str(params.get("sessionId")))
        if session is None:
            raise Refused(BAD_PARAMS, "no such session")
        return session

    async def _open(self, name: str, params: Object, mode: str) -> None:
        if not self.key:
            raise Refused(UNAUTHENTICATED, f"{KEY} is not set")
        idle = [session for session in self._sessions.values() if session.is_idle]
        for session in idle[: len(idle) + 1 - MOST_IDLE]:
            await session.close()
        session = BridgeSession(self, name)
        await session.open(params, mode)
        self._sessions[name] = session


class BridgeSession:
    """One conversation."""

    def __init__(self, server: Server, name: str) -> None:
        self._server = server
        self.name = name
        self._agent: Agent | None = None
        self._params: Object = {}
        self._cwd = ""
        self._changing = asyncio.Lock()
        """Held while the harness is started or ended."""
        self._is_working = False
        self._was_cancelled = False
        self._open_calls: set[str] = set()
        self._allowed_commands: list[str] = []

    async def open(self, params: Object, mode: str) -> None:
        self._params, self._cwd = params, str(params["cwd"])
        await self._started(mode)

    @property
    def is_idle(self) -> bool:
        return self._agent is not None and not self._is_working

    async def _started(self, mode: str) -> Agent:
        from google.antigravity import Agent

        async with self._changing:
            if self._agent is None:
                agent = Agent(_agent_config(self._server, self, self._params, mode))
                await agent.__aenter__()
                self._agent = agent
            return self._agent

    async def close(self) -> None:
        async with self._changing:
            agent, self._agent = self._agent, None
            if agent is not None:
                with contextlib.suppress(Exception):  # a harness that failed is reported again
                    await agent.__aexit__(None, None, None)

    async def cancel(self) -> None:
        if self._is_working and self._agent is not None:
            self._was_cancelled = True
            await self._agent.conversation.cancel()

    async def prompt(self, blocks: Iterable[Object]) -> Json:
        from google.antigravity import types

        if self._is_working:
            raise Refused(BAD_PARAMS, "the session is still working on a prompt")
        self._is_working, self._was_cancelled = True, False
        failure, usage = "", dict[str, Json]()
        try:
            conversation = (await self._started("create_or_resume")).conversation
            await conversation.send([part for block in blocks for part in _content(block)])
            async for step in conversation.receive_steps():
                failure = self._report(step, failure)
            usage = _usage(conversation.last_turn_usage)
        except types.AntigravityCancelledError:
            self._was_cancelled = True
        except Refused:
            raise
        except Exception as error:  # also of the connection to the harness
            failure = failure or str(error) or type(error).__name__
        finally:
            if failure and not self._was_cancelled:
                await self.close()
            self._is_working = False
        if self._was_cancelled:
            return {"stopReason": "cancelled"}
        if failure:
            raise Refused(FAILED, failure)
        return {"stopReason": "end_turn", **usage}

    def _report(self, step: types.Step, failure: str) -> str:
        """Report the text of a step. Returns the error that the turn ends with if no more text
        comes."""
        if step.source.value == "SYSTEM" and step.status.value == "ERROR":
            return step.content or step.error or "an error without a message"
        if step.source.value != "MODEL" or step.target.value != "TARGET_USER" or step.depth:
            return failure
        if step.status.value == "ERROR":
            return failure
        message = f"{step.trajectory_id}:{step.step_index}"
        for kind, text in (
            ("agent_thought_chunk", step.thinking_delta),
            ("agent_message_chunk", step.content_delta),
        ):
            if text:
                block: Object = {"type": "text", "text": text}
                self._server.update(self.name, kind, content=block, messageId=message)
                failure = ""
        return failure

    async def may_call(self, call: types.ToolCall) -> str:
        """Report a call and request permission for it. Returns why it is denied, or nothing."""
        name = f"{call.server_name}__{call.name}" if call.server_name else str(call.name)
        given: Object = dict(call.args)
        number = call.id or uuid.uuid4().hex
        facts: Object = {
            "toolCallId": number,
            "title": name,
            "rawInput": given,
            "locations": [{"path": str(path)} for path in _paths(call).values()],
        }
        self._open_calls.add(number)
        self._server.update(self.name, "tool_call", status="pending", **facts)
        options: list[Json] = [
            {"optionId": kind, "name": kind, "kind": kind} for kind in (ALLOW, DENY)
        ]
        params: Object = {"sessionId": self.name, "toolCall": facts, "options": options}
        reply = await self._server.ask("session/request_permission", params)
        is_allowed = _object(reply.get("outcome")).get("optionId") == ALLOW
        refusal = "" if is_allowed else "permission was denied"
        if refusal:
            self.end_call(number, "failed", refusal)
        elif name == SHELL:
            self._allowed_commands.append(str(given.get("command")))
        return refusal

    def end_call(self, number: str, status: str, text: str) -> None:
        if number not in self._open_calls:
            return
        self._open_calls.remove(number)
        block: Json = {"type": "content", "content": {"type": "text", "text": text}}
        self._server.update(
            self.name, "tool_call_update", toolCallId=number, status=status, content=[block]
        )

    async def run_command(self, command: str) -> str:
        """The output of a command that was allowed, and how it ended."""
        if command not in self._allowed_commands:
            return "permission was denied"
        self._allowed_commands.remove(command)
        with tempfile.TemporaryFile() as output:
            process = await asyncio.create_subprocess_exec(
                shutil.which("bash") or "sh",
                "-c",
                command,
                cwd=self._cwd,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            try:
                code = await asyncio.wait_for(process.wait(), COMMAND_SECONDS)
                end = f"exit code {code}"
            except TimeoutError:
                os.killpg(process.pid, signal.SIGKILL)
                end = f"killed after {COMMAND_SECONDS} seconds"
            size = output.seek(0, os.SEEK_END)
            output.seek(0)
            text = output.read(COMMAND_OUTPUT).decode("utf-8", "replace")
        more = size - COMMAND_OUTPUT
        left_out = f"\n({more} bytes are left out)" if more > 0 else ""
        return f"{text}{left_out}\n({end})"


def _send(**message: Json) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def _object(value: Json) -> Object:
    return value if isinstance(value, dict) else {}


def _objects(value: Json) -> list[Object]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _paths(call: types.ToolCall) -> Object:
    """The arguments of a call that are paths."""
    return {} if call.server_name else {key: call.args[key] for key in PATHS if key in call.args}


def _pairs(value: Json) -> dict[str, str]:
    return {str(each["name"]): str(each["value"]) for each in _objects(value)}


def _agent_config(
    server: Server, session: BridgeSession, params: Object, mode: str
) -> LocalAgentConfig:
    from google.antigravity import LocalAgentConfig, types

    settings = server.settings
    endpoint = types.GeminiAPIEndpoint(base_url=server.url, api_key=server.key)
    tools = {*settings["tools"]}
    return LocalAgentConfig(
        models=[
            types.ModelTarget(
                name=settings["model"], types=[types.ModelType.TEXT], endpoint=endpoint
            )
        ],
        api_key=server.key,
        workspaces=[str(params["cwd"])],
        hooks=_make_hooks(session),
        policies=[],
        capabilities=types.CapabilitiesConfig(
            enable_subagents=False,
            enabled_tools=[types.BuiltinTools(name) for name in tools - {SHELL}],
            mcp_max_output_bytes=LARGEST_OUTPUT,
        ),
        tools=[_make_shell(session)] if SHELL in tools else [],
        mcp_servers=[_mcp_server(each) for each in _objects(params.get("mcpServers"))],
        conversation_id=session.name,
        session_continuation_mode=types.SessionContinuationMode(mode),
        save_dir=os.path.join(settings["folder"], "conversations"),
        app_data_dir=os.path.join(settings["folder"], "data"),
        retry_config=types.RetryConfig(
            api_retry=types.ModelAPIRetryConfig(max_retries=settings["retries"]),
            model_output_retry=types.ModelOutputRetryConfig(max_retries=INVALID_CALLS),
        ),
    )


def _make_shell(session: BridgeSession) -> Callable[[str], Awaitable[str]]:
    """The tool that runs commands. The package copies methods, so it is a function."""

    async def shell(command: str) -> str:
        """Run a command with bash in the workspace.

        It has no input, and is ended after 10 minutes. A program that is to go on must be started
        in the background.

        Args:
            command: The command line.
        """
        return await session.run_command(command)

    return shell


def _make_hooks(session: BridgeSession) -> list[hooks.Hook]:
    from google.antigravity import types
    from google.antigravity.hooks import hooks

    class Before(hooks.PreToolCallDecideHook):
        async def run(self, context: hooks.HookContext, data: types.ToolCall) -> types.HookResult:
            refusal = await session.may_call(data)
            changed = _paths(data) or None
            return types.HookResult(allow=not refusal, message=refusal, modified_args=changed)

    class After(hooks.PostToolCallHook):
        async def run(self, context: hooks.HookContext, data: types.ToolResult) -> None:
            status = "failed" if data.error else "completed"
            session.end_call(data.id or "", status, data.error or _text(data.result))

    return [Before(), After()]


def _text(result: object) -> str:
    """The text of a result: that of ``shell`` comes in JSON."""
    try:
        parsed: Json = json.loads(str(result))
    except ValueError:
        return str(result)
    found = _object(parsed)
    return str(found["result"]) if found.keys() == {"result"} else str(result)


def _mcp_server(server: Object) -> types.McpStdioServer | types.McpStreamableHttpServer:
    from google.antigravity import types

    name = str(server["name"])
    if "url" in server:
        return types.McpStreamableHttpServer(
            name=name,
            url=str(server["url"]),
            headers=_pairs(server.get("headers")),
            force_all_tools_eager=True,
        )
    words = server.get("args")
    return types.McpStdioServer(
        name=name,
        command=str(server["command"]),
        args=[str(word) for word in words] if isinstance(words, list) else [],
        env=_pairs(server.get("env")),
        force_all_tools_eager=True,
    )


def _content(block: Object) -> Iterable[str | types.Media]:
    """The parts of a prompt that a block becomes."""
    from google.antigravity import types

    match block:
        case {"type": "text", "text": str(text)}:
            yield _checked(text, "the prompt")
        case {"type": "image" | "audio", "data": str(data), "mimeType": str(kind)}:
            yield types.from_bytes(base64.b64decode(data), kind)
        case {"type": "resource", "resource": {"uri": str(uri), "text": str(text)}}:
            yield f"The content of {uri}:\n{_checked(text, uri)}"
        case {"type": "resource", "resource": {"uri": str(uri), "blob": str(data), **more}}:
            kind = str(more.get("mimeType") or "application/octet-stream")
            try:
                part = types.from_bytes(base64.b64decode(data), kind)
            except ValueError as error:
                raise Refused(BAD_PARAMS, f"{uri}: {error}") from error
            yield f"The content of {uri} follows."
            yield part
        case _:
            raise Refused(BAD_PARAMS, f"a block of type {block.get('type')} is not taken")


def _checked(text: str, what: str) -> str:
    found = re.search(CONTROL, text)
    if found is not None:
        sign = f"U+{ord(found[0]):04X}"
        message = f"{what} contains {sign}, a control character, which Antigravity would replace"
        raise Refused(BAD_PARAMS, message)
    return text


def _usage(counts: types.UsageMetadata | None) -> Object:
    if counts is None:
        return {}
    cached, thoughts = counts.cached_content_token_count or 0, counts.thoughts_token_count or 0
    usage: Object = {
        "inputTokens": (counts.prompt_token_count or 0) - cached,
        "cachedReadTokens": cached,
        "outputTokens": (counts.candidates_token_count or 0) + thoughts,
        "thoughtTokens": thoughts,
        "totalTokens": counts.total_token_count or 0,
    }
    return {"usage": usage}


def _initialize_result() -> Object:
    from importlib.metadata import version

    return {
        "protocolVersion": 1,
        "agentInfo": {"name": PACKAGE, "version": version(PACKAGE)},
        "agentCapabilities": {
            "loadSession": False,
            "sessionCapabilities": {"resume": {}},
            "promptCapabilities": {"image": True, "audio": True, "embeddedContext": True},
            "mcpCapabilities": {"http": True, "sse": False},
        },
        "authMethods": [],
    }


def main(packages: str, settings: str) -> None:
    sys.path.insert(0, packages)
    asyncio.run(Server(json.loads(settings)).serve())


if __name__ == "__main__":
    main(*sys.argv[1:])
