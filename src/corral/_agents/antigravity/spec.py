"""Google's Antigravity as a persistent agent. Each fact was seen in a run of version 0.1.22.

Its program is in the PyPI package ``google-antigravity``, and ``corral._agents.antigravity.bridge``
speaks the Agent Client Protocol for it. It asks before every call, those of MCP servers too, and
what the policy denies is not offered. Sub-agents, workflows, schedules, images that it generates
and questions to the user are never offered, nor is its own tool for commands, of which one part
never asks: the bridge has another. It obeys no file of a repository.

Only API keys are taken: Google's terms do not permit other programs to use an Antigravity sign-in.
"""

from __future__ import annotations

import json

from msgspec.structs import replace

from corral._agents.acp_command import keyed_agent
from corral._agents.grants import Grants
from corral._agents.shared.controls import (
    READS_OUTSIDE,
    check_names,
    server_prefixed,
    tools_by_capability,
)
from corral._agents.shared.errors import AgentErrors
from corral._agents.shared.launch import behind_key, without_versions
from corral._agents.spec import (
    ACP_OPTIONS,
    AcpTransport,
    Act,
    AgentControls,
    Enforced,
    Form,
    Launch,
    LaunchContext,
    Package,
    Probe,
)
from corral._protocol.acp.quirks import AcpQuirks
from corral.errors import ConfigError, CorralError, InputRejected
from corral.events import ToolKind
from corral.options import RunOptions
from corral.policy import Capability

KEY, URL, MODEL = "GEMINI_API_KEY", "GOOGLE_GEMINI_BASE_URL", "gemini-2.5-flash"
SERVICE = "https://generativelanguage.googleapis.com"
HINT = (
    f"Set {KEY}. A sign-in is not taken: Google's terms do not permit other programs to use that of"
    " Antigravity."
)
KINDS: dict[str, ToolKind] = {
    "view_file": "read",
    "list_directory": "read",
    "search_directory": "search",
    "find_file": "search",
    "create_file": "edit",
    "edit_file": "edit",
    "shell": "execute",
    "read_url_content": "fetch",
    "search_web": "fetch",
}
TOOLS_OF = tools_by_capability(KINDS)
QUIRKS = AcpQuirks(
    name_from_title=True,
    kinds={**KINDS, "list_resources": "mcp", "read_resource": "mcp"},
    server_prefix="{}__",
    set_model=None,
    late_updates=0.1,
)
_ABOUT = {"toolAction": "Working", "toolSummary": "a step"}
FORMS: dict[Act, tuple[Form, ...]] = {
    "run": (
        (
            "shell",
            {"command": "{command}", **_ABOUT},
        ),
    ),
    "read": (("view_file", {"AbsolutePath": "{abspath}", **_ABOUT}),),
    "list": (("list_dir", {"DirectoryPath": "{abspath}", **_ABOUT}),),
    "find": (("find_by_name", {"SearchDirectory": "{abspath}", "Pattern": "*", **_ABOUT}),),
    "search": (("grep_search", {"SearchPath": "{abspath}", "Query": "{pattern}", **_ABOUT}),),
    "mcp_resource": (("read_resource", {"ServerName": "{server}", "Uri": "{uri}", **_ABOUT}),),
    "fetch": (("read_url_content", {"Url": "{url}", **_ABOUT}),),
    "web_search": (("search_web", {"query": "{query}", **_ABOUT}),),
    "write": (
        (
            "write_to_file",
            {
                "TargetFile": "{abspath}",
                "CodeContent": "{text}",
                "Overwrite": True,
                "Description": "x",
                **_ABOUT,
            },
        ),
    ),
    "edit": (
        (
            "replace_file_content",
            {
                "TargetFile": "{abspath}",
                "StartLine": 1,
                "EndLine": 1,
                "TargetContent": "{before}",
                "ReplacementContent": "{after}",
                "AllowMultiple": False,
                "Instruction": "x",
                "Description": "x",
                "TargetLintErrorIds": [],
                **_ABOUT,
            },
        ),
    ),
}
"""How the model calls the tools: by other names than those of the package."""


REFUSED = "-32602"
"""The code of the bridge for a prompt that Antigravity does not take."""


