"""Codex: what it is, what it writes, what it means.

Facts hold for 0.166.0, each seen in a run of the real program:

- It tells nothing of a refusal in its events. A refused patch and a call of a
  tool that is off are told on stderr alone; a command that its sandbox stopped is
  often not told at all. So ``denied`` is never known to be complete.
- ``error`` lines are not the end: it reconnects. The end is ``turn.completed`` or
  ``turn.failed``; of an API error only the text is told.
- Counts of tokens are of the whole thread, those of earlier turns included.
- With a prompt as argument and an open stdin it waits for ever; so the prompt goes
  in by stdin, which is then closed.
"""

from __future__ import annotations

from msgspec.structs import replace

from corral.agents.codex import errors, launch, policy, stream
from corral.agents.spec import ACP_OPTIONS, AcpTransport, AgentSpec, Package, Probe, StreamTransport
from corral.models.openai.schema import is_strict
from corral.protocol.acp.quirks import AcpQuirks

_LIBC = "unknown-linux-musl"

HEADLESS = AgentSpec(
    name="codex-cli",
    aliases=("codex",),
    title="Codex",
    description="OpenAI's Codex: one process per prompt, in its own sandbox",
    transport=StreamTransport(frames=stream.Frames, translator=stream.translator),
    programs=("codex",),
    package=Package(
        npm="@openai/codex",
        tested="0.166.0",
        minimum="0.166.0",
        binaries={
            f"linux-{machine}": f"@openai/codex-linux-{name}/vendor/{machine}-{_LIBC}/bin/codex"
            for machine, name in (("x86_64", "x64"), ("aarch64", "arm64"))
        },
    ),
    compile=policy.compile_headless,
    launch=launch.launch,
    explain=errors.explain,
    read_stderr=stream.read_stderr,
    tools=policy.TOOLS,
    probe=Probe(
        write=("apply_patch", {"input": policy.patch("probe.txt", "written by the agent")}),
        shell=("exec_command", {"cmd": "touch shell.txt"}),
        url_env="OPENAI_BASE_URL",
        key_env="OPENAI_API_KEY",
        model="gpt-5.5",
        forms=policy.FORMS,
    ),
    supports=launch.SUPPORTS,
    capabilities=("tools", "files", "resume", "mcp", "usage", "thinking"),
    native_schema=is_strict,
    cumulative_usage=True,
    reports_all_denials=False,
    resumes=True,
    keeps_unfinished="always",
    prompt_limit=launch.PROMPT_LIMIT,
    env_names=launch.ENV_NAMES,
    secret_env=launch.SECRET_ENV,
    credential_files=launch.CREDENTIAL_FILES,
    path_bound_files=("*.sqlite", "*.sqlite-*"),
    ignored_stderr=errors.IGNORED_STDERR,
)

QUIRKS = AcpQuirks(
    mcp_prefixes=("mcp__",), mcp_from_input=True, errors_without_message_id=True, late_updates=0.1
)

ACP = replace(
    HEADLESS,
    name="codex-acp",
    aliases=(),
    description="OpenAI's Codex, persistent (ACP, through codex-acp): asks for each change",
    transport=AcpTransport(quirks=QUIRKS, model_at_start=True),
    programs=("codex-acp",),
    package=Package(npm="@agentclientprotocol/codex-acp", tested="2.6.0", minimum="2.6.0"),
    read_stderr=None,
    compile=policy.compile_acp,
    normalize_policy=policy.without_lists,
    launch=launch.launch_acp,
    explain=errors.explain_acp,
    # A mode of its own, such as the one that writes in silence, would undo the policy.
    supports=(ACP_OPTIONS - {"session_mode", "audio"}) | {"inherit", "retries"},
    project_files=launch.PROJECT_FILES,
    capabilities=("tools", "files", "resume", "mcp", "usage", "thinking", "permissions"),
    native_schema=None,
    cumulative_usage=False,
    asks=True,
)

AGENTS = (HEADLESS, ACP)
