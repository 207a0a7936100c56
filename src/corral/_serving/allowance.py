"""What a caller may do: other agents, editors and services that start runs through a protocol.

Theory of operation
-------------------
Who starts a server of corral (``corral mcp``, ``corral serve``) makes an ``Allowance``: agents,
models, a policy, folders, limits, and all other options of the runs. A caller sends requests. Each
is read into a record that has the few fields that a caller may set, and no other
(``read_request``), then checked (``Allowance.check``): a caller can narrow what it was given, never
widen it. So no request can set a variable, a program, an MCP server, a hook, the sandbox or a path
where something is recorded: there is no field for it.

What is refused raises ``NotPermitted`` before anything starts. Its message is one line that says
what was asked, what is permitted, and who set the limit. A caller may be an agent that follows an
injected text: the line is for the person who reads its transcript.

``Allowance.narrowed`` makes the allowance of one client of a server.

Agents that call agents: each run of a caller has its depth in ``CORRAL_DEPTH``, which agents and
their commands inherit; a server also looks at the processes above it. A server refuses runs that
would be deeper than its allowance says. This ends loops of agents; it is no boundary for an agent
that may run any command, which can start programs without the variable.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, TypeVar, cast, get_args

import msgspec
from msgspec.structs import force_setattr, replace

from corral._agents import registry
from corral._core.display import shorten
from corral._core.durations import seconds
from corral._core.durations import text as duration_text
from corral._core.lookup import nearest
from corral._core.nesting import TOO_DEEP, is_too_deep
from corral._core.protected_paths import protection_of
from corral._core.spending import LIMITS, BudgetLimits, LimitFields
from corral._core.terminal_text import any_of
from corral._sessions.session_link import PERSON
from corral._system import config, fs
from corral._system.environment import DEPTH, variable
from corral._system.path_guard import PathRefused, resolve
from corral._system.paths import is_inside
from corral._system.platform import ancestor_values
from corral.errors import ConfigError, NotPermitted, PromptError
from corral.events import Decision, ToolKind
from corral.options import KNOWN
from corral.policy import PRESETS, Policy, is_narrower, policy_from_table
from corral.run_kwargs import RunKwargs
from corral.values import Effort, Json, JsonObject, as_object, convert_to

if TYPE_CHECKING:
    from corral._pipelines.loader import LoadedFiles

CallerAnswers: TypeAlias = Literal["nothing", "questions", "all"]
"""What a caller may answer: the questions of its agents, or also their permission requests and the
gates of pipelines."""
MAX_PROMPT = 8 << 20
"""Bytes of a prompt. An agent may take less."""
LARGEST_FIELD = 16 << 10
"""Bytes of a field of a request, as JSON, if it is no text for an agent: it is checked in the event
loop, each path of a policy in the file system."""
LARGEST_FIELDS = dict.fromkeys(("answers", "output_schema", "text", "values"), 1 << 20)
LARGEST_FIELDS |= {"goal": MAX_PROMPT}
"""Other fields that may be larger; ``check_prompt`` is for the prompt."""
DEFAULT_TIMEOUT = 600.0

T = TypeVar("T")
R = TypeVar("R", bound=msgspec.Struct)


class Limits(LimitFields, msgspec.Struct, frozen=True, kw_only=True):
    """What a caller may set for one run, within its allowance."""

    policy: str | JsonObject | None = None
    """``reads``, ``edits``, ``all``, ``plan``, or a table with ``preset`` and fields of ``Policy``:
    without a preset, the others stay as the allowance has them."""
    timeout: float | str | None = None


class RunRequest(Limits, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A caller wants an agent to work."""

    prompt: Annotated[str, msgspec.Meta(extra_json_schema={"pattern": r"\S"})]
    agent: str | None = None
    model: str | None = None
    cwd: str | None = None
    """A folder; relative to the first one of the allowance."""
    reasoning_effort: Effort | None = None
    session: str | None = None
    """Continue this session, which the caller has started."""
    output_schema: JsonObject | None = None
    """The answer is a value of this JSON Schema."""


class PipelineRequest(
    Limits, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True
):
    """A caller wants a pipeline to run."""

    pipeline: str
    goal: str | None = None
    values: JsonObject = msgspec.field(default_factory=dict)
    cwd: str | None = None


class RunAnswer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A caller answers what one of its runs asks."""

    request_id: str = ""
    """Needed if several requests are open."""
    decision: Decision | None = None
    """For a permission request; ``deny`` declines a question."""
    text: str | None = None
    answers: JsonObject | None = None
    """The answers to a question with several fields, by their keys."""


class AnswerRequest(RunAnswer, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The same, with the run in it."""

    run: str