def _failed(kind: str, message: str) -> CorralError:
    return InputRejected(message) if kind == REFUSED else ERRORS.from_service(message)


ERRORS = AgentErrors(title="Antigravity", program="antigravity", key_hint=HINT, failed=_failed)


def controls(grants: Grants, run: RunOptions) -> AgentControls:
    """It asks us before every call of the tools that are offered."""
    check_names(
        grants.tool_lists, KINDS, "Antigravity", server_prefixed(run, "__"), strict=run.strict
    )
    offered = {*KINDS}
    enforced: dict[Capability, Enforced] = {}
    if not grants.is_native:
        offered &= {*(KINDS if grants.listed is None else grants.listed)} - {*grants.denied}
    for capability, names in TOOLS_OF.items() if not grants.is_native else ():
        if grants.of(capability).is_denied:
            offered -= {*names}
        else:
            reads = capability == "read" and grants.is_limited
            enforced[capability] = Enforced("brokered", READS_OUTSIDE if reads else "")
    if not grants.mcp.is_denied:
        enforced["mcp"] = Enforced("brokered")
    return AgentControls(
        enforced=enforced,
        own_default="it asks before every call",
        settings={"tools": [*sorted(offered)]},
    )


def private(_place: LaunchContext) -> tuple[dict[str, str], dict[str, str]]:
    return {}, {}


BASE = keyed_agent("antigravity-acp", "Antigravity", (KEY,), HINT, private)


def launch(run: RunOptions, place: LaunchContext, prompt: str, resume: str | None) -> Launch:
    if run.auth == "subscription":
        raise ConfigError("Antigravity is used with an API key only", hint=HINT)
    plain = BASE.launch(run, place, prompt, resume)
    settings = {
        **place.controls.settings,
        "model": run.model or MODEL,
        "folder": f"{place.home}/antigravity",
        "retries": run.retries,
    }
    return replace(
        plain,
        argv=(*plain.argv, json.dumps(settings)),
        cwd=place.home,
        service_url=place.env.get(URL) or SERVICE,
    )


PACKAGE = Package(
    "google-antigravity",
    "0.1.22",
    "0.1.22",
    dict.fromkeys(
        ("linux-x86_64", "linux-aarch64", "darwin-arm64", "darwin-x86_64"),
        "google/antigravity/bin/localharness",
    ),
    bridge="corral._agents.antigravity.bridge",
    elsewhere="pip install google-antigravity, and name its program localharness: --program PATH",
)

AGENTS = (
    replace(
        BASE,
        name="antigravity-acp",
        aliases=("antigravity",),
        description="Google's Antigravity, persistent (ACP), with an API key: asks for permission",
        notes=(
            "With `GEMINI_API_KEY` only: Google's terms do not permit other programs to "
            "use its sign-in. corral starts the program of the PyPI package "
            "`google-antigravity`, which needs the Python that corral runs in. It asks "
            "before every call. Commands are run by a tool of corral's, `shell`, without "
            "input and for 10 minutes at most: of its own tool for commands, one part "
            "never asks. What its tools read is reported as a summary. Control characters "
            "in a prompt or an attached text are refused: it would replace them. No "
            "sub-agents, workflows, schedules, skills or generated images. It obeys no file "
            "of a repository. A cancelled prompt ends its process; the next prompt starts "
            "another."
        ),
        vendor="gemini",
        package=PACKAGE,
        transport=AcpTransport(quirks=QUIRKS, model_at_start=True, commands_outlive_cancel=True),
        tools=KINDS,
        probe=Probe(
            forms=FORMS,
            url_env=URL,
            key_env=KEY,
            model=MODEL,
            mcp_name="mcp_{server}_{tool}",
            reports_denials=False,
        ),
        reports_all_denials=False,
        supports=(ACP_OPTIONS - {"session_mode", "auth_method"}) | {"inherit", "retries"},
        capabilities=("tools", "files", "resume", "mcp", "usage", "thinking", "permissions"),
        hosts=("generativelanguage.googleapis.com",),
        env_names=(KEY, URL),
        own_names=without_versions(**{URL: "/v1beta"}),
        controls=controls,
        launch=launch,
        explain=ERRORS.explain,
        meter_route=behind_key({KEY: (("gemini",), URL, SERVICE)}),
    ),
)
