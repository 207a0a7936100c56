"""pi, with one process per prompt: its spec, launch, policy and stream.

Each fact was seen in a run of version 0.74.2 (the last for Node 20):

- It has no rules: a tool is offered (``--tools``) or does not exist, and an offered tool can go
  wherever the user can. So an extension of corral resolves and judges each path.
- It has no web tools, takes no MCP servers and cannot ask.
- It reads the prompt from stdin, trims it, and takes no part of it for a command.
- A repository's ``.pi/settings.json`` has effect whatever the switches say, and may add a prefix
  to every command: a folder with such a file is refused.
- It always exits with 0, and calls a busy service again *after* ``agent_end``.
- It creates an empty login file: that file does not prove a login, so only keys count.
"""

from __future__ import annotations

import json
import os

import msgspec

from corral._agents.grants import Grants
from corral._agents.shared.controls import (
    NO_SERVERS,
    check_names,
    other_hooks,
    prefixed,
    without_rules,
)
from corral._agents.shared.errors import AgentErrors
from corral._agents.shared.launch import (
    DENIED,
    behind_url,
    find_credentials,
    hook_script,
    refuse_project_files,
    refuse_user_settings,
    scripted_hook,
)
from corral._agents.spec import (
    Act,
    AgentControls,
    AgentSpec,
    Enforced,
    Form,
    Launch,
    LaunchContext,
    Package,
    Probe,
    StreamTransport,
)
from corral._agents.tested_files import digests_of
from corral._core.protected_paths import regex
from corral._protocol.common_events import (
    build_tool_use,
    joined_text,
    retrying,
    unavailable_message,
)
from corral._protocol.ndjson import RawEvent, Translate, TurnEnd, frame_types, union_of
from corral.errors import PolicyError
from corral.events import Init, Thinking, ToolKind, ToolResult
from corral.options import RunOptions
from corral.policy import CAPABILITY_OF
from corral.values import Cost, Json, JsonObject, Usage, add_by_model

KEYS = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "OPENROUTER_API_KEY")
KEY_HINT = f"Set one of {', '.join(KEYS)}."
_HOME = ".pi/agent"
_BARE = ("--no-extensions", "--no-skills", "--no-prompt-templates", "--no-themes",
         "--no-context-files")  # fmt: skip
TOOLS: dict[str, ToolKind] = {"read": "read", "grep": "search", "find": "search", "ls": "read",
                              "edit": "edit", "write": "edit", "bash": "execute"}  # fmt: skip
_WRITES = [name for name, kind in TOOLS.items() if kind == "edit"]
_OUTSIDE = "corral: outside the workspace"
_GUARDED = "corral: a protected name, not to be written"
FENCE = """import { existsSync, readlinkSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
const linked = (path) => { try { return readlinkSync(path); } catch { return null; } };
const real = (path) => {
  const ahead = path.split("/").reverse();
  let at = "/", hops = 0;
  while (ahead.length) {
    const part = ahead.pop();
    if (part === "" || part === ".") continue;
    if (part === "..") { at = dirname(at); continue; }
    const here = join(at, part), to = linked(here);
    if (to === null) { at = here; continue; }
    if (++hops > 40 || here.startsWith("/proc/")) return null;
    if (to.startsWith("/")) at = "/";
    ahead.push(...to.split("/").reverse());
  }
  return at;
};
const below = (root, path) => path === root ? "" :
  path.startsWith(root === "/" ? root : root + "/") ? path.slice(root.length) : null;
const refusal = (event, cwd) => {
  const given = event.input.path ?? ".", writes = WRITES.includes(event.toolName);
  if (typeof given !== "string" || (writes && !event.input.path)) return OUTSIDE;
  const place = real(resolve(cwd, given));
  // pi reads these as plain spaces, and so another name than the one that was judged.
  if (place === null || /[\\u00A0\\u2000-\\u200A\\u202F\\u205F\\u3000]/.test(place)) return OUTSIDE;
  const found = ROOTS.map(real).map((root) => below(root, place)).filter((rest) => rest !== null);
  if (!found.length) return OUTSIDE;
  const rest = found.reduce((a, b) => a.length <= b.length ? a : b);
  if (writes && new RegExp(PROTECTED).test(rest)) return GUARDED;
  // Of a file that is not there pi would try other spellings.
  if (!writes && !existsSync(place)) return `corral: no such file: ${given}`;
  event.input.path = place;
  return null;
};
export default (pi) => pi.on("tool_call", (event, ctx) => {
  if (event.toolName === "bash") return;
  const reason = refusal(event, ctx.cwd);
  if (reason !== null) return { block: true, reason };
});
"""
"""The tool gets the path that was judged: one without links, also without dangling ones."""

