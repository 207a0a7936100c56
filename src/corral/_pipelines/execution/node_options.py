"""What the attributes of a node set: its agent and model, the options of ``corral.run``, its
policy, and the sandbox of its command.

With ``sandbox=auto`` or ``require`` of the node, of the run or of ``corral.toml``, a command runs
in the sandbox, because it may execute what an agent wrote. It can write the workspace, whatever the
policy says of the agents' edits. The policy decides about the network, its hosts and ``.git``.
"""

from __future__ import annotations

import os
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, TypeVar, cast, get_args

import msgspec

from corral._agents import registry
from corral._core.nesting import decode_json
from corral._core.spending import LIMITS, BudgetLimits
from corral._option_definitions import BY_NAME, with_trait
from corral._pipelines import loader, node_kinds
from corral._pipelines.execution.handlers import NodeContext, NodeResources
from corral._pipelines.execution.interviewers import ANSWER_TIMEOUT
from corral._pipelines.graph import Node
from corral._system import config
from corral._system.environment import variables
from corral.errors import ConfigError
from corral.options import SANDBOX_MODES, RunOptions, SandboxMode, fallback_agents
from corral.policy import PRESETS, Policy, with_tools
from corral.run_kwargs import RunKwargs
from corral.values import Effort, JsonObject, convert_to, is_object

if TYPE_CHECKING:
    from corral._metering.budget import Budget
    from corral._system.sandbox.sandbox import Sandbox
    from corral._verification.scenarios.scenario_check import ScenarioCheck

Number = TypeVar("Number", int, float)
Choice = TypeVar("Choice", bound=str)

TIMEOUT = 3600.0
"""Seconds that an agent may work if the node has no ``timeout``."""
NODE_OPTIONS = with_trait("node")
"""Attributes of a node that set the option of ``corral.run`` with the same name."""
_READ_APART = {
    *("policy", "allowed_tools", "timeout", "pass_env", "reasoning_effort", "sandbox", "verify"),
}
"""Those whose attribute is read by its own function."""
_CONVERTED = ("count", "amount", "paths", "texts")
"""Kinds of options whose text is not their value."""
EFFORTS: tuple[Effort, ...] = get_args(Effort)
BUILT_IN = "corral"
"""The built-in agent, which runs on any model."""


def model_of(node: Node, resources: NodeResources) -> str | None:
    """``vendor:name`` of ``model``, or of ``llm_provider`` and ``llm_model``; only the name if no
    vendor is given."""
    name = node.text("model") or node.text("llm_model")
    provider = node.text("llm_provider")
    if not name:
        return resources.model
    if provider and not registry.names_a_model(name):
        return f"{provider}:{name}"
    return name


def agent_of(work: NodeContext) -> tuple[str, str | None]:
    """The agent, and the model as that agent names it. Raises ``ConfigError``."""
    named = work.node.text("agent") or str(work.graph.attrs.get("agent", ""))
    model = model_of(work.node, work.resources)
    if registry.names_a_model(named):
        return named, None
    if not named:
        # A model with its vendor runs on the built-in agent, a bare name on the default agent.
        if model is not None and ":" in registry.full_name(model):
            return registry.default(model), None
        named = work.resources.agent
    agent = config.find_agent(named)
    if agent.name == BUILT_IN or model is None:
        return named, model
    bare = model.partition(":")[2] if registry.names_a_model(model) else model
    return named, bare


def limit_rule(node: Node, options: RunKwargs, agent: str) -> RunOptions:
    """What a node with this agent does at a rate limit (``on_limit``, ``max_wait``): by the node,
    the run's ``options`` or ``corral.toml``. Raises ``ConfigError``."""
    spec = config.find_agent(agent)
    given: dict[str, object] = {
        name: value
        for name in ("on_limit", "max_wait")
        if (value := node.text(name) or options.get(name)) is not None
    }
    return RunOptions.build(spec.name, given, config.load(spec.name), "corral.toml")


def node_rule(work: NodeContext) -> RunOptions | None:
    """What the node's agent does at a rate limit; None if the node runs no agent. Raises
    ``ConfigError``."""
    if work.resources.simulate or node_kinds.find(work.node.kind).llm != "agent":
        return None
    return limit_rule(work.node, work.resources.options, agent_of(work)[0])


def verify_seconds(work: NodeContext) -> float:
    """How long the checks of the node's agent may take, after its own time. Raises
    ``ConfigError``."""
    options: dict[str, object] = {**work.resources.options, **_read_attributes(work.node)}
    names = ("verify", "verify_timeout")
    given = {name: options[name] for name in names if options.get(name) is not None}
    run = RunOptions.build(BUILT_IN, given)
    return len(run.verify) * run.verify_timeout


