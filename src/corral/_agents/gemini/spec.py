"""The specs of the Gemini CLI: ``gemini-cli`` (one process per prompt) and ``gemini-acp``
(persistent). Every fact was observed in a run of version 0.61.0.
"""

from __future__ import annotations

import msgspec

from corral._agents.gemini import controls, launch, stream
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

TOOLS = controls.KINDS

QUIRKS = AcpQuirks(
    name_from_id="__",
    mcp_prefixes=("mcp_",),
    injected_text=("[MODE_UPDATE]",),
    kinds=TOOLS,
    title_is_command=True,
    denied_texts=("denied by policy", "Path not in workspace"),
    no_update_after_denial=True,
    quiet_period=0.25,
    model_list_complete=False,
    set_model="session/set_model",
    missing_file_is_empty=True,
    uses_client_files=True,
    command_prefixes=("/", "$"),
    command_escape="\u2060",
)
"""``command_escape`` is a word joiner: trimming does not remove it, and no model sees it. ``kinds``
is needed because the CLI reports a web search with the kind of a search in files. The name in a
call's id comes from the CLI, not from the model."""

_PACKAGE = Package(
    name="@google/gemini-cli",
    tested="0.61.0",
    minimum="0.58.0",
    digests=digests_of("@google/gemini-cli"),
)
_PROBE = Probe(
    url_env="GOOGLE_GEMINI_BASE_URL",
    key_env="GEMINI_API_KEY",
    model="gemini-2.5-flash",
    # Without a chosen sign-in, the URL alone would choose one that it then calls invalid.
    plain_command="mkdir -p .scripted/.gemini &&"
    """ echo '{"security":{"auth":{"selectedType":"gemini-api-key"}}}'"""
    " >.scripted/.gemini/settings.json &&"
    ' GEMINI_CLI_HOME=$PWD/.scripted gemini --skip-trust -p "Hi"',
    default_models=("gemini-3.8-flash", "gemini-3.5-flash"),
    replacements=("gemini-3.5-flash",),  # before 0.61
    forms={
        "run": (("run_shell_command", {"command": "{command}"}),),
        "background": (("run_shell_command", {"command": "{command}", "is_background": True}),),
        "write": (("write_file", {"file_path": "{path}", "content": "{text}"}),),
        "edit": (
            (
                "replace",
                {
                    "file_path": "{path}",
                    "instruction": "change it",
                    "old_string": "{before}",
                    "new_string": "{after}",
                },
            ),
        ),
        "read": (
            ("read_file", {"file_path": "{path}"}),
            ("read_many_files", {"include": ["{path}"], "paths": ["{path}"]}),
        ),
        "list": (("list_directory", {"dir_path": "{path}"}),),
        "find": (("glob", {"pattern": "*", "dir_path": "{path}"}),),
        "search": (("grep_search", {"pattern": "{pattern}", "dir_path": "{path}"}),),
        "fetch": (("web_fetch", {"prompt": "What is at {url} ?"}),),
        "web_search": (("google_web_search", {"query": "{query}"}),),
        "delegate": (("invoke_agent", {"agent_name": "generalist", "prompt": "{prompt}"}),),
        "skill": (("activate_skill", {"name": "{skill}"}),),
        "memory": (("save_memory", {"fact": "{text}"}),),
    },
    mcp_name="mcp_{server}_{tool}",
)

