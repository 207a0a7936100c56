"""OpenCode, as a peer that stays and for one prompt: what it is.

Facts hold for 1.18.18, each seen in a run of the real program:

- Left alone it asks for nothing, and a tool that its own rules deny is not offered
  to the model; a model that calls it all the same is told so, and so are we.
- A refusal ends its turn, unless ``continue_loop_on_deny`` is set.
- It works in ``$PWD``, whatever its working directory is.
- Where its model is not to be had it takes its maker's own hosted one, in
  silence; so that provider is off unless it is asked for.
- It runs the plugins of a repository whatever its switches say
  (``OPENCODE_DISABLE_PROJECT_CONFIG``, ``--pure``): a second reader of the
  configuration knows none of them. So a folder that carries any is refused.
- With a file it reads the ``AGENTS.md`` beside it, and no switch stops that.
  A link of that name would hand the model a file from elsewhere: it is refused.
- It formats what it wrote and starts language servers, with programs that the
  repository may bring along; it runs git in the repository. All of that is off.
- It downloads ripgrep from GitHub where PATH has none, and asks npm's registry for
  a package at every start. Neither happens: see ``opencode_launch``.
- An API error comes without its status: only the text tells what it was.
"""

from __future__ import annotations

import msgspec

from corral.agents.opencode import errors, launch, policy, stream
from corral.agents.spec import AcpTransport, AgentSpec, Package, Probe, StreamTransport
from corral.options import OWN_SERVER
from corral.protocol.acp.quirks import AcpQuirks

QUIRKS = AcpQuirks(
    late_updates=0.1,
    name_from_title=True,
    unavailable_tool=stream.HIDDEN,
    denied_texts=stream.REFUSALS,
    mcp_prefixes=(f"{OWN_SERVER}_",),
    usage="last_step",
    command_prefixes=("/", " ", "\t", "\r", "\n"),
    command_escape="\u2060",
)
"""``command_prefixes``: blanks too, for it trims before it looks. ``command_escape``: a word
joiner, which no trimming takes away and no model sees."""

_ACP = AgentSpec(
    name="opencode-acp",
    aliases=("opencode",),
    title="OpenCode",
    description="OpenCode, persistent (ACP): models of many providers, asks for permission",
    transport=AcpTransport(quirks=QUIRKS),
    programs=("opencode",),
    package=Package(
        npm="opencode-ai",
        tested="1.18.18",
        minimum="1.18.18",
        binaries={
            "linux-x86_64": "opencode-linux-x64/bin/opencode",
            "linux-aarch64": "opencode-linux-arm64/bin/opencode",
        },
    ),
    compile=policy.compile_acp,
    launch=launch.launch_acp,
    explain=errors.explain,
    tools=policy.TOOLS,
    probe=Probe(
        write=("write", {"filePath": "probe.txt", "content": "written by the agent\n"}),
        shell=("bash", {"command": "touch shell.txt", "description": "Probe the shell"}),
        url_env="OPENAI_BASE_URL",
        key_env="OPENAI_API_KEY",
        model=f"{launch.CUSTOM}/scripted",
        read=("read", {"filePath": "here.txt"}),
        forms=policy.FORMS,
        mcp_name="{server}_{tool}",
    ),
    supports=launch.SUPPORTS_ACP,
    capabilities=("tools", "files", "resume", "mcp", "usage", "thinking", "permissions"),
    asks=True,
    resumes=True,
    env_names=launch.ENV_NAMES,
    secret_env=launch.SECRET_ENV,
    credential_files=(".local/share/opencode/auth.json",),
    parent_files=launch.PROJECT_FILES,
    helpers=launch.HELPERS,
    needs_links=True,
    ignored_stderr=("Error handling request",),
)
_HEADLESS = msgspec.structs.replace(
    _ACP,
    name="opencode-cli",
    keeps_unfinished="always",
    aliases=(),
    description="OpenCode: one process per prompt, models of many providers",
    transport=StreamTransport(frames=stream.Frames, translator=stream.translator),
    compile=policy.compile_headless,
    launch=launch.launch_headless,
    explain=errors.explain_headless,
    supports=launch.SUPPORTS_HEADLESS,
    capabilities=("tools", "files", "resume", "mcp", "usage", "thinking"),
    asks=False,
)

AGENTS = (_ACP, _HEADLESS)
