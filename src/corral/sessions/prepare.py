"""All checks before an agent is started, and all facts that are needed to start it.

A ``PreparedRun`` has an existing folder, a program of a known version, a policy that can be
enforced, and options that the agent supports. Nothing is written to disk here.

A prompt may have options of its own, which are checked here as well (``for_prompt``):
``timeout`` and ``idle_timeout`` are only replaced. ``model`` and ``policy`` are prepared again, as
for a new session; the policy may only be narrower than the session's. How they take effect:

- an agent with one process per prompt: that process is started with them;
- the built-in agent: the loop gets the other model, tools and rules, and the same history;
- an ACP agent: if every capability is brokered, the broker uses the narrower policy; if the agent
  can switch its model, it is switched. What is fixed when the process starts (the model of some
  agents, a policy in the agent's own settings) needs a new process, which loads the conversation;
  an agent that cannot load one refuses the option.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from corral.agents import registry
from corral.agents.spec import (
    AcpTransport,
    AgentSpec,
    CompiledPolicy,
    Ending,
    InProcess,
    Launch,
    LaunchContext,
    MeterRoute,
)
from corral.errors import (
    ConfigError,
    CorralError,
    PromptError,
    UntrustedFolder,
)
from corral.nesting import decode_json
from corral.options import BUDGET_LIMITS, KNOWN, RunOptions, check_prompt, fallback_agents
from corral.policy import Policy, is_narrower
from corral.prompt import Prompt
from corral.protected_paths import Links
from corral.sessions import enforcement
from corral.sessions.credentials import ChosenCredentials, choose_credentials
from corral.system import config, environment, paths, programs
from corral.system.path_guard import PathGuard
from corral.values import Json

if TYPE_CHECKING:
    from corral.policy import SandboxRow
    from corral.sessions.budget import Budget
    from corral.sessions.tools.hooks import Before
    from corral.sessions.tools.on_tool_call import ToolCallHook
    from corral.system.hook_socket import HookSocket
    from corral.system.rate_limits import LimitWaits
    from corral.system.sandbox.sandbox import Sandbox, Support

COMMON = frozenset(
    {
        "cwd",
        "model",
        "policy",
        "prompt_file",
        "timeout",
        "idle_timeout",
        "startup_timeout",
        "grace",
        "auth",
        "env",
        "pass_env",
        "program",
        "strict",
        "track_files",
        "record",
        "record_to",
        "replay",
        "keep",
        "label",
        "otel",
        "sandbox",
        "meter",
        "remote_answers",
        "answer_timeout",
        "notify",
        "notify_on",
        "max_cost",
        "max_total_tokens",
        "max_calls",
        "on_budget",
        "on_limit",
        "max_wait",
    }
)
"""Options that every agent has; any other it must name in ``supports``."""

PER_PROMPT = ("timeout", "idle_timeout", "model", "policy")
"""Options that a prompt may choose for itself."""

LARGEST_FILE = 20 * 1024 * 1024

Answers: TypeAlias = Literal["nothing", "questions", "all"]
"""What a person can be asked: ``all`` is permissions and questions."""


class PreparedRun(msgspec.Struct, frozen=True, kw_only=True):
    agent: AgentSpec
    run: RunOptions
    cwd: str
    program: programs.FoundProgram
    environment: environment.Environment
    compiled: CompiledPolicy
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

    def env(self, launch: Launch, run_id: str = "") -> dict[str, str]:
        """The environment of the program. ``run_id`` is the turn that it is started for, whose
        span it gets."""
        passed = self.environment.values.items()
        env = {k: v for k, v in passed if k not in launch.hidden_env} | launch.env
        if launch.path_folders:
            known = [env["PATH"]] if env.get("PATH") else []
            env["PATH"] = os.pathsep.join([*known, *launch.path_folders])
        if self.run.otel is not None and run_id:
            from corral.telemetry import live

            env[live.VARIABLE] = live.turn_header(run_id, self.run.env)
        return env

    @property
    def acp(self) -> AcpTransport:
        """The transport of an agent that is known to speak ACP. Raises ``TypeError``."""
        if not isinstance(self.agent.transport, AcpTransport):
            raise TypeError(f"{self.agent.name} does not speak the Agent Client Protocol")
        return self.agent.transport

    @property
    def asks(self) -> bool:
        """The agent can send permission requests, or its calls are judged at the wire."""
        return self.agent.asks or self.run.at_wire

    def denied_without_asking(self, *, asks: bool) -> tuple[str, ...]:
        """Capabilities that the policy would ask about and that are denied because no one can be
        asked. ``asks``: a person can be asked."""
        if self.run.policy.mode == "native" or (asks and not self.run.at_wire):
            return ()
        return tuple(
            row.capability
            for row in self.compiled.report
            if row.verdict == "ask"
            and (row.capability != "mcp" or self.run.mcp_servers)
            and not (asks and row.enforcement == "brokered")
        )

    def launch_context(self, folder: Path) -> LaunchContext:
        """What the agent's launch needs to know, for a session stored in ``folder``."""
        return LaunchContext(
            program=self.program.argv,
            version=self.program.version,
            compiled=self.compiled,
            cwd=self.cwd,
            home=str(folder / "home"),
            tmp=str(folder / "tmp"),
            images=str(folder / "images"),
            env=self.environment.agent_values,
            credentials=self.credentials,
            project_files=self.project_files,
            user_settings=self.user_settings,
            links=self._links(),
            helpers=self.helpers,
        )

    def agent_sandbox(
        self, launch: Launch, folder: Path, hook: HookSocket | None = None
    ) -> Sandbox | None:
        """The sandbox for one start of the agent, for a session stored in ``folder``. Its ``hook``
        can be reached inside."""
        if self.sandbox is None:
            return None
        from corral.sessions import sandbox

        box = sandbox.for_agent(self, self.sandbox, launch, folder)
        return box if hook is None else sandbox.with_hook(box, hook)

    def command_sandbox(self) -> Sandbox | None:
        """The sandbox for commands that corral runs for the agent."""
        if self.sandbox is None:
            return None
        from corral.sessions import sandbox

        return sandbox.for_commands(self, self.sandbox)

    def sandbox_report(self) -> tuple[SandboxRow, ...]:
        """What the sandbox of the agent enforces; nothing without one."""
        if self.sandbox is None:
            return ()
        from corral.sessions import sandbox

        return sandbox.rows(self, self.sandbox)

    def sandbox_error(self, ending: Ending) -> CorralError | None:
        """Why the sandbox could not be built, if that is how the agent ended."""
        if self.sandbox is None or ending.code != 1:
            return None
        from corral.system.sandbox import diagnosis

        return diagnosis.startup_error(ending.stderr)

    def _links(self) -> Links:
        if not self.agent.needs_links or self.run.policy.is_unlimited:
            return Links()
        return self.guard.links()


