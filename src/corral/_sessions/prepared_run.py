"""The facts that are needed to start an agent, and the text to send to it.

``sessions.prepare`` makes a ``PreparedRun`` when all checks are passed.
"""

from __future__ import annotations

import asyncio
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import msgspec

from corral._agents.report import UNHELD, CompiledPolicy
from corral._agents.shared.errors import unauthenticated
from corral._agents.spec import (
    AcpTransport,
    AgentSpec,
    Launch,
    LaunchContext,
    MeterRoute,
    TurnEnding,
)
from corral._core.protected_paths import Links
from corral._protocol.ndjson import TurnEnd
from corral._sessions.proof import ProgramProof
from corral._system import environment, fs, programs
from corral._system.clock import random_hex
from corral._system.path_guard import PathGuard
from corral._system.process.process import Exit
from corral._system.threads import in_own_thread
from corral.errors import (
    AuthenticationFailed,
    CorralError,
    ProcessFailed,
    PromptError,
    StartupTimeout,
)
from corral.options import RunOptions
from corral.prompt import Prompt, check_prompt
from corral.values import Json, McpServer

if TYPE_CHECKING:
    from corral._metering.budget import Budget
    from corral._metering.rate_limits import LimitWaits
    from corral._sessions.tools.hooks import ToolCallHook
    from corral._system.sandbox.sandbox import Support
    from corral._verification.check import Check


Answers: TypeAlias = Literal["nothing", "questions", "permissions", "all"]
"""What a person can be asked: ``all`` is permissions and questions."""


class RecordingFile(msgspec.Struct, frozen=True):
    """Where the communication with the agent's program is recorded."""

    path: str
    run: str
    """Its name in the file: the processes of one run share a file."""


class PreparedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run whose options, folders, program, credentials and policy were checked."""

    agent: AgentSpec
    run: RunOptions
    cwd: str
    program: programs.FoundProgram
    proof: ProgramProof = ProgramProof()
    """What is known about it."""
    environment: environment.Environment
    compiled: CompiledPolicy
    servers: tuple[McpServer, ...]
    """The MCP servers that the agent gets."""
    linked: tuple[str, ...]
    """Names in the real home that the private one links to."""
    credentials: tuple[str, ...]
    project_files: tuple[str, ...]
    user_settings: dict[str, Json]
    helpers: dict[str, str]
    """Programs that the agent starts itself: name → path."""
    guard: PathGuard
    """The folders of the run. Links are resolved before the agent starts and can change them."""
    auth: str | None = None
    """Which kind of credentials is billed; None if unknown."""
    hook: ToolCallHook | None = None
    """Decides about each tool call of the agent that the policy does not deny."""
    sandbox: Support | None = None
    """The sandbox that the agent is started in."""
    sandbox_reason: str = ""
    """Why it is used."""
    meter: MeterRoute | None = None
    """How the model calls are counted by the model proxy; None if they are not."""
    meter_reason: str | None = None
    """Why corral does not count the model calls."""
    budget: Budget | None = None
    """What the model calls may use."""
    limit_waits: LimitWaits | None = None
    """The waits for rate limits; None if the run fails at one."""
    recording: RecordingFile | None = None
    editor: EditorFiles | None = None
    """Through which the agent reads and writes files."""
    checks: tuple[Check, ...] = ()
    """What the run must pass when the agent has ended."""

    def env(self, launch: Launch, run_id: str = "") -> dict[str, str]:
        """The environment of the program. ``run_id`` is the turn that it is started for, whose
        span it gets."""
        passed = self.environment.values.items()
        env = {k: v for k, v in passed if k not in launch.hidden_env} | launch.env
        if launch.path_folders:
            folders = [env["PATH"]] if env.get("PATH") else []
            env["PATH"] = os.pathsep.join([*folders, *launch.path_folders])
        if self.run.otel is not None and run_id:
            from corral._telemetry import trace_context

            env[trace_context.VARIABLE] = trace_context.turn_header(run_id, self.run.env)
        return env

    @property
    def acp(self) -> AcpTransport:
        """The transport of an agent that is known to speak ACP. Raises ``TypeError``."""
        if not isinstance(self.agent.transport, AcpTransport):
            raise TypeError(f"{self.agent.name} does not speak the Agent Client Protocol")
        return self.agent.transport

    def denied_without_asking(self, *, asks: bool) -> tuple[str, ...]:
        """Capabilities that the policy would ask about and that are denied because no one can be
        asked. What nothing enforces is not denied. ``asks``: a person can be asked."""
        grants = self.compiled.grants
        if grants.is_native or asks:
            return ()
        return tuple(
            row.capability
            for row in self.compiled.report
            if grants.of(row.capability).would_ask
            and row.enforcer not in UNHELD
            and (row.capability != "mcp" or self.run.mcp_servers)
        )

    def links(self) -> Links:
        """The links that ``launch_context`` needs, if the agent cannot ask about them. Looks at
        every file of the workspace and of the policy's folders. Raises ``StartupTimeout``."""
        if not self._needs_links:
            return Links()
        try:
            return self.guard.links(seconds=self._startup_time)
        except TimeoutError as error:
            raise self._links_timeout(str(error)) from error

    async def find_links(self) -> Links:
        """As ``links``, while the event loop goes on. The walk ends by itself once nobody waits."""
        if not self._needs_links:
            return Links()
        try:
            async with asyncio.timeout(self._startup_time + 1):  # a file system may hang
                return await in_own_thread(self.links)
        except TimeoutError as error:
            raise self._links_timeout("the file system does not answer") from error

    @property
    def _needs_links(self) -> bool:
        return self.agent.needs_links and not self.run.policy.is_unlimited

    @property
    def _startup_time(self) -> float:
        return min(self.run.startup_timeout, self.run.timeout)

    def _links_timeout(self, reason: str) -> StartupTimeout:
        return StartupTimeout(
            f"the links in the workspace and the policy's folders were not known after"
            f" {self._startup_time:g}s: {reason}",
            hint="Name smaller folders in the policy's writable and in include_directories, raise"
            " startup_timeout, or use an agent that asks before it writes (-acp).",
        )

    def launch_context(self, folder: Path, links: Links) -> LaunchContext:
        """What the agent's launch needs to know, for a session stored in ``folder``. With no
        ``links``, only credentials and files are checked."""
        return LaunchContext(
            program=self.program.argv,
            version=self.program.version,
            grants=self.compiled.grants,
            controls=self.compiled.controls,
            cwd=self.cwd,
            home=str(folder / "home"),
            tmp=str(folder / "tmp"),
            images=str(folder / "images"),
            env=self.environment.agent_values,
            credentials=self.credentials,
            project_files=self.project_files,
            user_settings=self.user_settings,
            links=links,
            helpers=self.helpers,
            key=random_hex(16),
        )

    async def check_launch(self, folder: Path) -> None:
        """Raise what would keep the agent from being launched, such as a repository that is not
        trusted. Nothing is started or written."""
        self.launch(self.launch_context(folder, await self.find_links()))

    def launch(self, context: LaunchContext, prompt: str = "", resume: str | None = None) -> Launch:
        """How the agent is started for one prompt. Raises what keeps it from being launched."""
        try:
            return self.agent.launch(self.run, context, prompt, resume)
        except AuthenticationFailed as error:
            error.hint = self._with_path(error.hint)
            raise

    def _with_path(self, hint: str | None) -> str | None:
        """A hint names the program with which one signs in. One that corral installed is not on
        ``PATH``: it is named by its path."""
        if not hint or self.program.source != "managed":
            return hint
        name, path = self.agent.programs[0], shlex.quote(self.program.path)
        for end in (" ", "`"):
            hint = hint.replace(f"`{name}{end}", f"`{path}{end}")
        return hint

    def explain(
        self, ended: Exit, stderr: str, finish: TurnEnd | None = None, *, answered: bool = False
    ) -> CorralError | None:
        """Why the agent ended like this: its sandbox could not be built, or what the agent says
        about it. None for a success, and if it is not known."""
        ending = TurnEnding(
            code=ended.code,
            signal=ended.signal,
            stderr=stderr,
            finish=finish,
            answered=answered,
            run=self.run,
        )
        if self.sandbox is not None and ending.code == 1:
            from corral._system.sandbox import diagnosis

            if (error := diagnosis.startup_error(stderr)) is not None:
                return error
        agent = self.agent
        why = agent.explain(ending)
        if isinstance(why, AuthenticationFailed):
            why.hint = self._with_path(why.hint)
        if finish is None or type(why) is not ProcessFailed:
            return why
        # An agent may not say, or corral may not know, in which words its service refuses a key.
        keys = f"set {' or '.join(agent.secret_env)}" if agent.secret_env else "pass it with --env"
        hint = f"Log in with {agent.title} itself, or give it a valid key: {keys}."
        return unauthenticated(why.message, hint, finish.kind) or why


