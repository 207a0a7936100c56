"""All checks before an agent is started (``prepare``), or gets another prompt (``for_prompt``).

A ``PreparedRun`` has an existing folder, a program of a known version, a policy that can be
enforced, and options that the agent supports. Nothing is written to disk here, but for the end of a
check that a killed corral has left.

In the options of one prompt, ``timeout``, ``idle_timeout`` and the files of the prompt are only
replaced. ``model``, ``reasoning_effort`` and ``policy`` are prepared again, as for a new session;
the policy may only be narrower than the session's. How they take effect:

- an agent with one process per prompt: that process is started with them;
- the built-in agent: the loop gets the other model, tools and rules, and the same history;
- an ACP agent: if every capability is brokered, the broker uses the narrower policy; if the agent
  can switch its model, it is switched. What is fixed when the process starts (the effort, the model
  of some agents, a policy in the agent's own settings) needs a new process, which loads the
  conversation;
  an agent that cannot load one refuses the option.

A person may write the name of a model with its vendor (``vendor:name``, ``vendor/name``), or
without one. The built-in agent needs ``vendor:name``. An agent with the models of one vendor takes
the bare name; a model of another vendor is refused here, before the agent asks for it.
"""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from corral._agents import registry
from corral._agents.spec import (
    AcpTransport,
    AgentSpec,
    InProcess,
    MeterRoute,
)
from corral._core.nesting import decode_json
from corral._core.spending import LIMITS
from corral._option_definitions import with_trait
from corral._sessions import enforcement
from corral._sessions.credentials import ChosenCredentials, choose_credentials
from corral._sessions.prepared_run import Answers, PreparedRun, RecordingFile
from corral._sessions.proof import find_proof
from corral._system import config, environment, fs, paths, programs
from corral._system.path_guard import PathGuard
from corral.errors import (
    ConfigError,
    NotPermitted,
    UntrustedFolder,
)
from corral.options import KNOWN, RunOptions
from corral.policy import Policy, is_narrower
from corral.values import Json

if TYPE_CHECKING:
    from corral._metering.budget import Budget
    from corral._metering.rate_limits import LimitWaits
    from corral._sessions.tools.hooks import Before, ToolCallHook
    from corral._verification.check import Check


COMMON = with_trait("every_agent")
"""Options that every agent has; any other it must name in ``supports``."""