def prepare(
    name: str,
    options: Mapping[str, object],
    *,
    has_asker: bool | Answers = False,
    own_tools: Iterable[str] = (),
    on_tool_call: Before | None = None,
    budget: Budget | None = None,
) -> PreparedRun:
    """Check all that can be checked. Raises ``CallerError``, or an error such as ``NotInstalled``.

    ``has_asker``: a person can answer permission requests and questions. If not, what the policy
    would ask about is compiled as denied, and the agent gets no tool for questions; ``questions``
    is in between. ``own_tools``:
    the names of the caller's own functions that the agent is given. ``on_tool_call`` decides about
    each tool call of the agent. ``budget`` is the caller's, of which the run's own limits are a
    part.
    """
    agent, options = _find_agent(name, options)
    defaults = {**agent.default_limits, **config.load(agent.name)}
    run = RunOptions.build(agent.name, options, defaults, "corral.toml")
    if run.model is not None:
        from corral.sessions.model_names import with_model_name

        run = with_model_name(agent, run, run.model)
    if agent.for_run is not None:
        agent = agent.for_run(run)
    _check_supported(agent, run)
    if agent.normalize_policy is not None:
        run = msgspec.structs.replace(run, policy=agent.normalize_policy(run.policy, run))
    cwd = _existing_folder(_current_directory() if run.cwd is None else run.cwd, "cwd")
    _check_folders(run, cwd)
    run = msgspec.structs.replace(
        run,
        interactive=_is_interactive(run, has_asker=has_asker in (True, "all")),
        has_person=has_asker not in (False, "nothing") or run.is_answered_remotely,
        own_tools=tuple(own_tools),
        hooked=on_tool_call is not None,
    )
    decision = enforcement.decide(agent, run, cwd)
    found = None
    if enforcement.gains_at_wire(agent, decision):
        found = _find_on_machine(agent, run)
        if isinstance(found.route, MeterRoute):
            decision = enforcement.at_wire(agent, run, cwd)
    enforcement.check(agent, decision)
    run = decision.run
    _check_files_and_services(agent, run, cwd)
    found = found or _find_on_machine(agent, run)
    agent, chosen, route = found.agent, found.chosen, found.route
    inherits, credentials = run.inherit == "user", chosen.files
    return PreparedRun(
        agent=agent,
        run=run,
        cwd=cwd,
        program=found.program,
        environment=chosen.environment,
        auth=chosen.kind,
        meter=None if isinstance(route, str) else route,
        meter_reason=route if isinstance(route, str) else None,
        budget=_budget(agent, run, route, budget),
        limit_waits=_limit_waits(run),
        compiled=decision.compiled,
        sandbox=decision.sandbox,
        sandbox_reason=decision.reason,
        linked=(*credentials, *(_in_home(agent.user_files) if inherits else ())),
        credentials=credentials,
        project_files=_project_files(agent, Path(cwd)),
        user_settings=_user_settings(agent) if inherits else {},
        helpers=programs.helpers(agent, chosen.environment.values.get("PATH")),
        guard=_guard(run, cwd),
        hook=_hook(on_tool_call, agent, cwd),
    )