HOOK = """export default (pi) => pi.on("tool_call", async (event) => {
  const answer = await ask(event.toolName, event.input);
  if (answer.deny !== undefined) return { block: true, reason: answer.deny };
  if (answer.input !== undefined) replace(event.input, answer.input);
});
"""
"""Shows each call to ``on_tool_call``. It is loaded before the fence, which judges the edits."""
_FENCE_FILE = "fence.ts"
_HOOK_FILE = "hook.ts"


def controls(grants: Grants, run: RunOptions) -> AgentControls:
    """The tools that are offered, and the extension that judges their paths."""
    check_names(grants.tool_lists, TOOLS, "pi", prefixed("mcp__"), strict=run.strict)
    unhooked = other_hooks(run)
    if grants.is_native:
        return AgentControls(own_default="it asks for nothing", unhooked=unhooked)
    if grants.is_plan:
        raise PolicyError("pi has no planning mode", hint="The same rights: Policy.reads().")
    offered = [
        name
        for name, kind in TOOLS.items()
        if (capability := CAPABILITY_OF[kind]) is not None
        and grants.of(capability).verdict == "allow"
        and name in grants.offered(capability, (name,))
    ]

    def extension(place: LaunchContext) -> dict[str, Json]:
        roots = [place.cwd, *(os.path.join(place.cwd, name) for name in grants.writable)]
        facts = {"ROOTS": roots, "WRITES": _WRITES, "PROTECTED": regex(), "OUTSIDE": _OUTSIDE,
                 "GUARDED": _GUARDED}  # fmt: skip
        constants = "".join(f"const {name} = {json.dumps(fact)};\n" for name, fact in facts.items())
        return {_FENCE_FILE: constants + FENCE}

    keys = "it sees the keys in the agent's own environment" if grants.free_shell else ""
    reaches = grants.free_shell and grants.network.verdict == "allow"
    return AgentControls(
        enforced={
            "shell": without_rules(grants, offered="bash" in offered, note=keys),
            "network": Enforced("native" if reaches else "not offered", "it has no web tools"),
            "mcp": NO_SERVERS,
        },
        flags=("--tools", ",".join(offered)) if offered else ("--no-tools",),
        for_folders=None if grants.is_unlimited else extension,
        unhooked=unhooked,
    )


class Price(msgspec.Struct, frozen=True):
    total: float = 0.0


class Counts(msgspec.Struct, frozen=True, rename="camel"):
    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    cost: Price = Price()


class PiMessage(msgspec.Struct, frozen=True, rename="camel"):
    role: str = ""
    model: str | None = None
    usage: Counts = Counts()
    stop_reason: str | None = None
    error_message: str | None = None


class Piece(msgspec.Struct, frozen=True):
    type: str = ""
    delta: str = ""


class PiFrame(msgspec.Struct, frozen=True, rename="camel"):
    id: str | None = None
    message: PiMessage = PiMessage()
    assistant_message_event: Piece = Piece()
    tool_call_id: str = ""
    tool_name: str = ""
    args: Json = None
    result: JsonObject = {}
    is_error: bool = False
    error_message: str = ""