class Narrowing(Limits, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one client of a server may do less than others; None: the same."""

    agents: tuple[str, ...] | None = None
    models: tuple[str, ...] | None = None
    folders: tuple[str, ...] | None = None
    pipelines: tuple[str, ...] | None = None
    concurrency: int | None = None
    depth: int | None = None
    answers: CallerAnswers | None = None
    keeps_runs: bool | None = None


class CheckedRun(msgspec.Struct, frozen=True):
    """A request that is permitted."""

    agent: str
    options: RunKwargs

    @property
    def writable(self) -> tuple[str, ...]:
        """The real paths of the folders that the run may write."""
        policy = cast("Policy", self.options["policy"])
        return (str(self.options["cwd"]), *policy.writable)


class Allowance(msgspec.Struct, frozen=True, kw_only=True):
    """What a caller may do. Folders are real paths. Raises ``ConfigError`` for wrong values."""

    set_by: str = "the one who started corral"
    sources: dict[str, str] = {}
    """Field → how it was set, such as ``--approve reads``."""
    agents: tuple[str, ...] = ()
    """Empty: each agent that corral knows by a name, but a person."""
    models: tuple[str, ...] = ()
    """Empty: each model. The first is the one of a request that names none."""
    policy: Policy = Policy.reads()
    folders: tuple[str, ...] = ()
    """A run works in one of them or below. The first is the one of a request that names none."""
    pipelines: dict[str, str] = {}
    """Name → file. A caller cannot send one: a pipeline runs commands."""
    loaded: dict[str, LoadedFiles] = {}
    """Of each pipeline, all the files that it loads, as they were when the server started: an agent
    of a caller may change them, also during a run."""
    timeout: float = DEFAULT_TIMEOUT
    """The longest run, in seconds, and the time of a request that names none."""
    limits: BudgetLimits = BudgetLimits()
    """For all runs of the caller together."""
    concurrency: int = 4
    """Runs at once."""
    depth: int = 1
    """How many agents may have called each other: 1, if no agent of the caller calls further
    ones."""
    answers: CallerAnswers = "questions"
    keeps_runs: bool = False
    """Whether runs go on when the caller has gone away."""
    label: str = "served"
    """In every session of the caller, which finds them by it."""
    options: RunKwargs = {}
    """All other options of the runs. A caller cannot change them."""

    def __post_init__(self) -> None:
        folders = self.folders or (".",)
        for folder in folders:
            if not fs.is_dir(folder):
                raise ConfigError(f"the folder of callers does not exist: {folder}")
        force_setattr(self, "folders", tuple(map(fs.real_path, folders)))
        # Relative paths do not move with the folder that a caller chooses.
        writable = self._absolute(self.policy.writable)
        force_setattr(self, "policy", replace(self.policy, writable=writable))
        options: RunKwargs = {**self.options}
        if (paths := options.get("include_directories")) is not None:
            options["include_directories"] = self._absolute(paths)
        if (paths := options.get("hidden")) is not None:
            options["hidden"] = self._absolute(paths)
        force_setattr(self, "options", options)
        loaded = {
            name: self.loaded.get(name) or self._load(f) for name, f in self.pipelines.items()
        }
        force_setattr(self, "loaded", loaded)
        for name in ("concurrency", "depth"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got: {getattr(self, name)}")
        if not self.timeout > 0:
            raise ConfigError(f"timeout must be more than 0, got: {self.timeout:g}")
        current_depth()  # while the processes above this one are there

    def _absolute(self, paths: Iterable[str | os.PathLike[str]]) -> tuple[str, ...]:
        """Real paths; relative ones are below the first folder, or below the current one if any
        folder is permitted."""
        base = "" if self.folders[0] == "/" else self.folders[0]
        return tuple(fs.real_path(os.path.join(base, os.path.expanduser(path))) for path in paths)

    def _load(self, pipeline: str) -> LoadedFiles:
        from corral._pipelines import loader

        return loader.loaded_files(Path(pipeline), Path(self.folders[0]))

    def check(self, request: RunRequest) -> CheckedRun:
        """The options of a permitted run. Whether its session is one of the caller is not checked
        here. Raises ``NotPermitted``, and ``ConfigError`` for wrong values."""
        check_prompt(request.prompt)
        agent, model = self._agent_and_model(request)
        options = self._options(request, request.cwd, agent)
        if model is not None:
            options["model"] = model
        if request.reasoning_effort is not None:
            options["reasoning_effort"] = request.reasoning_effort
        if request.session is not None:
            options["resume"] = request.session
        return CheckedRun(agent, options)

    def check_pipeline(self, request: PipelineRequest) -> CheckedRun:
        """The default agent and the options of a permitted pipeline. The attributes of its nodes
        win over them: who named the file permits what is in it."""
        if request.pipeline not in self.pipelines:
            raise self.refusal("pipelines", f"pipeline {request.pipeline!r}", self.pipelines)
        for file, content in self.loaded[request.pipeline].items():
            if _content(file) != content:
                raise NotPermitted(
                    f"the file {file} of the pipeline {request.pipeline} has changed since the"
                    " server started: it must be started again"
                )
        agent, model = self._agent_and_model(RunRequest(prompt=""))
        options = self._options(request, request.cwd, None)  # its nodes may have other agents
        if model is not None:
            options["model"] = model
        return CheckedRun(agent, options)

    def refusal(self, field: str, asked: str, permitted: str | Iterable[str]) -> NotPermitted:
        """The error for what exceeds a field: what was asked, what is permitted, who set it."""
        if not isinstance(permitted, str):
            permitted = f"only {', '.join(permitted) or 'none'}"
        return NotPermitted(f"{asked} is not permitted: {permitted} ({self.source(field)})")

    def source(self, field: str) -> str:
        """Who set the limit, and how."""
        how = self.sources.get(field, "the default")
        return how if how.startswith("set by ") else f"set by {self.set_by}: {how}"

    def narrowed(self, by: Narrowing, client: str) -> Allowance:
        """The allowance of one client. Raises ``NotPermitted`` if it would be wider."""
        checks: dict[str, Callable[[Any], object]] = {
            "agents": lambda names: tuple(self._client_agents(names)),
            "models": lambda names: self._known("models", names, self.models or names),
            "pipelines": lambda names: {
                name: self.pipelines[name]
                for name in self._known("pipelines", names, self.pipelines)
            },
            "policy": lambda asked: self._policy(asked, None, self.folders[0]),
            "folders": lambda folders: tuple(map(self.folder, folders)),
            "timeout": self._timeout,
            "concurrency": lambda number: self._at_most("concurrency", number, self.concurrency),
            "depth": lambda number: self._at_most("depth", number, self.depth),
            "answers": self._caller_answers,
            "keeps_runs": self._keeps_runs,
        }
        new = {
            name: check(getattr(by, name))
            for name, check in checks.items()
            if getattr(by, name) is not None
        }
        if limits := self._limits(by):
            new["limits"] = replace(self.limits, **limits)
        how = f"set by the settings of client {client}"
        sources = {**self.sources, **dict.fromkeys((*new, *limits), how)}
        return replace(self, **new, label=f"{self.label}: {client}", sources=sources)

    def _known(self, field: str, names: Iterable[str], known: Collection[str]) -> tuple[str, ...]:
        for name in names:
            if name not in known:
                raise self.refusal(field, f"{field[:-1]} {name!r}", known)
        return tuple(names)

    def _caller_answers(self, asked: CallerAnswers) -> CallerAnswers:
        order = get_args(CallerAnswers)
        if order.index(asked) > order.index(self.answers):
            raise self.refusal("answers", f"to answer {asked}", f"at most {self.answers}")
        return asked

    def _keeps_runs(self, asked: bool) -> bool:
        if asked and not self.keeps_runs:
            raise self.refusal("keeps_runs", "to keep runs", "runs end with their caller")
        return asked

    def _agent_and_model(self, request: RunRequest) -> tuple[str, str | None]:
        agent, model = request.agent, request.model
        if agent is not None and _names_a_model(agent):
            if model is not None and registry.full_name(model) != registry.full_name(agent):
                raise ConfigError(f"two models are named: {agent} and {model}")
            model = agent
        default = self.models[0] if self.models else self.options.get("model")
        if agent is None:
            agent = self.agents[0] if self.agents else config.default_agent(model or default)
            if _names_a_model(agent):
                default = default or agent
        if _names_a_model(agent):
            agent = registry.find(agent).name
        agent = self._agent_name(agent)
        if own := self._own_models(agent):
            return agent, self._known_model("agents", model or own[0], own)
        if model is not None and self.models:
            self._known_model("models", model, self.models)
        return agent, model or default

    def _own_models(self, agent: str) -> tuple[str, ...]:
        """Of an agent that is permitted as ``vendor:model`` only: no other model is."""
        named = [each for each in self.agents if _spec_name(each) == agent]
        return tuple(named) if all(map(_names_a_model, named)) else ()

    def _known_model(self, field: str, model: str, permitted: tuple[str, ...]) -> str:
        if registry.full_name(model) not in map(registry.full_name, permitted):
            raise self.refusal(field, f"model {model!r}", permitted)
        return model

    def _client_agents(self, names: Iterable[str]) -> Iterable[str]:
        """Those of a client: an agent that is permitted with some models keeps these only."""
        for name in names:
            own = self._own_models(_spec_name(name))
            if own and _names_a_model(name):
                yield self._known_model("agents", name, own)
            elif own:
                yield from own
            else:
                agent = self._agent_name(name)
                yield name if _names_a_model(name) else agent

    def _agent_name(self, name: str) -> str:
        """The name of a permitted agent."""
        asked = f"agent {name!r}"
        if name in self.agents:
            return name
        is_command = len(name.split()) != 1 or "/" in name or name.startswith("acp:")
        if is_command:  # of any program: only the one who starts the server names it
            raise self.refusal("agents", asked, self.agents or "only known agents, by their names")
        spec = config.find_agent(name)
        if not self.agents:
            if PERSON in spec.capabilities:
                raise self.refusal("agents", asked, "not a person")
            return spec.name
        if any(name == spec.name for name in map(_spec_name, self.agents)):
            return spec.name
        raise self.refusal("agents", asked, self.agents)

    def _options(self, request: Limits, cwd: str | None, agent: str | None) -> RunKwargs:
        """The options of a run: those of the allowance, and what the caller narrowed."""
        depth = current_depth() + 1
        if depth > self.depth:
            raise self.refusal(
                "depth",
                f"a run at depth {depth} of agents that call agents",
                f"at most {self.depth}",
            )
        folder = self.folders[0] if cwd is None else self.folder(cwd)
        limits: dict[str, object] = dict(self._limits(request))
        env = {**self.options.get("env", {}), DEPTH: str(depth)}
        options = {
            **self.options,
            **limits,
            "cwd": folder,
            "policy": self.policy,
            "timeout": self.timeout,
            "env": env,
            "label": self.label,
        }
        if request.policy is not None:
            options["policy"] = self._policy(request.policy, agent, folder)
        if request.timeout is not None:
            options["timeout"] = self._timeout(request.timeout)
        return cast("RunKwargs", options)

    def folder(self, asked: str) -> str:
        """The real path of a permitted folder. Raises ``NotPermitted``."""
        try:
            real = resolve(asked, self.folders[0])
        except PathRefused as error:
            raise self.refusal("folders", f"the folder {asked!r}", str(error)) from error
        if reason := self._outside(real, self.folders):
            raise self.refusal("folders", f"the folder {asked!r}", reason)
        return real

    def _outside(self, real: str, roots: Sequence[str]) -> str:
        """Why a real path is not one of these folders or below one; empty if it is. What is
        protected in a folder cannot be chosen: its files would no longer be protected."""
        root = max((each for each in roots if is_inside(real, each)), key=len, default=None)
        if root is None:
            return f"it must be inside {any_of(roots)}"
        protects = root != "/" and not self.policy.is_unlimited  # "/" means any folder
        protection = protection_of(real[len(root) :]) if protects else None
        return "" if protection is None else f"it is protected: {protection.reason}"

    def _policy(self, asked: str | JsonObject, agent: str | None, cwd: str) -> Policy:
        if isinstance(asked, str):
            known = {**PRESETS, "plan": Policy.plan()}
            if asked not in known:
                raise ConfigError(
                    f"policy must be one of {', '.join(known)}, or a table, got: {asked!r}"
                )
            policy = known[asked]
        else:
            policy = policy_from_table(dict(asked), "policy")
            if "preset" not in asked:  # what it does not name stays as it is
                policy = replace(self.policy, **{name: getattr(policy, name) for name in asked})
        permitted = self.policy
        if policy.writable:
            policy = replace(policy, writable=self._writable(policy.writable, cwd))
            # A run could work in these folders instead.
            permitted = replace(permitted, writable=(*permitted.writable, *self.folders))
        tools: Mapping[str, ToolKind] = {}
        if agent is not None:
            tools = config.find_agent(agent).tools
        if policy != self.policy and not is_narrower(policy, permitted, tools):
            most = f"at most {policy_text(self.policy)}"
            raise self.refusal("policy", f"the policy {policy_text(policy)}", most)
        return policy

    def _writable(self, asked: Iterable[str], cwd: str) -> tuple[str, ...]:
        """The real paths of the folders that a caller's policy makes writable."""
        real: list[str] = []
        for folder in asked:
            try:
                real.append(resolve(folder, cwd))
                reason = self._outside(real[-1], (*self.folders, *self.policy.writable))
            except PathRefused as error:
                reason = str(error)
            if reason:
                raise self.refusal("policy", f"the writable folder {folder!r}", reason)
        return tuple(real)

    def _timeout(self, asked: float | str) -> float:
        try:
            given = seconds(asked)
        except ValueError as error:
            raise ConfigError(f"timeout: {error}") from error
        if not given > 0:
            raise ConfigError(f"timeout must be more than 0, got: {asked}")
        if given > self.timeout:
            permitted = f"at most {duration_text(self.timeout)}"
            raise self.refusal("timeout", f"a timeout of {duration_text(given)}", permitted)
        return given

    def _limits(self, asked: Limits) -> dict[str, float]:
        """The limits of the request by their names."""
        given = {name: getattr(asked, name) for name in LIMITS}
        for name, limit in given.items():
            if limit is None:
                continue
            if not limit > 0:
                raise ConfigError(f"{name} must be more than 0, got: {limit:g}")
            permitted: float | None = getattr(self.limits, name)
            if permitted is not None:
                self._at_most(name, limit, permitted)
        return {name: limit for name, limit in given.items() if limit is not None}

    def _at_most(self, field: str, asked: float, permitted: float) -> float:
        if asked > permitted:
            raise self.refusal(field, f"{field} {asked:g}", f"at most {permitted:g}")
        return asked


def current_depth() -> int:
    """How many agents have called each other until this process. Raises ``ConfigError``."""
    given = (variable(DEPTH) or "0", *ancestor_values(DEPTH))  # an agent may have dropped it
    for value in given:
        if not re.fullmatch(r"[0-9]{1,4}", value):
            raise ConfigError(f"{DEPTH} must be a number, got: {value!r}")
    return max(map(int, given))


def read_request(given: object, kind: type[R], *, set_by: str) -> R:
    """A request of a caller, checked. Raises ``ConfigError``, and ``NotPermitted`` for an option
    that only the one who started the server sets."""
    if is_too_deep(given):
        raise ConfigError(f"the request is wrong: {TOO_DEEP}")
    fields = kind.__struct_fields__
    for name in as_object(given):
        if name not in fields:
            if name in KNOWN:
                raise NotPermitted(
                    f"{name} is not an option of callers, which may set {', '.join(fields)}"
                    f" (set by {set_by})"
                )
            advice = nearest(name, fields, f"it has {', '.join(fields)}")
            raise ConfigError(f"the request has no field {shorten(name)!r}: {advice}")
    try:
        for name, value in as_object(given).items():
            _check_size(name, value)
        return convert_to(given, kind)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:  # or a lone surrogate
        raise ConfigError(f"the request is wrong: {error}") from error


def _check_size(name: str, value: Json) -> None:
    """Raise ``ConfigError`` for a field that is too large."""
    most = LARGEST_FIELDS.get(name, LARGEST_FIELD)
    if name != "prompt" and len(msgspec.json.encode(value)) > most:
        raise ConfigError(f"the request is wrong: {name} has more than {most:,} bytes")


def policy_text(policy: Policy) -> str:
    """A policy in one line: its preset, or the values that differ from the default."""
    names = (name for name, preset in PRESETS.items() if preset == policy)
    return next(names, repr(policy))


def _content(file: str) -> bytes | None:
    try:
        return fs.read_bytes(file)
    except OSError:
        return None


def _names_a_model(agent: str) -> bool:
    return registry.names_a_model(registry.full_name(agent))


def _spec_name(agent: str) -> str:
    """The name of the agent behind an alias; a command line is its own name."""
    return config.find_agent(agent).name


def check_prompt(prompt: str) -> None:
    """Raise ``PromptError`` for a prompt that is empty or too long."""
    if not prompt.strip():
        raise PromptError("the prompt is empty")
    if len(prompt) > MAX_PROMPT or len(prompt.encode("utf-8", "replace")) > MAX_PROMPT:
        raise PromptError(
            f"the prompt has more than {MAX_PROMPT:,} bytes",
            hint="Put the material into files in the working directory and name these instead.",
        )
