"""Cline as a peer that stays. Facts hold for 3.0.65, each seen in a run of the real program.

It asks before every call, but for those of a sub-agent (so there is none) and the hooks of a
repository (so it is refused). It tells no tokens, takes no tool servers, drops images, and reads
anywhere. Models of OpenAI get ``apply_patch``, which hides its paths: that counts as a command.
"""

import json

from msgspec.structs import replace

from corral.agents.command import keyed_agent
from corral.agents.profile import Act, Form, Package, Place, Probe
from corral.wire.acp_quirks import Quirks

KEY, URL, CUSTOM = "CLINE_API_KEY", "OPENAI_BASE_URL", "openai-compatible"
HINT = f"Set {KEY}: of the service at {URL} where that is set, else of Cline's own."
BARE = {"telemetryOptOut": True, "autoUpdateEnabled": False, "disabledTools": ["spawn_agent"]}
QUIRKS = Quirks(name_before=": ", path_key="path", set_model="session/set_model",
                model_list_complete=False, late_updates=0.1, told_again=True)  # fmt: skip
FORMS: dict[Act, tuple[Form, ...]] = {
    "run": (("run_commands", {"commands": ["{command}"]}),),
    "write": (("editor", {"path": "{abspath}", "new_text": "{text}"}),),
    "edit": (("editor", {"path": "{abspath}", "old_text": "{before}", "new_text": "{after}"}),),
    "read": (("read_files", {"files": [{"path": "{path}"}]}),),
    "search": (("search_codebase", {"queries": ["{pattern}"]}),),
    "fetch": (("fetch_web_content", {"requests": [{"url": "{url}", "prompt": "What is there?"}]}),),
}
"""How the model calls the tools."""
PROBE = Probe(("editor", {"path": "{cwd}/probe.txt", "new_text": "written by the agent\n"}),
              ("run_commands", {"commands": ["touch shell.txt"]}), URL, KEY, "scripted",
              ("read_files", {"files": [{"path": "here.txt"}]}), forms=FORMS)  # fmt: skip


def private(place: Place) -> tuple[dict[str, str], dict[str, str]]:
    url, at = place.env.get(URL), "2026-01-01T00:00:00Z"
    custom = {CUSTOM: {"settings": {"provider": CUSTOM, "baseUrl": url}, "updatedAt": at}}
    told = {"global-settings": BARE, "providers": {"version": 1, "providers": custom}}
    files = {f".cline/data/settings/{name}.json": json.dumps(it) for name, it in told.items()}
    service = CUSTOM if url else "cline"
    return {"CLINE_PROVIDER": service, "CLINE_SESSION_BACKEND_MODE": "local"}, files


BASE = keyed_agent("cline --acp", "Cline", (KEY,), HINT, private)
PACKAGE = Package("cline", "3.0.65", "3.0.65", {"linux-x86_64": "@cline/cli-linux-x64/bin/cline"})
OWN = (".clinerules", ".cline", ".agents", "AGENTS.md")
AGENTS = (replace(BASE, package=PACKAGE, quirks=QUIRKS, probe=PROBE, env_family=(KEY, URL),
                  project_files=OWN),)  # fmt: skip
