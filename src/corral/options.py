"""The options of a run: one frozen, checked record.

``RunOptions.build`` takes the options of the caller and of configuration files and raises
``ConfigError`` for invalid ones, before anything starts. It does no I/O: whether a folder exists
is checked later, before the agent is started.
"""

from __future__ import annotations

import os
import re
import shlex
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypeGuard

import msgspec

from corral._core.durations import seconds
from corral._core.lookup import nearest
from corral._core.spending import LIMITS, LimitFields
from corral._option_definitions import BY_NAME, of_kind
from corral.errors import ConfigError
from corral.policy import PRESETS, Policy, with_tools
from corral.receipt import VerifyFrom
from corral.values import Effort, JsonObject, McpServer, convert_to, is_mapping, is_sequence

__all__ = [
    "ApprovalMode", "Inherit", "NotifyOn", "OnBudget", "PermissionMode", "ProbeMode",
    "RunOptions", "SandboxMode", "Via",
]  # fmt: skip

ApprovalMode = Literal["default", "auto_edit", "yolo", "plan"]
Inherit = Literal["nothing", "project", "user"]
Values: TypeAlias = dict[str, object]
"""Options by name, not checked yet."""
PermissionMode = Literal["auto", "deny", "prompt"]
Via = Literal["file", "editor", "terminal"]
NotifyOn = Literal["all", "person", "end"]
OnBudget = Literal["stop", "pause"]
ProbeMode = Literal["never", "once", "require", "trust"]
SandboxMode = Literal["needed", "off", "auto", "require", "agent"]
SANDBOX_MODES: tuple[SandboxMode, ...] = ("needed", "off", "auto", "require", "agent")

APPROVAL_MODES: dict[str, Policy] = {
    "default": Policy.reads(),
    "auto_edit": Policy.edits(),
    "yolo": Policy.all(),
    "plan": Policy.plan(),
}
"""Gemini CLI's names for our presets."""


MAX_LABEL_LENGTH = 200
"""Characters."""


