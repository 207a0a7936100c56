"""Options of a run from the command line: the agent, the channel to a person, the policy."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from corral.agents import registry
from corral.cli.ui.questions import is_interactive
from corral.cli.ui.terminal import echo
from corral.errors import ConfigError
from corral.policy import PRESETS, Policy, Preset, with_tools
from corral.system import config


def choose_agent(agent: str | None, options: dict[str, Any]) -> str:
    """The named agent; else the agent of the recording or of the resumed session; else the
    built-in agent if the model is vendor:model; else the default. A resumed session also sets
    ``options["model"]``."""
    if agent is not None:
        return agent
    if options.get("replay") is not None:
        from corral.system.cassette import format

        recorded = format.read(options["replay"])[0].head.agent
        if recorded is not None:
            return recorded
    model = options.get("model")
    if options.get("resume") is not None:
        from corral.sessions import store

        meta = store.find(options["resume"]).meta
        if model is None and meta.model is not None and registry.names_a_model(meta.model):
            options["model"] = meta.model
        return meta.agent
    return registry.default(model)


def choose_channel(agent: str, options: dict[str, Any]) -> None:
    """If the agent is a person at this terminal, ask there unless another channel is named."""
    found = config.find_agent(agent)
    if "via" in found.supports and "via" not in options and is_interactive():
        options["via"] = config.load(found.name).get("via", "terminal")


def choose_policy(given: dict[str, Any]) -> Policy | None:
    """The policy of the options; None if none is given. Raises ``ConfigError``."""
    approve = "all" if given["yolo"] else given["approve"]
    if given["yolo"]:
        if given["approve"] not in (None, "all"):
            raise ConfigError("--yolo and --approve are both given")
        echo("corral: --yolo: the agent may do everything without asking", err=True)
    if approve is not None and given["policy_file"] is not None:
        raise ConfigError("--approve and --policy are both given", hint="Set preset in the file.")
    policy: Policy | None = None
    if given["policy_file"] is not None:
        policy = config.read_policy(Path(given["policy_file"]))
    elif approve is not None:
        policy = PRESETS[cast("Preset", approve)]
    if given["allow_tool"] or given["deny_tool"]:
        from msgspec.structs import replace

        policy = policy or Policy()
        if given["allow_tool"]:
            policy = with_tools(policy, given["allow_tool"])
        policy = replace(policy, deny_tools=(*policy.deny_tools, *given["deny_tool"]))
    return policy