class _OnMachine(msgspec.Struct, frozen=True):
    """What this machine has for an agent."""

    agent: AgentSpec
    program: programs.FoundProgram
    chosen: ChosenCredentials
    route: MeterRoute | str | None
    """How its model calls are counted, or why they are not."""


def _find_on_machine(agent: AgentSpec, run: RunOptions) -> _OnMachine:
    agent, program, env = _program(agent, run)
    # The credentials were chosen when it was recorded; this machine may not have them.
    payer = run if run.replay is None else msgspec.structs.replace(run, auth="inherit")
    chosen = choose_credentials(agent, payer, env, _in_home(agent.credential_files))
    return _OnMachine(agent, program, chosen, _meter_route(agent, run, program, chosen))


def _check_files_and_services(agent: AgentSpec, run: RunOptions, cwd: str) -> None:
    if run.otel is not None:
        from corral.telemetry import sender

        sender.check(run.otel)
    for path in (*run.images, *run.audio, *run.attachments):
        _check_attachment(os.path.join(cwd, path))
    if agent.runs_git and run.inherit == "nothing":
        _refuse_git_programs(agent, Path(cwd))


def _guard(run: RunOptions, cwd: str) -> PathGuard:
    policy = run.policy
    protects = not policy.is_unlimited
    return PathGuard(cwd, run.include_directories, policy.writable, protects=protects)