LARGEST_FILE = 20 * 1024 * 1024


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
    and ``permissions`` are in between. ``own_tools``:
    the names of the caller's own functions that the agent is given. ``on_tool_call`` decides about
    each tool call of the agent. ``budget`` is the caller's, of which the run's own limits are a
    part.

    The order is safety. ``run`` and ``agent`` are replaced on the way, so that no later step can
    see what an earlier one has corrected: what the policy means (4) is decided when everything that
    it depends on is known (1 to 3), and no key is looked up (5) before it can be enforced.
    """
    # Before anything trusts a repository: a killed corral may have left one that starts programs.
    _finish_checks_left_behind()
    # 1. What was asked for. ``run`` is replaced with the values of variables, as the servers are
    # started with them, and with the model's name as this agent writes it; the record of the agent
    # with that for this model. Everything after depends on both.
    agent, model = config.find_agent(name), registry.full_name(name)
    if registry.names_a_model(model):
        other = options.get("model")
        if isinstance(other, str) and registry.full_name(other) != model:
            raise ConfigError(f"two models are named: {model} and {other}")
        options = {**options, "model": model}
    defaults = {**agent.default_limits, **config.load(agent.name)}
    run = RunOptions.build(agent.name, options, defaults, "corral.toml")
    if run.mcp_servers:
        servers = (environment.with_variables(server, run.env) for server in run.mcp_servers)
        run = msgspec.structs.replace(run, mcp_servers=tuple(servers))
    if run.model is not None:
        run = with_model_name(agent, run, run.model)
    if agent.for_run is not None:
        agent = agent.for_run(run)
    _check_supported(agent, run)
    # 2. Where. ``cwd`` is a real path from here on: a link that is exchanged later has no effect.
    try:
        cwd = _existing_folder(fs.current_folder() if run.cwd is None else run.cwd, "cwd")
    except OSError as error:
        raise ConfigError(f"the current directory does not exist: {error.strerror}") from error
    for folder in run.include_directories:
        _existing_folder(os.path.join(cwd, folder), "include_directories")
    for folder in run.policy.writable:
        _existing_folder(os.path.join(cwd, folder), "the policy's writable folder")
    # 3. What decides beside the policy. These fields change how it is compiled: what it would ask
    # about is denied if there is no one to ask, and folders with held-out scenarios are hidden.
    can_ask = has_asker in (True, "permissions", "all") or run.is_answered_remotely
    mode = run.permission_mode
    run = msgspec.structs.replace(
        run,
        interactive=mode == "auto" or (mode == "prompt" and can_ask),
        has_person=has_asker in (True, "questions", "all") or run.is_answered_remotely,
        own_tools=tuple(own_tools),
        hooked=on_tool_call is not None,
    )
    checks = _checks(run)
    run = msgspec.structs.replace(run, hidden=(*run.hidden, *_held_out(checks)))
    # 4. What the policy means, and what enforces it: the agent, or a sandbox. The run is replaced
    # with the one that was decided about, whose policy has the form that this agent can enforce:
    # from here on no other one may be started.
    decision = enforcement.decide(agent, run, cwd)
    enforcement.check(agent, decision)
    run = decision.run
    _check_files_and_services(agent, run, cwd)
    # 5. What this machine has. In a replay the agent is replaced with the player of the recording.
    machine = _find_on_machine(agent, run)
    agent, chosen, route = machine.agent, machine.chosen, machine.route
    # A probe may have found that this program does not keep to a rule: then the policy is compiled
    # again without what the program cannot do, and must still be enforceable.
    proof = find_proof(agent, run, machine.program)
    if proof.failed:
        decision = enforcement.decide_again(agent, decision, proof.failed, cwd)
        enforcement.check(agent, decision)
    inherits, credentials = run.inherit == "user", chosen.files
    hook, recording = _hook(agent, on_tool_call, cwd), _recording(agent, run, cwd)
    guard = PathGuard(
        cwd,
        run.include_directories,
        run.policy.writable,
        protects=not run.policy.is_unlimited,
    )
    # Last: the shorter the time between this check and the start, the less can be exchanged.
    _check_folders(run, guard)
    return PreparedRun(
        agent=agent,
        run=run,
        cwd=cwd,
        program=machine.program,
        proof=proof,
        environment=chosen.environment,
        auth=chosen.kind,
        meter=None if isinstance(route, str) else route,
        meter_reason=route if isinstance(route, str) else None,
        budget=_budget(agent, run, route, budget),
        limit_waits=_limit_waits(run),
        compiled=decision.compiled,
        servers=decision.compiled.grants.started(run.mcp_servers),
        sandbox=decision.sandbox,
        sandbox_reason=decision.reason,
        linked=(*credentials, *(_in_home(agent.user_files) if inherits else ())),
        credentials=credentials,
        project_files=_project_files(agent, Path(cwd)),
        user_settings=_user_settings(agent) if inherits else {},
        helpers=programs.helpers(agent, chosen.environment.values.get("PATH")),
        guard=guard,
        hook=hook,
        recording=recording,
        checks=checks,
    )


_checked_folders: ContextVar[tuple[str, ...]] = ContextVar("_checked_folders", default=())


@contextmanager
def only_in(folders: tuple[str, ...]) -> Iterator[None]:
    """Within the block, no session is prepared in one of these real paths once it is a link: an
    agent may replace a folder after it was checked."""
    token = _checked_folders.set(folders)
    try:
        yield
    finally:
        _checked_folders.reset(token)


def _check_folders(run: RunOptions, guard: PathGuard) -> None:
    """Raises ``NotPermitted``."""
    for folder, real in zip((run.cwd, *run.policy.writable), guard.writable, strict=True):
        if folder in _checked_folders.get() and str(folder) != real:
            raise NotPermitted(f"the folder {folder} was replaced by a link since it was checked")


def _hook(agent: AgentSpec, on_tool_call: Before | None, cwd: str) -> ToolCallHook | None:
    if on_tool_call is None:
        return None
    from corral._sessions.tools.hooks import ToolCallHook

    return ToolCallHook(on_tool_call, agent=agent.name, cwd=cwd)


def _recording(agent: AgentSpec, run: RunOptions, cwd: str) -> RecordingFile | None:
    if run.record_to is None:
        return None
    from corral._sessions.recording import choose_recording

    return choose_recording(agent, run.record_to, cwd)


def _checks(run: RunOptions) -> tuple[Check, ...]:
    """Raises ``ConfigError``."""
    if not run.verify and run.scenarios is None:
        return ()
    from corral._verification.verification import make_checks

    given = [*run.verify]
    if run.scenarios is not None:
        from corral._verification.scenarios.scenario_check import scenarios

        threshold = run.scenario_threshold
        given.append(scenarios(run.scenarios, threshold=threshold, judge=run.judge))
    return make_checks(given, run.verify_timeout)


def _held_out(checks: Iterable[Check]) -> Iterator[str]:
    """The folders of held-out scenarios. Raises ``ConfigError`` and ``MissingKey`` for their
    judging models."""
    if any(check.kind == "scenarios" for check in checks):
        from corral._verification.scenarios.scenario_check import ScenarioCheck

        for check in checks:
            if isinstance(check, ScenarioCheck):
                check.check_judge()
                yield check.source.path


class _OnMachine(msgspec.Struct, frozen=True):
    """What this machine has for an agent."""

    agent: AgentSpec
    program: programs.FoundProgram
    chosen: ChosenCredentials
    route: MeterRoute | str | None
    """How its model calls are counted, or why they are not."""


def _find_on_machine(agent: AgentSpec, run: RunOptions) -> _OnMachine:
    if run.replay is not None:  # the player of the recording runs instead
        from corral._sessions.recording import with_replay

        agent, program, env = with_replay(agent, run)
    else:
        program, env = programs.locate(agent, run.program), environment.gather(agent, run)
    # The credentials were chosen when it was recorded; this machine may not have them.
    payer = run if run.replay is None else msgspec.structs.replace(run, auth="inherit")
    chosen = choose_credentials(agent, payer, env, _in_home(agent.credential_files))
    return _OnMachine(agent, program, chosen, _meter_route(agent, run, program, chosen))


def _check_files_and_services(agent: AgentSpec, run: RunOptions, cwd: str) -> None:
    if run.otel is not None:
        from corral._telemetry import sender

        sender.check(run.otel)
    _check_prompt_files(run, cwd)
    if agent.runs_git and run.inherit == "nothing":
        _refuse_git_programs(agent, Path(cwd))


def _check_prompt_files(run: RunOptions, cwd: str) -> None:
    for path in (*run.images, *run.audio, *run.attachments):
        full = os.path.join(cwd, path)
        if not fs.is_file(full):
            raise ConfigError(f"a file for the prompt does not exist: {full}")
        if fs.status(full).st_size > LARGEST_FILE:
            raise ConfigError(f"a file for the prompt is over {LARGEST_FILE:,} bytes: {full}")


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
    limits = {name: getattr(run, name) for name in LIMITS}
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
    from corral._metering.budget import Budget

    return Budget(**limits, on_budget=run.on_budget, parent=parent)


def _limit_waits(run: RunOptions) -> LimitWaits | None:
    """What waits for rate limits; None if nothing does. For no time if another agent continues."""
    if run.on_limit == "fail":
        return None
    from corral._metering.rate_limits import LimitWaits

    return LimitWaits(run.max_wait if run.on_limit == "wait" else 0.0)


@functools.cache
def _finish_checks_left_behind() -> None:
    """Once per process: look at what the agents of a killed corral did to repositories."""
    if fs.is_dir(paths.git_checks()):
        from corral._system.sandbox.repository_guard import finish_left_behind

        for notice in finish_left_behind():
            warnings.warn(f"after a run that was killed, {notice.message}", stacklevel=2)


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
        from corral._publishing import notify

        notify.check(run.notify)
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


def _existing_folder(path: str, what: str) -> str:
    if not path.strip():
        raise ConfigError(f"{what} is empty")
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"{what} is not UTF-8: {path!r}") from error
    full = os.path.abspath(os.path.expanduser(path))
    if not fs.exists(full):
        raise ConfigError(f"{what} does not exist: {full}", hint="Name a folder that exists.")
    if not fs.is_dir(full):
        raise ConfigError(f"{what} is not a folder: {full}")
    if not fs.may_enter(full):
        raise ConfigError(f"{what} cannot be read: {full}")
    return fs.real_path(full)


def _in_home(names: tuple[str, ...]) -> tuple[str, ...]:
    home = paths.user_home()
    return tuple(name for name in names if fs.exists(home / name))


def _user_settings(agent: AgentSpec) -> dict[str, Json]:
    path = paths.user_home() / (agent.user_settings or "")
    if agent.user_settings is None or not fs.is_file(path):
        return {}
    try:
        return decode_json(fs.read_bytes(path), dict[str, Json])
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(
            f"inherit='user': {path} cannot be read: {error}",
            hint="Fix the file (comments are not understood here), or leave inherit out.",
        ) from error


def _refuse_git_programs(agent: AgentSpec, cwd: Path) -> None:
    """For an agent that runs git by itself. Raises ``UntrustedFolder``."""
    from corral._system.git import dangerous_settings

    settings = dangerous_settings.starts_programs(cwd)
    if settings:
        lines = ", ".join(f"{setting.name} = {setting.value}" for setting in settings[:5])
        raise UntrustedFolder(
            f"{agent.title} runs git here, and this repository's settings would make git start"
            f" programs or read other files: {lines}",
            hint="If you trust them, set inherit='project' (--inherit project).",
            phase="config",
        )


def _project_files(agent: AgentSpec, cwd: Path) -> tuple[str, ...]:
    """Files of the repository that the agent would obey. The user's home is not a repository: its
    settings folder counts only if it is the working directory itself."""
    files = [cwd / name for name in agent.project_files if fs.exists(cwd / name)]
    for folder in (cwd, *cwd.parents):
        files += [folder / name for name in agent.parent_files if fs.exists(folder / name)]
    return tuple(str(path) for path in dict.fromkeys(files))


def for_prompt(
    session: PreparedRun,
    name: str,
    options: Mapping[str, object],
    chosen: Mapping[str, object],
    *,
    has_asker: bool | Answers,
    on_tool_call: Before | None = None,
) -> PreparedRun:
    """The session's ``PreparedRun`` with what one prompt has ``chosen``. The other arguments are
    those that the session was prepared with. Raises ``ConfigError``."""
    checked = RunOptions.build(session.run.agent, chosen)
    if not {"model", "policy", "reasoning_effort"} & chosen.keys():
        run = msgspec.structs.replace(session.run, **{k: getattr(checked, k) for k in chosen})
        if {"images", "audio", "attachments"} & chosen.keys():
            _check_supported(session.agent, run)
            _check_prompt_files(run, session.cwd)
        return msgspec.structs.replace(session, run=run)
    if session.run.replay is not None:
        raise ConfigError("a recording was made with one model and one policy: replay has no other")
    merged: dict[str, object] = {**options, **chosen}
    if "policy" in chosen:
        policy, own_mcp = checked.policy, session.run.policy.own_mcp
        if policy.mcp is None and policy.own_mcp is None and own_mcp is not None:
            # The caller's own functions stay allowed if there is no rule for tool servers.
            policy = msgspec.structs.replace(policy, own_mcp=own_mcp)
        merged["policy"] = policy
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
    return msgspec.structs.replace(
        prepared,
        budget=session.budget,
        limit_waits=session.limit_waits,
        recording=session.recording,
        editor=session.editor,
    )


def check_narrower(policy: Policy, session: PreparedRun) -> None:
    """Raises ``ConfigError`` for a policy of one prompt that allows more than the session's."""
    # Folders are compared by where they lead: one may be a link that the agent has made.
    real = PathGuard(session.cwd, writable=policy.writable).writable[1:]
    own = msgspec.structs.replace(session.run.policy, writable=session.guard.writable[1:])
    if not is_narrower(msgspec.structs.replace(policy, writable=real), own, session.agent.tools):
        raise ConfigError(
            "the policy of a prompt may only be narrower than the session's, and this one is wider,"
            " or has rules that cannot be compared with the session's",
            hint="Start the session with the wider policy; a named one is ended first, by corral"
            " sessions stop NAME. In Python, a narrower one can be made of the session's own:"
            " msgspec.structs.replace(policy, write='deny').",
        )


