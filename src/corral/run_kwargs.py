"""The keyword options of runs and prompts, for annotations. ``RunOptions`` is what they become.

At run time only the names of the keywords are needed, and creating these classes takes longer than
checking a run's options: the modules of a run import this one for type checkers only.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias, TypedDict

from corral._core.spending import LimitKwargs
from corral.options import (
    ApprovalMode,
    Inherit,
    NotifyOn,
    PermissionMode,
    ProbeMode,
    SandboxMode,
    Via,
)
from corral.policy import Policy, Preset
from corral.receipt import VerifyFrom
from corral.values import Effort, JsonObject, McpServer


class VerifyCheck(Protocol):
    """A check such as ``corral.files_exist`` and ``corral.command_succeeds`` make.

    ::

        corral.run_sync("gemini", "Fix it", verify=corral.command_succeeds("pytest -q"))
    """

    @property
    def name(self) -> str: ...

    def describe(self) -> JsonObject: ...


VerifyStep: TypeAlias = str | VerifyCheck | Callable[[Any], object]
"""A command for the shell, a check, or a function of the ``Result``, sync or async. A function
returns None or True if the work is done, a text that says what is wrong, or False."""
Verify: TypeAlias = VerifyStep | Sequence[VerifyStep]


class PromptKwargs(TypedDict, total=False):
    """The keyword options of one prompt of a session.

    ::

        options: PromptKwargs = {"timeout": 60, "policy": "reads"}
        await session.run("What does this project do?", **options)
    """

    timeout: float | str | None
    idle_timeout: float | str | None
    model: str | None
    reasoning_effort: Effort | None
    policy: Policy | Preset | None
    images: Sequence[str | os.PathLike[str]] | None
    audio: Sequence[str | os.PathLike[str]] | None
    attachments: Sequence[str | os.PathLike[str]] | None


class RunKwargs(LimitKwargs, total=False):
    """The keyword options of ``corral.run`` and ``corral.session``.

    ::

        options: corral.RunKwargs = {"policy": "edits", "timeout": 300}
        corral.run_sync("gemini-cli", "Fix the typo", **options)
    """

    cwd: str | os.PathLike[str] | None
    """The working directory."""
    model: str | None
    """The agent's own name for the model; vendor:model runs the built-in agent on it."""
    policy: Policy | Preset | None
    """What the agent may do: a Policy, or reads, edits or all."""
    approval_mode: ApprovalMode | None
    """Another way to set the policy: default, auto_edit, yolo or plan."""
    allowed_tools: Sequence[str] | None
    """Another way to set the policy: only these tools."""
    system_prompt: str | None
    """A text that is added to the agent's system prompt."""
    replace_system_prompt: str | None
    """A text that replaces the agent's system prompt."""
    prompt_file: str | os.PathLike[str] | None
    """Read the prompt from this file."""
    images: Sequence[str | os.PathLike[str]]
    """Images for the prompt."""
    expand_files: bool
    """Let the agent expand @path in the prompt."""
    sandbox: SandboxMode
    """Corral's sandbox: where the policy needs it, where the machine has one (auto), or always."""
    hidden: Sequence[str | os.PathLike[str]]
    """Folders that the agent must not read, wherever they are: the run gets corral's sandbox."""
    include_directories: Sequence[str | os.PathLike[str]]
    """Further folders that the agent may read."""
    timeout: float | str
    """Time for each prompt: 90 (seconds), 5m, 1h30m."""
    idle_timeout: float | str
    """Time without an event."""
    startup_timeout: float | str
    """Time until the first event."""
    grace: float | str
    """Time between the request to end and SIGKILL."""
    max_turns: int | None
    """Maximum number of model calls of a prompt."""
    max_tool_rounds: int | None
    """Maximum number of rounds of tool calls in a turn of the built-in agent."""
    max_repeated_calls: int | None
    """Equal tool calls in a row after which the built-in agent ends its turn."""
    reasoning_effort: Effort | None
    """The reasoning effort of the model."""
    retries: int
    """How often a failed model call is repeated, 0 to 9."""
    mcp_servers: Sequence[McpServer | Mapping[str, object] | str]
    """MCP servers whose tools the agent may use."""
    resume: str | None
    """Continue a session, also of another agent: its id, the beginning of it, or 'last'."""
    fork: bool
    """Continue in a new session; the resumed one does not change."""
    on_budget: Literal["stop", "pause"]
    """At such a limit: end the run, or hold the next model call until the limit is raised."""
    on_limit: str
    """At a rate limit: fail, wait until it ends, or fallback:AGENT[,AGENT]."""
    max_wait: float | str
    """The longest wait for a rate limit; at one that takes longer, the run fails."""
    meter: bool | None
    """Count the model calls with a proxy that holds the API key; unset, where it is possible."""
    output_schema: Mapping[str, object] | None
    """A JSON Schema, for agents with their own support; output= sets it."""
    env: Mapping[str, str]
    """Variables for the agent, with their values, which are never logged."""
    pass_env: Sequence[str]
    """Names of variables to pass on to the agent and its commands."""
    inherit: Inherit
    """Whose settings take effect besides corral's: the repository's, or yours too."""
    program: str | os.PathLike[str] | None
    """The agent's program."""
    probe: ProbeMode
    """Run an untested program with a scripted model first; trust ignores what that found out."""
    strict: bool
    """Refuse a policy that the agent cannot enforce."""
    track_files: bool
    """Compare the files of the working directory before and after."""
    allow_file_reads: bool
    """Read files for the agent, if it asks its client to."""
    allow_file_writes: bool
    """Write files for the agent, if it asks its client to."""
    auth: Literal["api_key", "subscription", "inherit"] | None
    """Which credentials are billed, if there are two."""
    auth_method: str | None
    """One of the sign-in methods that the agent offers."""
    thinking: bool
    """Pass on the agent's thoughts."""
    permission_mode: PermissionMode
    """How open permission requests are answered: prompt asks, auto allows, deny denies."""
    remote_answers: bool
    """Wait until another process answers permission requests, if there is no one to ask here."""
    answer_timeout: float | str
    """Time until a permission request without an answer is denied."""
    notify: str | None
    """A command or URL to notify when a person is needed, or the run has ended."""
    notify_on: NotifyOn
    """What is notified: that a person is needed, the end, or both (all)."""
    quiet_period: float | str | None
    """Silence that ends the loading of a session, and a turn after its end was reported."""
    session_mode: str | None
    """A mode of the agent's own sessions, by its own name."""
    audio: Sequence[str | os.PathLike[str]]
    """Audio files for the prompt."""
    attachments: Sequence[str | os.PathLike[str]]
    """Files to send with the prompt."""
    via: Via | None
    """How the agent 'manual' reaches the person."""
    record_to: str | os.PathLike[str] | None
    """Record the communication with the agent's program to this file."""
    replay: str | os.PathLike[str] | None
    """Replay such a recording instead of the agent's program."""
    record: bool
    """Store a transcript with the session: prompts, events, changes of files."""
    keep: bool
    """Store the session."""
    label: str | None
    """A text in every event, in the result and in the stored session."""
    otel: str | None
    """Send OpenTelemetry spans to this OTLP endpoint; env: where the OTEL_ variables say."""
    config: Mapping[str, object]
    """A table of options; the options of the call win over it."""
    verify: Verify | None
    """Commands or checks that the work must pass, in a clean tree of what the agent left."""
    verify_from: VerifyFrom
    """Where the files that judge the work come from: before the run, or as the agent left them."""
    verify_with: Sequence[str]
    """Ignored files and folders that the checks need, besides installed dependencies."""
    verify_timeout: float | str
    """Time for each check."""
    work: Sequence[str]
    """What the run may have changed, as patterns of .gitignore; all else is as before it."""
    judge_files: Sequence[str]
    """More files that judge the work, as patterns of .gitignore; !PATTERN takes one out."""
    put_back: bool
    """Put files that judge the work back as they were before the run, in the workspace itself."""
    scenarios: str | os.PathLike[str] | None
    """A folder of held-out scenarios that the work must satisfy: corral docs scenarios."""
    scenario_threshold: float
    """The fraction of the scenarios that must be satisfied."""
    judge: str | None
    """The model, as vendor:name, that answers the questions among the scenarios."""