def for_prompt(
    session: PreparedRun,
    name: str,
    options: Mapping[str, object],
    given: Mapping[str, object],
    *,
    has_asker: bool | Answers,
    on_tool_call: Before | None = None,
) -> PreparedRun:
    """The session's ``PreparedRun`` with what one prompt chooses; None in ``given`` is not chosen.
    The other arguments are those the session was prepared with. Raises ``ConfigError``."""
    chosen = {key: value for key, value in given.items() if value is not None}
    if not chosen:
        return session
    checked = RunOptions.build(session.run.agent, chosen)
    if not {"model", "policy"} & chosen.keys():
        run = msgspec.structs.replace(session.run, **{k: getattr(checked, k) for k in chosen})
        return msgspec.structs.replace(session, run=run)
    if session.run.replay is not None:
        raise ConfigError("a recording was made with one model and one policy: replay has no other")
    merged: dict[str, object] = {**options, **chosen}
    if "policy" in chosen:
        merged["policy"] = policy = _own_tools(checked.policy, session.run.policy)
        check_narrower(policy, session)
        for other_spelling in ("approval_mode", "allowed_tools"):  # of the session's policy
            merged.pop(other_spelling, None)
    if session.sandbox is not None and session.run.sandbox == "needed":
        merged["sandbox"] = "require"  # a narrower policy does not end the session's sandbox
    if registry.names_a_model(registry.full_name(name)):
        name, merged["model"] = session.agent.name, checked.model or session.run.model
    prepared = prepare(
        name,
        merged,
        has_asker=has_asker,
        own_tools=session.run.own_tools,
        on_tool_call=on_tool_call,
    )
    return msgspec.structs.replace(prepared, budget=session.budget, limit_waits=session.limit_waits)


def check_narrower(policy: Policy, session: PreparedRun) -> None:
    """Raises ``ConfigError`` for a policy of one prompt that allows more than the session's."""
    if not is_narrower(policy, session.run.policy, session.agent.tools):
        raise ConfigError(
            "the policy of a prompt may only be narrower than the session's, and this one is wider,"
            " or has rules that cannot be compared with the session's",
            hint="Give the session the wider policy; or change the session's own:"
            " msgspec.structs.replace(policy, write='deny').",
        )


def needs_new_process(prompt: PreparedRun, running: PreparedRun) -> bool:
    """Whether a process that was started for ``running`` cannot serve ``prompt``."""
    if prompt.acp.model_at_start and prompt.run.model != running.run.model:
        return True
    if (prompt.sandbox is None) != (running.sandbox is None):
        return True
    if prompt.run.policy == running.run.policy:
        return False
    rows = (*prompt.compiled.report, *running.compiled.report)
    mode = prompt.run.policy.mode != running.run.policy.mode
    return mode or any(row.enforcement != "brokered" for row in rows)


def _own_tools(policy: Policy, session: Policy) -> Policy:
    """The caller's own functions stay allowed if the policy has no rule for tool servers."""
    if policy.mcp is None and policy.own_mcp is None and session.own_mcp is not None:
        return msgspec.structs.replace(policy, own_mcp=session.own_mcp)
    return policy


def _is_interactive(run: RunOptions, *, has_asker: bool) -> bool:
    can_ask = has_asker or run.is_answered_remotely
    return run.permission_mode == "auto" or (run.permission_mode == "prompt" and can_ask)


def _program(
    agent: AgentSpec, run: RunOptions
) -> tuple[AgentSpec, programs.FoundProgram, environment.Environment]:
    """The program and its environment. With a recording, the player runs instead."""
    if run.replay is not None:
        from corral.sessions.recording import with_replay

        return with_replay(agent, run)
    found, env = programs.locate(agent, run.program), environment.gather(agent, run)
    if run.record_to is not None:
        from corral.sessions.recording import with_recorder

        found, env = with_recorder(agent, run, found, env)
    return agent, found, env