def needs_new_process(prompt: PreparedRun, running: PreparedRun) -> bool:
    """Whether a process that was started for ``running`` cannot serve ``prompt``."""
    if prompt.acp.model_at_start and prompt.run.model != running.run.model:
        return True
    if prompt.run.reasoning_effort != running.run.reasoning_effort:
        return True
    if (prompt.sandbox is None) != (running.sandbox is None):
        return True
    if prompt.run.policy == running.run.policy:
        return False
    rows = (*prompt.compiled.report, *running.compiled.report)
    mode = prompt.run.policy.mode != running.run.policy.mode
    return mode or any(row.enforcers != {"brokered"} for row in rows)


def with_model_name(agent: AgentSpec, run: RunOptions, model: str) -> RunOptions:
    """The run with the model's name in the form of the agent. Raises ``ConfigError`` for a model
    that the agent cannot have."""
    from corral._models.registry import (
        canonical,
        find_provider,
        is_model_name,
        vendor_of,  # most runs name no model
    )

    if agent.for_run is not None:
        return msgspec.structs.replace(run, model=canonical(model))
    if not agent.vendor:
        return run
    # Behind a base URL of the user any service may answer, so any bare name and any name with a
    # slash is its own there.
    variable = agent.probe.url_env if agent.probe is not None else ""
    has_own_service = bool(environment.gather(agent, run).agent_values.get(variable))
    full = model if has_own_service else canonical(model)
    if is_model_name(full):
        prefix, _, bare = full.partition(":")
        vendor = find_provider(prefix).name
    else:
        vendor, bare = ("" if has_own_service else vendor_of(full)), full
    if not vendor or vendor == agent.vendor:
        return msgspec.structs.replace(run, model=bare)
    full = f"{vendor}:{bare}"
    hint = f"corral's own agent runs it: --model {full} without --agent (model={full!r})"
    names: dict[str, str] = {}  # title -> its short name
    for other in registry.all_agents():
        if other.vendor == vendor and other.aliases:
            names.setdefault(other.title, other.aliases[0])
    for title, name in names.items():
        hint += f"; {title} too: --agent {name} --model {bare}"
    raise ConfigError(f"{agent.title} has no model of another vendor: {model}", hint=f"{hint}.")
