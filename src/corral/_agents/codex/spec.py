"""The specs of OpenAI's Codex: ``codex-cli`` (one process per prompt) and ``codex-acp``
(persistent).

Each fact was seen in a run of version 0.166.0:

- Its events do not report denials. A denied patch and a call to a tool that is off are reported
  on stderr only; a command that the sandbox stopped is often not reported at all. So ``denied``
  may be incomplete.
- An ``error`` line does not end the turn: Codex reconnects. The turn ends with ``turn.completed``
  or ``turn.failed``. Only the text of an API error is reported.
- Token counts cover the whole thread, including earlier turns.
- With the prompt as an argument and an open stdin it waits forever; so the prompt is sent on
  stdin, which is then closed.
"""

from __future__ import annotations

from msgspec.structs import replace

from corral._agents.codex import controls, launch, stream
from corral._agents.spec import (
    ACP_OPTIONS,
    AcpTransport,
    AgentSpec,
    CommandHook,
    Package,
    Probe,
    StreamTransport,
)
from corral._agents.tested_files import digests_of
from corral._models.openai.schema import is_strict
from corral._protocol.acp.quirks import AcpQuirks
from corral.options import OWN_SERVER

_LIBC = "unknown-linux-musl"

HEADLESS = AgentSpec(
    name="codex-cli",
    title="Codex",
    description="OpenAI's Codex: one process per prompt, in its own sandbox",
    notes=(
        "Linux. Its own sandbox also limits commands and the network. It reads files "
        "through its shell; without a shell it sees only images of the workspace. It "
        "refuses `rm -f` by itself (`codex-acp` too). It does not report every denied "
        "call (`denied_complete` is false)."
    ),
    transport=StreamTransport(
        frames=stream.Frames,
        translator=stream.translator,
        command_hook=CommandHook(
            kind_of=stream.kind_of,
            own_prefix=f"mcp__{OWN_SERVER}__",
            deny=lambda reason: stream.hook_answer("deny", permissionDecisionReason=reason),
            edit=lambda arguments: stream.hook_answer("allow", updatedInput=arguments),
            names={"Bash": "exec_command"},
        ),
    ),
    tool_call_hook="edit",
    programs=("codex",),
    vendor="openai",
    package=Package(
        name="@openai/codex",
        tested="0.166.0",
        minimum="0.166.0",
        newest="0.169.0",
        digests=digests_of("@openai/codex"),
        binaries={
            f"linux-{machine}": f"@openai/codex-linux-{name}/vendor/{machine}-{_LIBC}/bin/codex"
            for machine, name in (("x86_64", "x64"), ("aarch64", "arm64"))
        },
    ),
    controls=controls.controls,
    launch=launch.launch,
    meter_route=launch.meter_route,
    explain=stream.explain,
    read_stderr=stream.read_stderr,
    tools=controls.TOOLS,
    probe=Probe(
        url_env="OPENAI_BASE_URL",
        key_env="OPENAI_API_KEY",
        model="gpt-5.5",
        default_models=("gpt-6.1-sol",),
        forms=controls.FORMS,
        plain_command="codex exec --skip-git-repo-check -c model_provider=scripted"
        ' -c \'model_providers.scripted={name="scripted",base_url="{url}/v1",'
        'env_key="OPENAI_API_KEY",wire_api="responses"}\' "Hi"',
    ),
    supports=launch.SUPPORTS,
    capabilities=("tools", "files", "resume", "mcp", "usage", "thinking"),
    native_schema=is_strict,
    refused_commands=("rm with -f",),
    own_sandbox=True,
    cumulative_usage=True,
    reports_all_denials=False,
    resumes=True,
    native_resume=("env", "CODEX_HOME={home}/.codex", "codex", "resume", "{session}"),
    native_key_settings=launch.RESUME_SETTINGS,
    keeps_unfinished="always",
    prompt_limit=launch.PROMPT_LIMIT,
    hosts=("api.openai.com", "auth.openai.com", "chatgpt.com"),
    env_names=launch.ENV_NAMES,
    secret_env=launch.SECRET_ENV,
    credential_files=launch.CREDENTIAL_FILES,
    skill_folder=".agents/skills",
    path_bound_files=("*.sqlite", "*.sqlite-*"),
    ignored_stderr=stream.IGNORED_STDERR,
)

QUIRKS = AcpQuirks(
    mcp_prefixes=("mcp__",),
    mcp_from_input=True,
    errors_without_message_id=True,
    late_updates=0.1,
    note_key="codex",
    note_option="None of the above",
)

ACP = replace(
    HEADLESS,
    name="codex-acp",
    aliases=("codex",),
    description="OpenAI's Codex, persistent (ACP, through codex-acp): asks for each change",
    notes=(
        "No shell except with `--approve all`. A folder with a `.codex/config.toml`, "
        "hooks or rules is refused without `inherit`."
    ),
    transport=AcpTransport(quirks=QUIRKS, model_at_start=True),
    programs=("codex-acp",),
    package=Package(
        name="@agentclientprotocol/codex-acp",
        tested="2.6.0",
        minimum="2.6.0",
        digests=digests_of("@agentclientprotocol/codex-acp"),
    ),
    read_stderr=None,
    controls=controls.controls_acp,
    normalize_policy=controls.without_lists,
    launch=launch.launch_acp,
    explain=stream.explain_acp,
    # Without session_mode: a mode that writes without asking would bypass the policy.
    supports=(ACP_OPTIONS - {"session_mode", "audio"}) | {"inherit", "retries"},
    project_files=launch.PROJECT_FILES,
    capabilities=(
        *("tools", "files", "resume", "mcp", "usage", "thinking", "permissions", "questions"),
    ),
    native_schema=None,
    own_sandbox=False,  # its commands run only where everything is allowed
    cumulative_usage=False,
    asks=True,
    tool_call_hook="decide",
)

AGENTS = (ACP, HEADLESS)
