"""The specs of OpenCode: ``opencode-acp`` (persistent) and ``opencode-cli`` (one process per
prompt).

Each fact was seen in a run of version 1.18.18:

- By default it never asks. A tool that its rules deny is not offered to the model; if the model
  calls it anyway, the model and we get an error.
- A denial ends its turn, unless ``continue_loop_on_deny`` is set.
- It works in ``$PWD``, not in its working directory.
- If its model is not available it silently uses OpenCode's own hosted model; so that provider is
  off unless it is requested.
- It runs the plugins of a repository whatever its switches say
  (``OPENCODE_DISABLE_PROJECT_CONFIG``, ``--pure``): a second reader of the configuration ignores
  them. So a folder with plugins is refused.
- With a file it reads the ``AGENTS.md`` in the same folder, and no switch prevents that. A link
  with that name would send a file from elsewhere to the model: it is refused.
- It formats the files that it wrote and starts language servers, with programs that may be part
  of the repository, and it runs git in the repository. All of that is off.
- It downloads ripgrep from GitHub if it is not on PATH, and asks npm's registry for a package at
  every start. ``launch`` prevents both.
- An API error has no status: only its text shows what it was.
"""

from __future__ import annotations

import msgspec

from corral._agents.opencode import controls, launch, stream
from corral._agents.shared.launch import scripted_hook
from corral._agents.spec import AcpTransport, AgentSpec, Package, Probe, StreamTransport
from corral._agents.tested_files import digests_of
from corral._protocol.acp.quirks import AcpQuirks
from corral.options import OWN_SERVER

QUIRKS = AcpQuirks(
    late_updates=0.1,
    name_from_title=True,
    unavailable_tool=stream.HIDDEN,
    denied_texts=stream.REFUSALS,
    server_prefix="{}_",
    usage="last_step",
    command_prefixes=("/", " ", "\t", "\r", "\n"),
    command_escape="\u2060",
)
"""``command_prefixes`` has blanks, because it trims the prompt first. ``command_escape`` is a word
joiner: trimming does not remove it, and no model sees it."""

_ACP = AgentSpec(
    name="opencode-acp",
    aliases=("opencode",),
    title="OpenCode",
    description="OpenCode, persistent (ACP): models of many providers, asks for permission",
    notes=(
        "Linux. Needs ripgrep (`rg`) on `PATH` or from another installed agent for `glob` "
        "and `grep`."
    ),
    transport=AcpTransport(quirks=QUIRKS, arguments=("acp",)),
    programs=("opencode",),
    package=Package(
        name="opencode-ai",
        tested="1.18.18",
        minimum="1.18.18",
        newest="1.18.33",
        digests=digests_of("opencode-ai"),
        binaries={
            "linux-x86_64": "opencode-linux-x64/bin/opencode",
            "linux-aarch64": "opencode-linux-arm64/bin/opencode",
        },
    ),
    controls=controls.controls_acp,
    launch=launch.launch_acp,
    meter_route=launch.meter_route,
    explain=stream.explain,
    tools=controls.TOOLS,
    probe=Probe(
        url_env="OPENAI_BASE_URL",
        key_env="OPENAI_API_KEY",
        model=f"{launch.CUSTOM}/scripted",
        forms=controls.FORMS,
        mcp_name="{server}_{tool}",
        plain_command='opencode run -m openai/gpt-5 "Hi"',
    ),
    supports=launch.SUPPORTS_ACP,
    capabilities=("tools", "files", "resume", "mcp", "usage", "thinking", "permissions"),
    asks=True,
    tool_call_hook="decide",
    resumes=True,
    hosts=(
        "opencode.ai",
        "models.dev",
        "api.anthropic.com",
        "api.openai.com",
        "generativelanguage.googleapis.com",
        "openrouter.ai",
    ),
    env_names=launch.ENV_NAMES,
    secret_env=launch.SECRET_ENV,
    skill_folder=".agents/skills",
    credential_files=(".local/share/opencode/auth.json",),
    parent_files=launch.PROJECT_FILES,
    helpers=launch.HELPERS,
    needs_links=True,
    ignored_stderr=("Error handling request",),
    native_resume=(
        "env",
        "XDG_DATA_HOME={home}/.local/share",
        "opencode",
        "--session",
        "{session}",
    ),
)
_HEADLESS = msgspec.structs.replace(
    _ACP,
    name="opencode-cli",
    keeps_unfinished="always",
    aliases=(),
    description="OpenCode: one process per prompt, models of many providers",
    notes=(
        "What is not allowed is not offered to the model. Refuses `edits` with models "
        "that write by patches (`gpt`); `opencode-acp` can."
    ),
    transport=StreamTransport(
        frames=stream.Frames,
        translator=stream.translator,
        command_hook=scripted_hook(stream.kind_of, f"{OWN_SERVER}_"),
    ),
    controls=controls.controls,
    launch=launch.launch_headless,
    explain=stream.explain_headless,
    supports=launch.SUPPORTS_HEADLESS,
    capabilities=("tools", "files", "resume", "mcp", "usage", "thinking"),
    asks=False,
    tool_call_hook="edit",
)

AGENTS = (_ACP, _HEADLESS)