def _meter_route(
    agent: AgentSpec, run: RunOptions, program: programs.FoundProgram, chosen: ChosenCredentials
) -> MeterRoute | str | None:
    """How the model calls are counted, or why they are not; None for an agent that runs in this
    process: its calls are counted where they are made. Raises ``ConfigError``."""
    if isinstance(agent.transport, InProcess):
        return None
    if run.meter is False:
        return "meter is off"
    route: MeterRoute | str
    is_wrapped = run.program is not None and not program.packaged
    if run.replay is not None:
        route = "a recording makes no model calls"
    elif agent.meter_route is None:
        route = f"{agent.title} takes no other URL for its model"
    elif chosen.kind != "api_key" or (run.auth == "inherit" and chosen.files):
        route = "model calls are counted only with an API key"
    elif run.inherit == "project":
        route = "the repository's own settings may name another URL for the model"
    elif run.sandbox == "agent":
        route = "the agent's own sandbox may not reach this machine"
    elif is_wrapped and run.meter is None:
        route = f"{run.program} may run the agent on another machine: set meter to count its calls"
    else:
        route = agent.meter_route(run, chosen.environment.agent_values)
    if isinstance(route, str) and run.meter:
        raise ConfigError(
            f"the model calls of {agent.name} cannot be counted: {route}",
            hint="Leave meter out to run without it.",
        )
    return route


def _budget(
    agent: AgentSpec, run: RunOptions, route: MeterRoute | str | None, parent: Budget | None
) -> Budget | None:
    """What the model calls may use. Raises ``ConfigError`` if they cannot be counted, unless the
    agent has the same limit itself, or ``strict`` is off."""
    limits = {name: getattr(run, name) for name in BUDGET_LIMITS}
    names = [name for name, limit in limits.items() if limit is not None]
    if not names and parent is None:
        return None
    if isinstance(route, str) and run.strict and (parent or not agent.supports.issuperset(names)):
        raise ConfigError(
            f"{names[0] if names else 'budget'}: the model calls of {agent.name} cannot be counted:"
            f" {route}",
            hint="With strict=False (--no-strict) only what the agent reports is counted, between"
            " prompts.",
        )
    if not names:
        return parent
    from corral.sessions.budget import Budget

    return Budget(**limits, on_budget=run.on_budget, parent=parent)


def _limit_waits(run: RunOptions) -> LimitWaits | None:
    """Raises ``UnknownAgent`` for a fallback that does not exist."""
    if run.on_limit == "fail":
        return None
    from corral.system.rate_limits import LimitWaits

    for name in fallback_agents(run.on_limit):
        config.find_agent(name)
    return LimitWaits(run.max_wait if run.on_limit == "wait" else 0.0)


def _find_agent(name: str, options: Mapping[str, object]) -> tuple[AgentSpec, Mapping[str, object]]:
    """The agent, and the options with the model if ``name`` is one."""
    agent = config.find_agent(name)
    model = registry.full_name(name)
    return agent, _with_model(model, options) if registry.names_a_model(model) else options


def _with_model(model: str, options: Mapping[str, object]) -> Mapping[str, object]:
    other = options.get("model")
    if isinstance(other, str) and registry.full_name(other) != model:
        raise ConfigError(f"two models are named: {model} and {other}")
    return {**options, "model": model}


def resolve_prompt(prepared: PreparedRun, prompt: str | Prompt | None) -> str:
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
    if not os.path.exists(full):
        raise PromptError(f"the prompt file does not exist: {full}")
    try:
        if os.path.getsize(full) > limit:
            raise PromptError(
                f"the prompt file is over the {limit:,} bytes that this agent accepts"
            )
        text = Path(full).read_text("utf-8")
    except UnicodeDecodeError as error:
        raise PromptError(f"the prompt file is not UTF-8: {full}: {error}") from error
    except OSError as error:
        raise PromptError(f"the prompt file cannot be read: {full}: {error.strerror}") from error
    return check_prompt(text, limit)


def _check_supported(agent: AgentSpec, run: RunOptions) -> None:
    plain = RunOptions(agent=run.agent)
    for name in KNOWN:
        if name in COMMON or name in agent.supports or not hasattr(run, name):
            continue
        if getattr(run, name) != getattr(plain, name):
            raise ConfigError(
                f"{agent.name} has no option {name!r}",
                hint=f"It has: {', '.join(sorted(agent.supports))}.",
            )
    if run.sandbox == "agent" and "sandbox" not in agent.supports:
        raise ConfigError(
            f"{agent.name} has no sandbox of its own that corral can switch on",
            hint="Use corral's: sandbox='require'.",
        )
    if run.notify is not None:
        from corral.live import notify

        notify.check(run.notify)
    _check_media(agent, run)


