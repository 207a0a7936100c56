"""The specs of GitHub's Copilot CLI: ``copilot-cli`` (one process per prompt) and ``copilot-acp``
(persistent).

Each fact was seen in a run of version 1.0.102:

- With a custom provider (``COPILOT_PROVIDER_BASE_URL``) it needs no login, and
  with ``COPILOT_OFFLINE`` it contacts no other host.
- The program is started directly, not npm's script: the script does not forward signals.
- It unpacks 235 MB into the user's cache at its first start, so ``HOME`` stays unchanged;
  settings, sessions and logs go to a private ``COPILOT_HOME``.
- Killed by a signal it may still report an ``exitCode`` of 0: an aborted turn is not a success.
- It replaces the file of token counts by renaming: the file must not be a device.
- The persistent agent asks to *read* before it writes outside the workspace, ignores
  ``--add-dir`` and the MCP servers that ACP passes, reads a repository's instructions
  (``AGENTS.md``) whatever its switch says, and runs its hooks whatever its settings say
  (``disableAllHooks``): so a folder with hooks is refused.
- The persistent agent does not report a call to a tool that is not offered.
- The persistent agent reports an API error as its answer (``Error: …``) and ends the turn
  successfully, without counting its tokens.
"""

from __future__ import annotations

import msgspec

from corral._agents.copilot import controls, launch, stream
from corral._agents.spec import (
    AcpTransport,
    AgentSpec,
    CommandHook,
    Package,
    Probe,
    StreamTransport,
)
from corral._agents.tested_files import digests_of
from corral._protocol.acp.quirks import AcpQuirks
from corral.options import OWN_SERVER

QUIRKS = AcpQuirks(
    mcp_prefixes=(f"{OWN_SERVER}-",),
    injected_text=(
        "Info: Request failed",
        "Info: Operation cancelled",
        "Info: Disabled tools: ",
        "Info: Unknown tool name in the tool excludedlist: ",
    ),
    error_text="Error: ",
    error_pattern=r"^Error: \d{3} |\(HTTP \d{3}\)|^Error: Failed to get response from the AI model",
    denied_code="denied",
    outside_title="Access paths outside trusted directories",
    usage="session",
    model_list_complete=False,
    set_model=None,
    command_prefixes=("/", " ", "\t", "\r", "\n"),
    command_escape="\u2060",
)
"""``command_prefixes`` has blanks, because it may trim the prompt. ``command_escape`` is a word
joiner: trimming does not remove it, and no model sees it."""

_HEADLESS = AgentSpec(
    name="copilot-cli",
    title="Copilot CLI",
    description="GitHub's Copilot CLI: one process per prompt",
    notes=(
        "It cannot protect `.git` and similar names, so it refuses `edits`. It refuses "
        "parameter transformation (`${name@P}`) by itself. Both Copilot agents: a "
        "repository with its own skills or agents for Copilot is refused without "
        "`inherit`; with your own provider (`COPILOT_PROVIDER_BASE_URL`) Copilot is "
        "offline and has no web tools."
    ),
    transport=StreamTransport(
        frames=stream.Frames,
        translator=stream.translator,
        read_report=stream.read_report,
        command_hook=CommandHook(
            fields=("toolName", "toolArgs"),
            kind_of=stream.kind_of,
            own_prefix=f"{OWN_SERVER}-",
            deny=stream.hook_denial,
            edit=lambda arguments: {"modifiedArgs": arguments},
        ),
    ),
    tool_call_hook="edit",
    programs=("copilot",),
    package=Package(
        name="@github/copilot",
        tested="1.0.102",
        minimum="1.0.102",
        digests=digests_of("@github/copilot"),
        binaries={
            "linux-x86_64": "@github/copilot-linux-x64/copilot",
            "linux-aarch64": "@github/copilot-linux-arm64/copilot",
        },
    ),
    cumulative_usage=True,
    controls=controls.controls,
    launch=launch.launch_headless,
    meter_route=launch.meter_route,
    explain=stream.ERRORS.explain,
    tools=controls.TOOLS,
    probe=Probe(
        url_env="COPILOT_PROVIDER_BASE_URL",
        key_env="COPILOT_PROVIDER_API_KEY",
        model="scripted",
        model_env="COPILOT_MODEL",
        forms=controls.FORMS,
        mcp_name="{server}-{tool}",
    ),
    refused_commands=("parameter transformation (${name@P})",),
    supports=launch.SUPPORTS_HEADLESS,
    capabilities=("tools", "files", "resume", "mcp", "usage", "thinking"),
    resumes=True,
    native_resume=("env", "COPILOT_HOME={home}/.copilot", "copilot", "--resume={session}"),
    keeps_unfinished="always",
    hosts=(
        "api.github.com",
        "github.com",
        "api.githubcopilot.com",
        "api.individual.githubcopilot.com",
        "api.business.githubcopilot.com",
        "api.enterprise.githubcopilot.com",
    ),
    env_names=launch.ENV_NAMES,
    secret_env=launch.SECRET_ENV,
    parent_files=launch.SKILLS,
    skill_folder=".agents/skills",
)
_ACP = msgspec.structs.replace(
    _HEADLESS,
    name="copilot-acp",
    keeps_unfinished="with_text",
    aliases=("copilot",),
    description="GitHub's Copilot CLI, persistent (ACP): asks for permission",
    notes=(
        "Linux. A denied permission request ends its turn. It always reads `AGENTS.md`. A "
        "repository with hooks is refused without `inherit`."
    ),
    transport=AcpTransport(
        quirks=QUIRKS, arguments=("--acp",), mode_at_start=True, model_at_start=True
    ),
    cumulative_usage=False,
    controls=controls.controls_acp,
    launch=launch.launch_acp,
    supports=launch.SUPPORTS_ACP,
    capabilities=("tools", "files", "resume", "mcp", "usage", "thinking", "permissions"),
    asks=True,
    tool_call_hook="none",
    refused_commands=(),
    reports_all_denials=False,
    probe=_HEADLESS.probe and msgspec.structs.replace(_HEADLESS.probe, reports_denials=False),
    parent_files=(*launch.HOOKS, *launch.SKILLS),
)

AGENTS = (_ACP, _HEADLESS)