def policy_of(work: NodeContext) -> Policy | None:
    """The policy of the node, else of the resources; None if neither has one."""
    node, defaults = work.node, work.resources.options
    name = node.text("policy") or str(work.graph.attrs.get("policy", ""))
    given: dict[str, object] = {
        "policy": defaults.get("policy"),
        "approval_mode": defaults.get("approval_mode"),
        "allowed_tools": defaults.get("allowed_tools"),
    }
    given = {key: value for key, value in given.items() if value is not None}
    policy = RunOptions.build(BUILT_IN, given).policy if given else None
    if name:
        if name not in PRESETS:
            raise ConfigError(
                f"{node.id}: policy must be one of {', '.join(PRESETS)}, got: {name!r}"
            )
        policy = PRESETS[name]
    if "allowed_tools" in node.attrs:
        policy = with_tools(policy or Policy(), tuple(node.names("allowed_tools")))
    return policy


def options_of(work: NodeContext, agent: str) -> tuple[RunKwargs, list[str]]:
    """The options of ``corral.run``, and notes about those that the agent does not have. Raises
    ``ConfigError``."""
    node = work.node
    options = work.resources.options.copy()
    for name in ("policy", "approval_mode", "allowed_tools", "model"):
        cast("dict[str, object]", options).pop(name, None)
    options["cwd"] = str(work.workspace)
    options.setdefault("record", False)  # the folder of the run has what its nodes did
    options["hidden"] = hidden_of(work)
    options["timeout"] = node.seconds("timeout") or options.get("timeout") or TIMEOUT
    if may_ask(work):
        waits = node.seconds("answer_timeout") or ANSWER_TIMEOUT
        options["answer_timeout"] = waits
        if not node.seconds("timeout"):
            options["timeout"] = TIMEOUT + waits
    # An agent reports that it needs a person. The end of the run is reported by the run itself.
    if options.get("notify_on") == "end":
        options.pop("notify", None)
        options.pop("notify_on", None)
    elif options.get("notify") is not None:
        options["notify_on"] = "person"
    if (policy := policy_of(work)) is not None:
        options["policy"] = policy
    if passed := work.resources.pass_env(work):
        options["pass_env"] = passed
    cast("dict[str, object]", options).update(_read_attributes(node))
    rule = limit_rule(node, options, agent)
    if rule.on_limit != "fail":
        options["on_limit"] = rule.on_limit
        if work.longest_hold is not None and not fallback_agents(rule.on_limit):
            # A durable node waits for a longer limit without its agent and its process.
            options["max_wait"] = min(work.longest_hold, rule.max_wait)
            options["keep"] = True  # its session is resumed
    spec = config.find_agent(agent)
    if "program" in options and spec.name != config.find_agent(work.resources.agent).name:
        del options["program"]  # it is the program of the run's default agent
    effort: Effort | None = choice_of(node, "reasoning_effort", EFFORTS)
    if effort is not None and "reasoning_effort" not in spec.supports:
        # Not an error: a stylesheet may set it for every node.
        return options, [f"{spec.name} has no reasoning_effort"]
    if effort is not None:
        options["reasoning_effort"] = effort
    return options, []


def _read_attributes(node: Node) -> dict[str, object]:
    """The options that attributes of the node set under the same name. Raises ``ConfigError``."""
    values: dict[str, object] = {}
    for name in NODE_OPTIONS - _READ_APART:
        kind = BY_NAME[name].kind
        if kind in ("count", "amount") and name in node.attrs:
            values[name] = number_of(node, name, int if kind == "count" else float)
        elif kind in ("paths", "texts") and (names := node.names(name)):
            values[name] = names
        elif kind == "on" and name in node.attrs:
            values[name] = node.is_true(name)
        elif kind not in (*_CONVERTED, "on") and (text := node.text(name)):
            values[name] = text
    if command := node.text("verify"):
        values["verify"] = [command]
    if mode := choice_of(node, "sandbox", SANDBOX_MODES):
        values["sandbox"] = mode
    return values


def budget_of(work: NodeContext) -> Budget | None:
    """What the model calls of a node without an agent may use, within the budget of the run. Raises
    ``ConfigError``."""
    from corral._metering.budget import memory_budget

    given = {**work.resources.options, **_read_attributes(work.node)}
    limits = {name: given[name] for name in LIMITS if given.get(name) is not None}
    pauses = given.get("on_budget") == "pause"
    return memory_budget(convert_to({**limits, "pauses": pauses}, BudgetLimits), work.budget)


def may_ask(work: NodeContext) -> bool:
    """Whether the agent of the node may ask the person of the run."""
    return work.ask_person is not None and work.node.is_true("questions")