_SUBSTITUTION = "command substitution ($(...), `...`, <(...))"
_HEADLESS = AgentSpec(
    name="gemini-cli",
    title="Gemini CLI",
    description="Google's Gemini CLI: one process per prompt",
    notes=(
        "Tool arguments and outputs are in the events. Its `replace` tool needs an "
        "absolute path for a file that has the name of one in a protected or read-only "
        "folder. An allow rule must name the program and have at most two `*`. It refuses "
        "by itself to edit build files (`package.json`, `Makefile`, `pyproject.toml`, …), "
        "command substitution, and commands that its parser does not understand."
    ),
    transport=StreamTransport(
        frames=stream.Frames,
        translator=stream.translator,
        stdout="file",
        command_hook=CommandHook(
            kind_of=stream.kind_of,
            own_prefix=f"mcp_{OWN_SERVER}_",
            deny=lambda reason: {"decision": "deny", "reason": reason},
            edit=lambda arguments: {"hookSpecificOutput": {"tool_input": arguments}},
        ),
    ),
    programs=("gemini",),
    vendor="gemini",
    package=_PACKAGE,
    controls=controls.controls,
    launch=launch.launch,
    meter_route=launch.meter_route,
    explain=stream.explain,
    read_stderr=stream.read_stderr,
    tools=TOOLS,
    probe=_PROBE,
    supports=launch.SUPPORTS,
    capabilities=("tools", "files", "resume", "mcp", "usage"),
    asks=False,
    refused_commands=(_SUBSTITUTION, "a command that its parser does not understand"),
    tool_call_hook="edit",
    resumes=True,
    native_resume=("env", "GEMINI_CLI_HOME={home}", "gemini", "--resume", "{session}"),
    keeps_unfinished="always",
    needs_links=True,
    prompt_limit=launch.PROMPT_LIMIT,
    model_aliases=launch.MODEL_ALIASES,
    hosts=(
        "generativelanguage.googleapis.com",
        "cloudcode-pa.googleapis.com",
        "oauth2.googleapis.com",
        "aiplatform.googleapis.com",
        "{GOOGLE_CLOUD_LOCATION}-aiplatform.googleapis.com",
        "aiplatform.{GOOGLE_CLOUD_LOCATION}.rep.googleapis.com",
    ),
    env_names=launch.ENV_NAMES,
    secret_env=launch.SECRET_ENV,
    own_names=launch.own_names,
    credential_files=launch.CREDENTIAL_FILES,
    login_files=(".gemini/oauth_creds.json",),
    user_settings=launch.USER_SETTINGS,
    user_files=launch.USER_FILES,
    project_files=launch.PROJECT_FILES,
    skill_folder=".agents/skills",
    parent_files=launch.PARENT_FILES,
    fatal_stderr=("Policy file error", "Policy file warning"),
    ignored_stderr=stream.IGNORED_STDERR,
)
_ACP = msgspec.structs.replace(
    _HEADLESS,
    name="gemini-acp",
    aliases=("gemini",),
    description="Google's Gemini CLI, persistent (ACP): asks for permission, reports thoughts",
    notes=(
        "Every shell command is a permission request, even one that the CLI considers "
        "harmless. Sub-agents and skills need `--approve all`. It refuses by itself "
        "command substitution (`$(…)`). A call of a tool that was not offered is reported "
        "without its arguments. `reasoning_effort` sets how much its "
        "models think, also with `gemini-cli`."
    ),
    transport=AcpTransport(
        quirks=QUIRKS,
        arguments=("--acp",),
        mode_at_start=True,
        model_at_start=True,
        drops_media_beside_files=True,
        conversation_files=launch.CONVERSATION_FILES,
        read_refused_calls=stream.read_refused_calls,
        rename_to_load=launch.rename_to_earlier,
        sessions_per_process=40,
        bytes_per_process=1024**3,
    ),
    controls=controls.controls_acp,
    probe=msgspec.structs.replace(_PROBE, reports_denials=False),
    keeps_unfinished="with_tools",  # else the prompt is removed from the conversation
    needs_links=False,
    launch=launch.launch_acp,
    explain=stream.explain_acp,
    supports=launch.SUPPORTS_ACP,
    capabilities=("tools", "files", "resume", "mcp", "usage", "thinking", "permissions"),
    asks=True,
    refused_commands=(_SUBSTITUTION,),  # what its parser does not understand, it asks about
    tool_call_hook="decide",
)

AGENTS = (_ACP, _HEADLESS)