class RunOptions(LimitFields, msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The options of one run. Values of ``env`` are secret and never printed.

    ::

        options = RunOptions.build("gemini-cli", {"timeout": "5m", "policy": "reads"})
        print(options.timeout)
    """

    agent: str
    cwd: str | None = None
    model: str | None = None
    policy: Policy = Policy()
    system_prompt: str | None = None
    replace_system_prompt: str | None = None
    prompt_file: str | None = None
    images: tuple[str, ...] = ()
    expand_files: bool = False
    sandbox: SandboxMode = "needed"
    """``needed`` uses corral's sandbox where the agent alone cannot enforce the policy, ``auto``
    where the machine has one, ``require`` refuses to start without, ``agent`` uses the agent's own,
    ``off`` none."""
    include_directories: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    """Folders and files outside of the workspace that the agent must not read: the run gets the
    sandbox."""
    timeout: float = 600.0
    idle_timeout: float = 300.0
    startup_timeout: float = 60.0
    grace: float = 5.0
    max_turns: int | None = None
    max_tool_rounds: int | None = None
    """Rounds of tools in one turn of the built-in agent."""
    max_repeated_calls: int | None = None
    """Equal tool calls in a row, with equal results, after which the built-in agent ends its
    turn."""
    reasoning_effort: Effort | None = None
    retries: int = 2
    """How often a failed model call is repeated."""
    mcp_servers: tuple[McpServer, ...] = ()
    resume: str | None = None
    fork: bool = False
    """Continue from ``resume`` in a new session; the old session does not change."""
    on_budget: OnBudget = "stop"
    """At a limit: end the run, or hold the next model call until the limit is raised."""
    on_limit: str = "fail"
    """At a rate limit or a usage limit of the model's service: ``fail`` ends the run, ``wait``
    waits until the limit ends, ``fallback:AGENT,AGENT`` continues with another agent."""
    max_wait: float = 86400.0
    """The longest wait for a limit, in seconds. The run fails at a limit that takes longer."""
    meter: bool | None = None
    """Count the model calls of the agent, with a proxy that holds the API key: None where that is
    possible; True refuses to start if it is not."""
    output_schema: JsonObject | None = None
    """A JSON Schema, for agents that support one; ``output`` sets it."""
    env: dict[str, str] = {}
    pass_env: tuple[str, ...] = ()
    inherit: Inherit = "nothing"
    program: str | None = None
    probe: ProbeMode = "once"
    """A program that was not tested with corral: ``once`` runs it with a scripted model before its
    first real call, ``require`` uses it only if that was done before, ``never`` makes no probe, and
    ``trust`` uses it whatever a probe found out."""
    strict: bool = True
    track_files: bool = True
    allow_file_reads: bool = False
    """Read files for the agent if it asks its client to."""
    allow_file_writes: bool = False
    auth: Literal["api_key", "subscription", "inherit"] | None = None
    """Which credentials are billed, for agents that support several kinds; ``inherit`` leaves the
    choice to the agent."""
    auth_method: str | None = None
    """The id of an authentication method that the agent offers; unset, none is used."""
    thinking: bool = True
    """Emit the agent's thinking."""
    permission_mode: PermissionMode = "prompt"
    """How permission requests are answered that the policy leaves open: ``prompt`` asks, ``auto``
    allows and ``deny`` denies without asking."""
    remote_answers: bool = False
    """Without an ``ask=`` callback or a terminal, wait until another process answers permission
    requests: ``corral runs answer``, ``corral view``, ``corral.runs.answer``."""
    answer_timeout: float = 300.0
    """Seconds that a permission request waits for an answer before it is denied."""
    notify: str | None = None
    """A command, or the URL of a webhook, to notify when a person is needed or the run ends.
    Implies ``remote_answers``, unless ``notify_on`` is ``end``."""
    notify_on: NotifyOn = "all"
    """What ``notify`` reports: that a person is needed, the end, or both."""
    quiet_period: float | None = None
    """Seconds of silence after which loading a session, or a turn that has ended, is complete;
    unset, the agent's known value is used."""
    session_mode: str | None = None
    """A session mode of the agent, by the agent's own name."""
    audio: tuple[str, ...] = ()
    attachments: tuple[str, ...] = ()
    """Files that are sent with the prompt: their content, or their URI if the agent accepts no
    content."""
    via: Via | None = None
    """How the person is reached if a person is the agent; unset, through files."""
    record_to: str | None = None
    """A file to which the communication with the agent is recorded, to replay it."""
    replay: str | None = None
    """Such a file, which is used instead of the agent."""
    record: bool = True
    """Store a transcript with the session: the prompts, the events and the changes of files.
    Without ``keep`` there is none."""
    keep: bool = True
    """Store the session, to resume it; otherwise nothing is left on disk."""
    label: str | None = None
    """A text of the caller that is copied to every event, the result and the stored session."""
    verify: tuple[Any, ...] = ()
    """What the run must pass when the agent has ended: commands, and checks of Python."""
    verify_from: VerifyFrom = "before"
    """Where the files that judge the work come from."""
    verify_with: tuple[str, ...] = ()
    """Patterns of ignored files and folders that the checks need."""
    verify_timeout: float = 600.0
    """Seconds that each check may take."""
    work: tuple[str, ...] = ()
    """Patterns of what the run may have changed; everything else is checked as before the run."""
    judge_files: tuple[str, ...] = ()
    """Patterns of further files that judge the work."""
    put_back: bool = False
    """Put files that judge back in the workspace before the checks."""
    scenarios: str | None = None
    """A folder of held-out scenarios that the work must satisfy."""
    scenario_threshold: float = 0.9
    """The fraction of them that is enough."""
    judge: str | None = None
    """The model that answers the questions among them."""
    otel: str | None = None
    """An OTLP endpoint that gets the spans of the run, or ``env``."""
    interactive: bool = False
    """Permission requests can be answered: by an ``ask=`` callback, a terminal, or
    ``permission_mode="auto"``. Set by the session, not an option: without it, what the policy
    would ask about is denied, and not offered to the model."""
    has_person: bool = False
    """A person can answer the agent's questions: an ``ask=`` callback, a terminal, or another
    process. Set by the session, not an option: without it, the agent's tool for questions is not
    offered to the model."""
    own_tools: tuple[str, ...] = ()
    """Names of the caller's own functions that the agent may call. Set by the session, not an
    option."""
    hooked: bool = False
    """The caller's ``on_tool_call`` decides about each tool call, so the agent must ask before each
    of them. Set by the session, not an option."""

    @property
    def is_answered_remotely(self) -> bool:
        """Whether permission requests wait for other processes if there is no one to ask here."""
        return self.remote_answers or (self.notify is not None and self.notify_on != "end")

    @classmethod
    def build(
        cls,
        agent: str,
        options: Mapping[str, object] | None = None,
        config: Mapping[str, object] | None = None,
        source: str = "corral.toml",
    ) -> RunOptions:
        """Build the options. ``options`` win over ``config``.

        An unknown option raises ``ConfigError``. An unknown key of a configuration is a warning:
        the file may be written for a newer version. An invalid value in it is an error that names
        ``source``.
        """
        if not config:
            return cls._build(agent, options, {}, source)
        try:
            return cls._build(agent, options, config, source)
        except ConfigError as error:
            cls._build(agent, options, {}, source)  # raises it if it is not of the configuration
            raise ConfigError(f"{source}: {error.message}", hint=error.hint) from error

    @classmethod
    def _build(
        cls,
        agent: str,
        options: Mapping[str, object] | None,
        config: Mapping[str, object],
        source: str,
    ) -> RunOptions:
        given = _drop_unknown(dict(options or {}))
        inline: object = given.pop("config", None) or {}
        if not is_mapping(inline):
            raise ConfigError(f"config must be a table of options, got: {type(inline).__name__}")
        merged: Values = {}
        for layer in (
            _drop_unknown(dict(config), source),
            _drop_unknown(dict(inline), "config"),
            given,
        ):
            # The policy of a lower layer does not count if the upper layer sets it by another name.
            if layer.get("policy") is not None:
                merged.pop("approval_mode", None)
                merged.pop("allowed_tools", None)
            elif layer.get("approval_mode") is not None or layer.get("allowed_tools") is not None:
                merged.pop("policy", None)
            merged |= layer
        servers = merged.get("mcp_servers")
        if is_sequence(servers):
            merged["mcp_servers"] = [_server(server) for server in servers]
        values = {name: _to_builtin(value) for name, value in merged.items() if value is not None}
        for name in DURATIONS:
            if isinstance(text := values.get(name), str):
                try:
                    values[name] = seconds(text)
                except ValueError as error:
                    raise ConfigError(f"{name}: {error}") from error
        values["policy"] = _policy(values)
        if "verify" in values:
            verify = values["verify"]
            values["verify"] = [*verify] if is_sequence(verify) else [verify]
        values.pop("approval_mode", None)
        values.pop("allowed_tools", None)
        if values.get("keep") is False and given.get("record") is None:
            values["record"] = False
        run = _convert({"agent": agent, **values})
        _check_numbers(run)
        _check_combinations(run)
        _check_servers(run)
        _check_texts(run)
        _check_on_limit(run.on_limit)
        _check_environment(run)
        return run

    def summary(self) -> Values:
        """The options that were set, without secret values, for logs."""
        servers = tuple(
            msgspec.structs.replace(server, env={}, headers={}) for server in self.mcp_servers
        )
        checks = tuple(each if isinstance(each, str) else repr(each) for each in self.verify)
        shown: Values = msgspec.to_builtins(
            msgspec.structs.replace(self, env={}, mcp_servers=servers, verify=checks)
        )
        return {**shown, "env": sorted(self.env)} if self.env else shown


OWN_SERVER = "corral"
"""The name of the MCP server of the caller's own functions."""
SPELLINGS = ("approval_mode", "allowed_tools", "config")
"""Options that are converted to others."""
COMPUTED = (
    "agent",
    "interactive",
    "has_person",
    "own_tools",
    "hooked",
)
"""Fields that are not options."""
KNOWN = (*(name for name in RunOptions.__struct_fields__ if name not in COMPUTED), *SPELLINGS)


def _drop_unknown(values: Values, source: str | None = None) -> Values:
    """The known options, with a warning for each other one of a configuration (``source``). One of
    a call raises ``ConfigError``."""
    for name in sorted(set(values) - set(KNOWN)):
        advice = nearest(name, ("agent", *KNOWN), "`corral docs configuration` lists all")
        if source is None:
            raise ConfigError(f"unknown option {name!r}: {advice}")
        warnings.warn(f"{source}: unknown key {name!r}, ignored: {advice}", stacklevel=5)
        del values[name]
    return values


def _to_builtin(value: object) -> object:
    """Paths as text, also in lists; everything else unchanged."""
    if _is_path(value):
        return os.fspath(value)
    if is_sequence(value):
        return [_to_builtin(item) for item in value]
    if isinstance(value, McpServer):
        return msgspec.to_builtins(value)
    return value


def _is_path(value: object) -> TypeGuard[os.PathLike[str]]:
    return isinstance(value, os.PathLike)


def _policy(values: Values) -> Policy:
    policy = values.get("policy")
    mode = values.get("approval_mode")
    tools = values.get("allowed_tools")
    if policy is not None and (mode is not None or tools is not None):
        other = "approval_mode" if mode is not None else "allowed_tools"
        raise ConfigError(
            f"policy and {other} both given",
            hint=f"{other} also sets the policy: pass only one of them.",
        )
    if mode is not None and (not isinstance(mode, str) or mode not in APPROVAL_MODES):
        raise ConfigError(
            f"approval_mode must be one of {', '.join(APPROVAL_MODES)}, got: {mode!r}"
        )
    if isinstance(policy, str):
        if policy not in PRESETS:
            near = nearest(policy, PRESETS)
            raise ConfigError(
                f"policy must be a Policy, or reads, edits or all, got: {policy!r}",
                hint=f"D{near[1:]}" if near else None,
            )
        policy = PRESETS[policy]
    if policy is None:
        policy = APPROVAL_MODES[mode] if mode is not None else Policy()
    if not isinstance(policy, Policy):
        raise ConfigError(
            f"policy must be a Policy, got: {type(policy).__name__}",
            hint='For example: corral.Policy(write="allow"), or "edits".',
        )
    if tools is not None:
        if not is_sequence(tools):
            raise ConfigError(f"allowed_tools must be a list, got: {type(tools).__name__}")
        return with_tools(policy, tools)
    return policy


_VALIDATION_ERROR = r"Expected `([^`]*)`, got `([^`]*)`(?: - at `\$\.?([^`]*)`)?"
_CHOICE_ERROR = r"Invalid enum value ('.*') - at `\$\.(\w+)`"
_TYPE_NAMES = {
    "array": "a list",
    "bool": "True or False",
    "float": "a number",
    "int": "a whole number",
    "object": "a dict",
    "str": "a text",
}
_GOT_NAMES = {"array": "list", "object": "dict"}


def _convert(values: Values) -> RunOptions:
    for name, value in values.items():
        if isinstance(value, bool) and name in _NUMBERS:
            raise ConfigError(f"{name} must be a number, got: bool")
    try:
        return convert_to(values, RunOptions)
    except msgspec.ValidationError as error:
        if choice := re.match(_CHOICE_ERROR, str(error)):
            value, name = choice.groups()
            known = BY_NAME[name].choices if name in BY_NAME else ()
            if known:
                wanted = f"one of {', '.join(known)}"
                raise ConfigError(f"{name} must be {wanted}, got: {value}") from error
        found = re.search(_VALIDATION_ERROR, str(error))
        if not found:
            raise ConfigError(f"wrong option: {error}") from error
        expected, got, place = found.groups()
        expected = expected.removesuffix(" | null")
        name = re.sub(r"\[\.\.\.\]", "", place or "options")
        wanted = _TYPE_NAMES.get(expected, expected)
        if name in BY_NAME and BY_NAME[name].choices:
            wanted = f"one of {', '.join(BY_NAME[name].choices)}"
        raise ConfigError(f"{name} must be {wanted}, got: {_GOT_NAMES.get(got, got)}") from error


DURATIONS = of_kind("duration")
"""Options that are durations: seconds, or a text such as ``5m``."""
_NUMBERS = of_kind("duration", "count", "amount")


def _check_numbers(run: RunOptions) -> None:
    for name in (*DURATIONS, *LIMITS):
        limit: float | None = getattr(run, name)
        if limit is None:
            continue
        if name in ("grace", "quiet_period"):
            if not 0 <= limit <= 60:
                raise ConfigError(f"{name} must be between 0 and 60 seconds, got: {limit:g}")
        elif not limit > 0:
            raise ConfigError(f"{name} must be more than 0, got: {limit:g}")
    if not 0 < run.scenario_threshold <= 1:
        raise ConfigError(
            f"scenario_threshold must be above 0 and at most 1, got: {run.scenario_threshold:g}"
        )
    for name in ("max_turns", "max_tool_rounds"):
        number: int | None = getattr(run, name)
        if number is not None and number < 1:
            raise ConfigError(f"{name} must be at least 1, got: {number}")
    if run.max_repeated_calls is not None and run.max_repeated_calls < 2:
        raise ConfigError(f"max_repeated_calls must be at least 2, got: {run.max_repeated_calls}")
    if not 0 <= run.retries <= 9:
        raise ConfigError(f"retries must be between 0 and 9, got: {run.retries}")


def _check_combinations(run: RunOptions) -> None:
    if run.fork and run.resume is None:
        raise ConfigError("fork needs resume: there is no session to continue from")
    if run.system_prompt is not None and run.replace_system_prompt is not None:
        raise ConfigError(
            "system_prompt and replace_system_prompt both given",
            hint="The first is added to the agent's own system prompt, the second replaces it.",
        )
    if run.record_to is not None and run.replay is not None:
        raise ConfigError("record_to and replay both given: a replay cannot be recorded")
    check_scope(run.verify_from, run.work, put_back=run.put_back)
    if run.record and not run.keep:
        raise ConfigError("record needs keep=True: the transcript is stored with the session")


def check_scope(verify_from: VerifyFrom, work: Sequence[str], *, put_back: bool) -> None:
    """Raises ``ConfigError`` for options that contradict each other."""
    if verify_from == "after" and (work or put_back):
        name = "work" if work else "put_back"
        raise ConfigError(
            f'{name} and verify_from="after" both given',
            hint='With "after" the checks use all files as the agent left them.',
        )
    if not all(pattern.strip() for pattern in work):
        raise ConfigError("work must be patterns of files, got an empty one")


_SERVER_EXAMPLES = (
    "As in 'notes=python notes_server.py', 'notes=TOKEN=${TOKEN} npx notes' or"
    " 'tickets=https://x.org/mcp Authorization=\"Bearer ${TOKEN}\"'."
)


def _server(server: object) -> object:
    """An MCP server; one that is given as text is read as ``NAME=[VARIABLE=VALUE]... COMMAND`` or
    ``NAME=URL [HEADER=VALUE]...``, with the quotes of a shell."""
    if is_mapping(server) and "own" in server:
        # Only ``tools=`` may set it.
        raise ConfigError("an MCP server's `own` is set by corral: leave it out")
    if not isinstance(server, str):
        return server
    name, _, rest = server.partition("=")
    try:
        words = shlex.split(rest)
    except ValueError as error:
        raise ConfigError(f"MCP server {name!r}: {error}", hint=_SERVER_EXAMPLES) from error
    is_url = rest.startswith(("http://", "https://"))
    url = words.pop(0) if is_url else None
    header, variable = re.compile(r"\A[A-Za-z0-9-]+="), re.compile(r"\A[A-Za-z_][A-Za-z0-9_]*=")
    setting = header if is_url else variable
    count = next((n for n, word in enumerate(words) if not setting.match(word)), None)
    settings = dict(word.split("=", 1) for word in words[:count])
    command = () if count is None else tuple(words[count:])
    if bool(url) == bool(command):
        shown = f"{name}=…" if "=" in server else repr(server)  # a value may be a secret
        raise ConfigError(f"an MCP server is NAME=COMMAND or NAME=URL, got: {shown}",
                          hint=_SERVER_EXAMPLES)  # fmt: skip
    if url is None:
        return {"name": name, "command": command, "env": settings}
    return {"name": name, "url": url, "headers": settings}


def _check_servers(run: RunOptions) -> None:
    names: set[str] = set()
    for server in run.mcp_servers:
        if bool(server.command) == bool(server.url):
            raise ConfigError(f"MCP server {server.name!r} must have either a command or a url")
        if server.name.lower() == OWN_SERVER and not server.own:
            raise ConfigError(
                f"MCP server name {server.name!r} is reserved for the functions in tools=",
                hint="Policies allow that server more than others: choose another name.",
            )
        if server.name in names:
            raise ConfigError(f"two MCP servers have the name {server.name!r}")
        names.add(server.name)


def _check_texts(run: RunOptions) -> None:
    for name in ("system_prompt", "replace_system_prompt", "resume", "model", "label"):
        text: str | None = getattr(run, name)
        if text is not None and any(c == "\0" or "\ud800" <= c <= "\udfff" for c in text):
            raise ConfigError(f"{name} contains a character that cannot be sent")
    for name in ("model", "label", "resume", "program", "record_to", "replay", "otel", "notify"):
        value: str | None = getattr(run, name)
        if value is not None and not value.strip():
            raise ConfigError(f"{name} is empty")
    if run.label is not None and len(run.label) > MAX_LABEL_LENGTH:
        raise ConfigError(
            f"label has {len(run.label):,} characters, the maximum is {MAX_LABEL_LENGTH}",
            hint="It is copied to every event: use a short one.",
        )


FALLBACK = "fallback:"


def fallback_agents(on_limit: str) -> tuple[str, ...]:
    """The agents of ``fallback:AGENT,AGENT``; none for the other values."""
    if not on_limit.startswith(FALLBACK):
        return ()
    return tuple(name.strip() for name in on_limit.removeprefix(FALLBACK).split(","))


def _check_on_limit(on_limit: str) -> None:
    agents = fallback_agents(on_limit)
    if on_limit not in ("fail", "wait") and not agents:
        raise ConfigError(
            f"on_limit must be fail, wait or fallback:AGENT[,AGENT], got: {on_limit!r}"
        )
    if not all(agents):
        raise ConfigError(
            f"on_limit has an empty name: {on_limit!r}",
            hint="Write fallback: and the agents, separated by commas: fallback:codex,corral.",
        )
    if len(set(agents)) < len(agents):
        raise ConfigError(f"on_limit names an agent twice: {on_limit!r}")


def _check_environment(run: RunOptions) -> None:
    for name, value in run.env.items():
        if "\0" in value:
            raise ConfigError(f"the value of {name} in env contains a NUL character")
    for name in (*run.pass_env, *run.env):
        if not name or "=" in name or "\0" in name:
            hint = "Give only the name, and set its value in your environment."
            raise ConfigError(
                f"not a valid name of an environment variable: {name!r}",
                hint=hint if "=" in name and name in run.pass_env else None,
            )