def resolve_prompt(prepared: PreparedRun, prompt: str | Prompt[Any] | None) -> str:
    """The text to send: ``prompt_file`` takes precedence over ``prompt``."""
    if isinstance(prompt, Prompt):
        prompt = prompt.render()
    limit = prepared.agent.prompt_limit
    path = prepared.run.prompt_file
    if path is None:
        if prompt is None:
            raise PromptError("there is no prompt", hint="Give prompt or prompt_file.")
        return check_prompt(prompt, limit)
    full = os.path.join(prepared.cwd, path)
    if not fs.exists(full):
        raise PromptError(f"the prompt file does not exist: {full}")
    try:
        if fs.status(full).st_size > limit:
            raise PromptError(
                f"the prompt file is over the {limit:,} bytes that this agent accepts"
            )
        text = fs.read_text(Path(full))
    except UnicodeDecodeError as error:
        raise PromptError(f"the prompt file is not UTF-8: {full}: {error}") from error
    except OSError as error:
        raise PromptError(f"the prompt file cannot be read: {full}: {error.strerror}") from error
    return check_prompt(text, limit)


class EditorError(Exception):
    """The editor did not do what it was asked; the text says why."""

    def __init__(self, why: str, *, is_missing: bool = False) -> None:
        super().__init__(why)
        self.is_missing = is_missing
        """It has no such file."""


class EditorTimeout(EditorError):
    """It did not answer in time. Whether it has written a file is not known."""


class EditorFiles(Protocol):
    """The files of one session that an editor reads and writes (``corral acp``): it has text that
    is not saved yet. What an agent may read or write is decided before the editor is asked, with
    all links resolved: the paths are real paths. The methods raise ``EditorError`` and end in
    bounded time."""

    def reads(self, path: str) -> bool:
        """Whether this file is read through the editor."""
        ...

    def writes(self, path: str) -> bool:
        """Whether this file is written through the editor."""
        ...

    async def read(self, path: str, line: int | None = None, limit: int | None = None) -> str:
        """The text of a file, or ``limit`` lines of it from ``line`` (counted from 1)."""
        ...

    async def write(self, path: str, content: str) -> None:
        """Replace the text of a file, or create the file."""
        ...