def _check_media(agent: AgentSpec, run: RunOptions) -> None:
    drops_media = isinstance(transport := agent.transport, AcpTransport) and (
        transport.drops_media_beside_files
    )
    if drops_media and run.attachments and (run.images or run.audio):
        raise ConfigError(
            f"{agent.name} loses images and audio if there are attachments",
            hint="Give one or the other; put a text file's content into the prompt.",
        )
    if run.resume is not None and not agent.resumes:
        raise ConfigError(f"{agent.name} cannot resume a session")


def _hook(function: Before | None, agent: AgentSpec, cwd: str) -> ToolCallHook | None:
    if function is None:
        return None
    from corral.sessions.tools.on_tool_call import ToolCallHook

    return ToolCallHook(function, agent=agent.name, cwd=cwd)


def _current_directory() -> str:
    try:
        return os.getcwd()
    except OSError as error:
        raise ConfigError(f"the current directory does not exist: {error.strerror}") from error


def _check_folders(run: RunOptions, cwd: str) -> None:
    for folder in run.include_directories:
        _existing_folder(os.path.join(cwd, folder), "include_directories")
    for folder in run.policy.writable:
        _existing_folder(os.path.join(cwd, folder), "the policy's writable folder")


def _existing_folder(path: str, what: str) -> str:
    if not path.strip():
        raise ConfigError(f"{what} is empty")
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"{what} is not UTF-8: {path!r}") from error
    full = os.path.abspath(os.path.expanduser(path))
    if not os.path.exists(full):
        raise ConfigError(f"{what} does not exist: {full}", hint="Name a folder that exists.")
    if not os.path.isdir(full):
        raise ConfigError(f"{what} is not a folder: {full}")
    if not os.access(full, os.R_OK | os.X_OK):
        raise ConfigError(f"{what} cannot be read: {full}")
    return os.path.realpath(full)


def _check_attachment(path: str) -> None:
    if not os.path.isfile(path):
        raise ConfigError(f"a file for the prompt does not exist: {path}")
    if os.path.getsize(path) > LARGEST_FILE:
        raise ConfigError(f"a file for the prompt is over {LARGEST_FILE:,} bytes: {path}")


def _in_home(names: tuple[str, ...]) -> tuple[str, ...]:
    home = paths.user_home()
    return tuple(name for name in names if (home / name).exists())


def _user_settings(agent: AgentSpec) -> dict[str, Json]:
    path = paths.user_home() / (agent.user_settings or "")
    if agent.user_settings is None or not path.is_file():
        return {}
    try:
        return decode_json(path.read_bytes(), dict[str, Json])
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(
            f"inherit='user': {path} cannot be read: {error}",
            hint="Fix the file (comments are not understood here), or leave inherit out.",
        ) from error


def _refuse_git_programs(agent: AgentSpec, cwd: Path) -> None:
    """For an agent that runs git by itself. Raises ``UntrustedFolder``."""
    from corral.system.git import dangerous_settings

    found = dangerous_settings.starts_programs(cwd)
    if found:
        shown = ", ".join(f"{each.name} = {each.value}" for each in found[:5])
        raise UntrustedFolder(
            f"{agent.title} runs git here, and this repository's settings would make git start"
            f" programs or read other files: {shown}",
            hint="If you trust them, set inherit='project' (--inherit project).",
            phase="config",
        )


def _project_files(agent: AgentSpec, cwd: Path) -> tuple[str, ...]:
    """Files of the repository that the agent would obey. The user's home is not a repository: its
    settings folder counts only if it is the working directory itself."""
    found = [cwd / name for name in agent.project_files if (cwd / name).exists()]
    for folder in (cwd, *cwd.parents):
        found += [folder / name for name in agent.parent_files if (folder / name).exists()]
    return tuple(str(path) for path in dict.fromkeys(found))
