"""The modes of a session, and its options: what the client may choose within the allowance.

A mode is a policy. The first one is that of the allowance; the others are narrower
(``corral.policy.is_narrower``), so a client can never widen what the agent may do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

import msgspec
from msgspec.structs import replace

from corral._agents.spec import AgentSpec
from corral._metering.prices import catalogue
from corral._models.registry import is_model_name, split_model
from corral.events import ToolKind
from corral.policy import CAPABILITIES, VERDICTS, Policy, Verdict, is_narrower
from corral.values import Effort, Json, JsonObject

DEFAULT = "default"
"""The value of an option that is not set."""


class PolicyMode(msgspec.Struct, frozen=True):
    id: str
    name: str
    description: str
    policy: Policy


NAMED = (
    PolicyMode("all", "All", "Everything, without asking.", Policy.all()),
    PolicyMode("edits", "Edits", "Reading and editing files; no commands.", Policy.edits()),
    PolicyMode("reads", "Read only", "Reading files only.", Policy.reads()),
    PolicyMode("ask", "Ask", "Asks before each call but reading.", Policy(read="allow")),
)
ASKS = PolicyMode("ask", "Ask", "Asks before each call.", Policy())


def modes_within(ceiling: Policy, tools: Mapping[str, ToolKind]) -> list[PolicyMode]:
    """The mode of the ceiling, then those that are narrower."""
    text = "What the one who started corral permits."
    named = (mode for mode in (*NAMED, ASKS) if mode.policy == ceiling)
    modes = [next(named, PolicyMode("given", "As started", text, ceiling))]
    for mode in NAMED:
        policy = _strictest(ceiling, mode.policy)
        is_known = any(
            mode.id == other.id
            or (is_narrower(other.policy, policy, tools) and is_narrower(policy, other.policy))
            for other in modes
        )
        if not is_known and is_narrower(policy, ceiling, tools):
            modes.append(replace(mode, policy=policy))
    return modes


def _strictest(ceiling: Policy, preset: Policy) -> Policy:
    """The ceiling, without what the preset does not allow. A policy that lists its tools allows
    them whatever its capabilities are: it has no narrower mode."""
    if ceiling.allow_tools is not None or ceiling.mode is not None:
        return ceiling

    def stricter(one: Verdict, other: Verdict) -> Verdict:
        return one if VERDICTS.index(one) > VERDICTS.index(other) else other

    verdicts: dict[str, Verdict] = {
        name: stricter(ceiling.verdict(name), preset.verdict(name)) for name in CAPABILITIES
    }
    verdicts["own_mcp"] = stricter(
        ceiling.verdict("mcp", own=True), preset.verdict("mcp", own=True)
    )
    rules = ceiling.shell_rules
    if preset.verdict("shell") == "deny":
        rules = tuple(rule for rule in rules if rule.startswith("deny "))
    hosts = ceiling.network_hosts if preset.verdict("network") != "deny" else ()
    return replace(ceiling, **verdicts, shell_rules=rules, network_hosts=hosts)


def models_for(agent: AgentSpec, model: str | None) -> list[str]:
    """Models that may be chosen instead of the given one: those of the same vendor that are known,
    in the form of names that the agent takes."""
    if agent.for_run is not None and model is not None:
        vendor = split_model(model)[0].name
        return [e.id for e in catalogue().entries() if e.id.startswith(f"{vendor}:")]
    if not agent.vendor:
        return []
    start = f"{agent.vendor}:"
    return [e.id.removeprefix(start) for e in catalogue().entries() if e.id.startswith(start)]


def mode_state(modes: list[PolicyMode], current: PolicyMode) -> JsonObject:
    listed: list[Json] = [
        {"id": mode.id, "name": mode.name, "description": mode.description} for mode in modes
    ]
    return {"currentModeId": current.id, "availableModes": listed}


def config_options(
    modes: list[PolicyMode],
    mode: PolicyMode,
    models: list[str],
    model: str | None,
    effort: str | None,
) -> list[Json]:
    """The options of a session with their values. ``effort`` is empty where it cannot be chosen."""

    def option(
        id: str, name: str, category: str, value: str, values: list[tuple[str, str]]
    ) -> JsonObject:
        listed: list[Json] = [{"value": each, "name": title} for each, title in values]
        return {
            "id": id,
            "name": name,
            "category": category,
            "type": "select",
            "currentValue": value,
            "options": listed,
        }

    options: list[Json] = [
        option("mode", "Mode", "mode", mode.id, [(each.id, each.name) for each in modes])
    ]
    if models or model is not None:
        names = dict.fromkeys([model or DEFAULT, *models])
        values = [(name, "The agent's own" if name == DEFAULT else name) for name in names]
        options.append(option("model", "Model", "model", model or DEFAULT, values))
    if effort is not None:
        efforts = [DEFAULT, *get_args(Effort)]
        named = [(each, each.capitalize()) for each in efforts]
        options.append(option("effort", "Effort", "thought_level", effort or DEFAULT, named))
    return options


def vendor_of_model(agent: AgentSpec, model: str | None) -> str:
    """The vendor of the models that the agent names without one; empty if it is not known."""
    if model is not None and is_model_name(model):
        return split_model(model)[0].name
    return agent.vendor or ""