def hidden_of(work: NodeContext) -> list[str]:
    """What no agent or command of the run may read: what the options hide, and the scenarios of
    the graph."""
    given = work.resources.options.get("hidden") or ()
    found = [os.path.join(work.workspace, path) for path in given]
    found += [
        scenario_folder(node, work.workspace)
        for node in work.graph.of_kind(node_kinds.SCENARIOS.name)
    ]
    return list(dict.fromkeys(found))


def scenario_folder(node: Node, workspace: Path) -> str:
    """The folder of a node ``scenarios``. It may name variables of the environment, but no values
    of the context: an agent can set those."""
    text = Template(node.text("scenarios").strip()).safe_substitute(variables())
    return os.path.join(workspace, os.path.expanduser(text))


def scenario_check(work: NodeContext) -> ScenarioCheck:
    """The check of a node ``scenarios``. Reads its folder. Raises ``ConfigError``."""
    from corral._verification.scenarios.scenario_check import THRESHOLD, scenarios

    node = work.node
    threshold = number_of(node, "threshold", float) if "threshold" in node.attrs else THRESHOLD
    folder = scenario_folder(node, work.workspace)
    return scenarios(folder, threshold=threshold, judge=node.text("judge") or None)


def scenario_sandbox(work: NodeContext) -> Sandbox:
    """The sandbox in which scenarios are run. Raises as ``command_sandbox``."""
    policy = Policy(write="allow", shell="allow", network="deny")
    sandbox = sandbox_for(work, (), forced="require", policy=policy)
    if sandbox is None:
        raise TypeError("a required sandbox is there or raises")
    return sandbox


def choice_of(node: Node, key: str, choices: tuple[Choice, ...]) -> Choice | None:
    """An attribute that is one of these words; None if the node does not have it. Raises
    ``ConfigError``."""
    text = node.text(key)
    for choice in choices:
        if choice == text:
            return choice
    if text:
        raise ConfigError(f"{node.id}: {key} must be one of {', '.join(choices)}, got: {text!r}")
    return None


def number_of(node: Node, key: str, kind: type[Number]) -> Number:
    """Raises ``ConfigError``."""
    try:
        return kind(node.attrs[key])
    except ValueError:
        raise ConfigError(f"{node.id}: {key} must be a number, got: {node.text(key)!r}") from None


def read_output_schema(work: NodeContext) -> JsonObject | None:
    """``output_schema``: a JSON Schema, or the name of a file in the workspace that has one. Raises
    ``ConfigError``."""
    text = work.node.text("output_schema").strip()
    if not text:
        return None
    where = "output_schema"
    if not text.startswith("{"):
        path = Path(os.path.join(work.workspace, text))
        where = f"output_schema {path}"
        try:
            text = loader.load_file(path).decode()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{work.node.id}: {where} cannot be read: {error}") from error
    try:
        schema: object = decode_json(text)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{work.node.id}: {where} is not JSON: {error}") from error
    if not is_object(schema):
        raise ConfigError(f"{work.node.id}: {where} is not a JSON Schema: it must be an object")
    return schema


def command_sandbox(work: NodeContext) -> Sandbox | None:
    """None: the command runs without one. Raises ``SandboxFailed`` if one is required that this
    machine does not have, and ``ConfigError`` for a folder around which none can be built."""
    return sandbox_for(work, (str(work.folder),) if work.writes_files else ())


def sandbox_for(
    work: NodeContext,
    own: tuple[str, ...],
    *,
    forced: SandboxMode | None = None,
    default: SandboxMode | None = None,
    policy: Policy | None = None,
) -> Sandbox | None:
    """The same for a command that may also write the folders ``own``. ``forced``: instead of the
    mode of the node and the run; ``default``: if they have none. ``policy``: instead of theirs."""
    chosen: object = forced or choice_of(work.node, "sandbox", SANDBOX_MODES)
    if chosen is None:
        options = work.resources.options
        chosen = options.get("sandbox") or work.resources.configured_sandbox or default
    hidden = hidden_of(work)
    if hidden and chosen in ("off", "agent"):
        raise ConfigError(
            f"{work.node.id}: sandbox={chosen}, and the run hides folders, which needs the sandbox",
            hint="Put the node into another pipeline, or leave its sandbox out.",
        )
    if hidden:
        chosen = "require"
    if chosen not in ("auto", "require"):
        return None
    from corral._sessions import sandbox

    policy = policy or policy_of(work)
    run = RunOptions.build(BUILT_IN, {"sandbox": chosen, "policy": policy, "hidden": hidden})
    return sandbox.for_user_command(run, str(work.workspace), own)
