"""What the command line says of agents, models and permissions, as options of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from corral.agents import registry
from corral.cli.ui.questions import somebody_is_there
from corral.cli.ui.terminal import echo
from corral.errors import ConfigError
from corral.policy import PRESETS, Policy, Preset, with_tools
from corral.system import config


def chosen_agent(agent: str | None, options: dict[str, Any]) -> str:
    """The agent that is named; else that of the recording, or of the session to go on with;
    else ours, where the model is a vendor's; else the default. ``options`` gets what a
    session knows of itself."""
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


def chosen_way(agent: str, options: dict[str, Any]) -> None:
    """A person who is the agent is asked where they are, unless another way is named."""
    found = config.find_agent(agent)
    if "via" in found.supports and "via" not in options and somebody_is_there():
        options["via"] = config.load(found.name).get("via", "terminal")


def chosen_policy(given: dict[str, Any]) -> Policy | None:
    approve = "all" if given["yolo"] else given["approve"]
    if given["yolo"]:
        if given["approve"] not in (None, "all"):
            raise ConfigError("--yolo and --approve both given")
        echo("corral: --yolo: the agent may do everything, unasked", err=True)
    if approve is not None and given["policy_file"] is not None:
        raise ConfigError("--approve and --policy both given", hint="Put preset = into the file.")
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
