"""The spec of the built-in agent: a model of any vendor, with the tools of this package.

It runs inside this process, so its policy is enforced here, call by call.
"""

from __future__ import annotations

from msgspec.structs import replace

from corral._agents.grants import Grants
from corral._agents.shared.controls import check_names, prefixed
from corral._agents.spec import (
    ADD_PATCH,
    EDIT_PATCH,
    Act,
    AgentControls,
    AgentSpec,
    Enforced,
    Form,
    InProcess,
    Probe,
)
from corral._models import registry
from corral._models.registry import family_of
from corral._models.spec import Provider
from corral.errors import ConfigError
from corral.events import ToolKind
from corral.options import RunOptions
from corral.policy import CAPABILITIES

TOOLS: dict[str, ToolKind] = {
    "read_file": "read",
    "read_many_files": "read",
    "list_dir": "read",
    "glob": "search",
    "grep": "search",
    "write_file": "edit",
    "edit_file": "edit",
    "apply_patch": "edit",
    "shell": "execute",
    "web_fetch": "fetch",
    "spawn_agent": "think",
    "send_input": "think",
    "wait": "think",
    "close_agent": "think",
    "ask_user": "think",
}
REPORTS = ("submit_result", "report_outcome")
"""Tools that are added for a typed output, or for a node of a pipeline."""


MAX_TURNS = 100
"""Model calls of one prompt, if ``max_turns`` is not set."""
MAX_REPEATED_CALLS = 20
"""Equal calls in a row, if ``max_repeated_calls`` is not set."""

FORMS: dict[Act, tuple[Form, ...]] = {
    "run": (("shell", {"command": "{command}"}),),
    "read": (
        ("read_file", {"file_path": "{path}"}),
        ("read_many_files", {"paths": ["{path}"]}),
    ),
    "list": (("list_dir", {"path": "{path}"}),),
    "find": (("glob", {"pattern": "*", "path": "{path}"}),),
    "search": (("grep", {"pattern": "{pattern}", "path": "{path}"}),),
    "fetch": (("web_fetch", {"url": "{url}"}),),
    "delegate": (("spawn_agent", {"task": "{prompt}"}),),
}
"""How the model calls the tools."""
FILE_FORMS: dict[Act, tuple[Form, ...]] = {
    "write": (("write_file", {"file_path": "{path}", "content": "{text}"}),),
    "edit": (
        ("edit_file", {"file_path": "{path}", "old_string": "{before}", "new_string": "{after}"}),
    ),
}
PATCH_FORMS: dict[Act, tuple[Form, ...]] = {
    "write": (("apply_patch", {"patch": ADD_PATCH}),),
    "edit": (("apply_patch", {"patch": EDIT_PATCH}),),
}


def for_run(run: RunOptions) -> AgentSpec:
    """The spec for the vendor of the requested model. Raises ``ConfigError``."""
    if run.model is None:
        raise ConfigError(
            "the built-in agent needs a model", hint=f"As in model='{registry.EXAMPLE}' (--model)."
        )
    provider, _ = registry.split_model(run.model)
    return replace(
        AGENT,
        env_names=(*provider.key_env, *provider.base_url_env, *provider.extra_env.values()),
        secret_env=provider.key_env,
        probe=_probe(provider, run.model) if provider.base_url_env and provider.key_env else None,
    )


def controls(grants: Grants, run: RunOptions) -> AgentControls:
    """Raises ``PolicyError`` for the name of a tool that is neither ours nor the caller's nor that
    of an MCP server."""
    known: dict[str, ToolKind] = {**TOOLS, **dict.fromkeys((*REPORTS, *run.own_tools), "mcp")}
    from_server = prefixed("mcp__")
    check_names(grants.tool_lists, known, "the built-in agent", from_server, strict=run.strict)
    confined = "commands are not confined to the workspace" if grants.free_shell else ""
    return AgentControls(
        enforced={
            name: Enforced(
                "brokered" if grants.of(name).verdict == "ask" else "native",
                confined if name == "shell" else "",
            )
            for name in CAPABILITIES
        },
        own_default="each call asks for permission",
    )


def _probe(provider: Provider, model: str) -> Probe:
    writes = "write_file" in family_of(provider.name, registry.split_model(model)[1]).tools
    return Probe(
        url_env=provider.base_url_env[0],
        key_env=provider.key_env[0],
        model=model,
        forms={**FORMS, **(FILE_FORMS if writes else PATCH_FORMS)},
    )


AGENT = AgentSpec(
    name="corral",
    title="corral's own agent",
    description="the built-in agent, on the model that --model names",
    transport=InProcess(
        driver="corral._builtin.driver:BuiltinDriver", runs_commands=True, takes_messages=True
    ),
    for_run=for_run,
    probe=_probe(registry.split_model(registry.EXAMPLE)[0], registry.EXAMPLE),
    controls=controls,
    tools=TOOLS,
    aliases=("builtin",),
    supports=frozenset(
        {
            "attachments",
            "audio",
            "images",
            "include_directories",
            "max_cost",
            "max_repeated_calls",
            "max_tool_rounds",
            "max_turns",
            "mcp_servers",
            "permission_mode",
            "reasoning_effort",
            "replace_system_prompt",
            "resume",
            "retries",
            "system_prompt",
            "thinking",
        }
    ),
    capabilities=("tools", "mcp", "permissions", "questions", "steering", "subagents"),
    asks=True,
    tool_call_hook="edit",
    resumes=True,
    default_limits={"max_turns": MAX_TURNS, "max_repeated_calls": MAX_REPEATED_CALLS},
)
AGENTS = (AGENT,)