_NAMES = frame_types(PiFrame, (
    "session", "agent_start", "agent_end", "turn_start", "turn_end", "message_start",
    "message_update", "message_end", "tool_execution_start", "tool_execution_update",
    "tool_execution_end", "auto_retry_start", "auto_retry_end", "queue_update",
    "compaction_start", "compaction_end"))  # fmt: skip


def translator() -> Translate:
    return _PiTurn().translate


class _PiTurn:
    """The frames of one turn as events. Remembers the last message and what was spent."""

    def __init__(self) -> None:
        self._last = PiMessage()
        self._usage = Usage()
        self._cost = 0.0
        self._by_model: dict[str, Usage] = {}

    def translate(self, frames: list[PiFrame]) -> list[RawEvent]:
        events = (self._event(_NAMES[type(frame)], frame) for frame in frames)
        return [event for event in events if event is not None]

    def _event(self, name: str, frame: PiFrame) -> RawEvent | None:
        if name == "message_update":
            piece = frame.assistant_message_event
            if piece.type == "text_delta":
                return piece.delta
            return Thinking(piece.delta) if piece.type == "thinking_delta" else None
        if name == "session":
            return Init(session_id=frame.id)
        if name == "tool_execution_start":
            kind = TOOLS.get(frame.tool_name, "other")
            return build_tool_use(frame.tool_call_id, frame.tool_name, frame.args, kind=kind)
        if name == "tool_execution_end":
            return _tool_end(frame)
        if name == "auto_retry_start":
            return retrying(frame.error_message)
        if name == "message_end" and frame.message.role == "assistant":
            message = self._last = frame.message
            counts = message.usage
            read, write = counts.cache_read, counts.cache_write
            usage = Usage(input=counts.input + read + write, output=counts.output,
                          cache_read=read, cache_write=write, coverage="complete")  # fmt: skip
            self._usage = self._usage + usage
            self._cost += counts.cost.total
            if message.model:
                self._by_model = add_by_model(self._by_model, {message.model: usage})
        if name != "agent_end":
            return None
        last, why = self._last, self._last.stop_reason
        return TurnEnd(
            ok=why == "stop",
            stop_reason=why,
            usage=self._usage,
            cost=Cost(self._cost, "reported") if self._cost else Cost(),
            usage_by_model=self._by_model,
            model=last.model,
            message=last.error_message or f"the answer broke off: {why}",
        )


def _tool_end(frame: PiFrame) -> ToolResult:
    text, name = joined_text(frame.result.get("content")) or "", frame.tool_name
    if not frame.is_error:
        return ToolResult(frame.tool_call_id, "success", output=text)
    if name in TOOLS and text == f"Tool {name} not found":
        return ToolResult(frame.tool_call_id, "denied", error=unavailable_message(name))
    fenced = text in (_OUTSIDE, _GUARDED) or text.startswith(DENIED)
    return ToolResult(frame.tool_call_id, "denied" if fenced else "error", error=text)


def launch(run: RunOptions, place: LaunchContext, prompt: str, resume: str | None) -> Launch:
    refuse_user_settings(run)
    refuse_project_files(run, place, "pi would obey this repository's own settings")
    effort = "off" if run.reasoning_effort == "none" else run.reasoning_effort
    found, url = find_credentials(place, KEYS, "pi", KEY_HINT), place.env.get("OPENAI_BASE_URL")
    model, files = run.model, dict[str, str]()
    flags = [*place.controls.flags, *(_BARE if run.inherit == "nothing" else ())]
    if url:
        providers: dict[str, Json] = {"openai": {"baseUrl": url}}
        if model is None:
            flags += ["--provider", "openai"]
        else:
            models: Json = [{"id": model, "reasoning": True}]
            providers = {"custom": {"baseUrl": url, "api": "openai-completions", "apiKey": KEYS[0],
                                    "models": models}}  # fmt: skip
            model = f"custom/{model}"
        files[f"{_HOME}/models.json"] = json.dumps({"providers": providers})
    hook = {_HOOK_FILE: hook_script(place.hook_command, HOOK)} if place.hook_command else {}
    for name, text in {**hook, **place.controls.folder_rules(place)}.items():
        files[name] = str(text)
        flags += ["--extension", os.path.join(place.home, name)]
    if run.system_prompt is not None:  # as a file: text that names one would be read from there
        files["system.md"] = run.system_prompt
        flags += ["--append-system-prompt", os.path.join(place.home, "system.md")]
    for flag, value in (("--model", model), ("--thinking", effort),
                        ("--fork" if run.fork else "--session", resume)):  # fmt: skip
        flags += [flag, value] if value is not None else []
    env = {"PI_CODING_AGENT_DIR": os.path.join(place.home, _HOME), "PI_OFFLINE": "1",
           "PI_TELEMETRY": "0", "TMPDIR": place.tmp, "NO_COLOR": "1"}  # fmt: skip
    argv = (*place.program, "--print", "--mode", "json", *flags)
    stdin, notes = prompt.encode(), (f"authentication: {found}",)
    return Launch(argv=argv, env=env, stdin=stdin, files=files, notes=notes, service_url=url)


def _kind_of(name: str) -> ToolKind:
    return TOOLS.get(name, "other")


FORMS: dict[Act, tuple[Form, ...]] = {
    "run": (("bash", {"command": "{command}"}),),
    "write": (("write", {"path": "{path}", "content": "{text}"}),),
    "edit": (
        ("edit", {"path": "{path}", "edits": [{"oldText": "{before}", "newText": "{after}"}]}),
    ),
    "read": (("read", {"path": "{path}"}),),
    "list": (("ls", {"path": "{path}"}),),
    "find": (("find", {"pattern": "*", "path": "{path}"}),),
    "search": (("grep", {"pattern": "{pattern}", "path": "{path}"}),),
}
"""How the model calls the tools."""
PROBE = Probe(forms=FORMS, url_env="OPENAI_BASE_URL", key_env=KEYS[0], model="scripted")
AGENT = AgentSpec(
    name="pi-cli",
    aliases=("pi",),
    title="pi",
    description="pi: one process per prompt, streams text",
    notes=(
        "With the key of a provider. It has no permission rules, so an extension of "
        "corral keeps its file tools inside the workspace. No MCP servers; it cannot ask."
    ),
    transport=StreamTransport(
        frames=union_of(_NAMES),
        translator=translator,
        command_hook=scripted_hook(_kind_of, "corral_"),
    ),
    tool_call_hook="edit",
    programs=("pi",),
    package=Package(
        "@earendil-works/pi-coding-agent",
        tested="0.74.2",
        minimum="0.74.2",
        digests=digests_of("@earendil-works/pi-coding-agent"),
    ),
    controls=controls,
    launch=launch,
    meter_route=behind_url("OPENAI_BASE_URL", KEYS[0], KEYS[1:]),
    explain=AgentErrors(
        title="pi", program="pi", key_hint=KEY_HINT, lost="no session found matching"
    ).explain,
    tools=TOOLS,
    probe=PROBE,
    supports=frozenset({"fork", "inherit", "reasoning_effort", "resume", "system_prompt"}),
    capabilities=("tools", "files", "resume", "usage", "thinking"),
    resumes=True,
    keeps_unfinished="with_tools",  # it writes its file with the first complete message
    hosts=(
        "api.anthropic.com",
        "api.openai.com",
        "generativelanguage.googleapis.com",
        "openrouter.ai",
    ),
    env_names=(*KEYS, "OPENAI_BASE_URL"),
    secret_env=KEYS,
    project_files=(".pi",),
    skill_folder=".agents/skills",
    fatal_stderr=("Failed to load extension", "Extension error"),
)
AGENTS = (AGENT,)
