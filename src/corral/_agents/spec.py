"""An agent is a spec (facts and a few pure functions) and one transport.

To add an agent, write one module in this package that exports ``AGENTS``, a
tuple of ``AgentSpec`` records; it is found by its names, there is no list to edit.
What no field can express gets a new field, whose default changes no other agent:
never a subclass, never the agent's name outside its own file. Third parties do
the same from their own package through the entry point group
``corral.agents``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

import msgspec

from corral._agents.grants import ExceptionKind, GrantException, Grants
from corral._core.protected_paths import Links
from corral._option_definitions import with_trait
from corral._protocol.acp.quirks import DEFAULT_QUIRKS, AcpQuirks
from corral._protocol.ndjson import RawEvent, Translate, TurnEnd
from corral.errors import CorralError
from corral.events import ToolKind
from corral.options import RunOptions
from corral.policy import Capability, Enforcer, Policy
from corral.values import Json, JsonObject

if TYPE_CHECKING:
    from corral._protocol.stream_json.frames import StreamQuirks

HookSupport = Literal["none", "decide", "edit"]
"""What ``on_tool_call`` can do: nothing, allow and deny, or also edit the input."""
Act = Literal[
    "run",
    "background",
    "write",
    "edit",
    "read",
    "list",
    "find",
    "search",
    "fetch",
    "web_search",
    "delegate",
    "skill",
    "memory",
    "mcp_resource",
]
"""What a model can try with a tool call, regardless of the tool's name."""
Form = tuple[str, JsonObject]
"""A tool's name and its arguments. Strings contain placeholders such as ``{path}``."""


ACP_OPTIONS = with_trait("acp")
"""What our side of the Agent Client Protocol does for any agent that speaks it."""


class Package(msgspec.Struct, frozen=True):
    """Where the program comes from, and the range of its versions that were tested.

    ::

        package = agents.Package(name="@mine/cli", tested="2.1.0", minimum="2.0.0")
    """

    name: str
    """Of the package, in the registry."""
    tested: str
    """The version that all tests are run with; ``corral agents install`` installs it. Empty for a
    user's own command: any version may be used."""
    minimum: str
    """The oldest version of the range. An older program is refused."""
    binaries: Mapping[str, str] = {}
    """Machine (``linux-x86_64``, ``linux-aarch64``) → path of the program in the folder where the
    registry's packages are installed. Empty: npm makes a link to the program."""
    bridge: str = ""
    """The module of corral that starts the program and speaks the Agent Client Protocol for it. The
    package is then one of PyPI, and the program is in it; otherwise the package is one of npm."""
    newest: str = ""
    """The newest version of the range, if not ``tested``: it passed the conformance kit and the
    attack kit. Without a probe, a newer program is used with a warning."""
    digests: Mapping[str, str] = {}
    """The digests of files that were tested (``corral._system.program_files``), as npm installs
    them → the version. What corral installed needs none."""
    elsewhere: str = ""
    """Where people get it, if not from npm by this name."""

    @property
    def registry(self) -> Literal["npm", "PyPI"]:
        return "PyPI" if self.bridge else "npm"

    @property
    def install_by_hand(self) -> str:
        """How to install it without corral."""
        return self.elsewhere or f"npm install -g {self.name}@latest"

    def place(self, version: str | None) -> Literal["older", "tested", "newer"]:
        """Where a version is in the range. One that is not known counts as tested."""
        if not self.tested or version is None:
            return "tested"
        if _numbers(version) < _numbers(self.minimum):
            return "older"
        return "newer" if _numbers(version) > _numbers(self.newest or self.tested) else "tested"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version.partition("-")[0])))


class Enforced(msgspec.Struct, frozen=True):
    """Who enforces a grant under an agent's controls.

    ::

        shell = agents.Enforced("brokered", "it asks before each command")
    """

    default: Enforcer = "native"
    note: str = ""
    exceptions: Mapping[ExceptionKind, Enforcer] = {}
    """Who enforces exceptions of a kind, if not those who enforce the default."""
    left_out: tuple[GrantException, ...] = ()
    """What these controls cannot let through."""


class AgentControls(msgspec.Struct, frozen=True, kw_only=True):
    """Grants in an agent's own controls, and who enforces them. ``AgentSpec.controls`` makes them,
    once per run. ``launch`` hands them to the agent, and users see the report that is made of them
    (``_agents/report.py``): it cannot describe other rules than those in force.

    ::

        def controls(grants: agents.Grants, run: RunOptions) -> agents.AgentControls:
            flags = ("--no-shell",) if grants.shell.is_denied else ()
            return agents.AgentControls(flags=flags, enforced={"shell": agents.Enforced("native")})
    """

    enforced: Mapping[Capability, Enforced] = {}
    """Those that are missing are enforced by the agent."""
    own_default: str = ""
    """With ``Grants.is_native``: what the agent does by default. Empty if that cannot be used."""
    flags: tuple[str, ...] = ()
    """Arguments of the program."""
    files: Mapping[str, str] = {}
    """Relative to the private home: name → content."""
    settings: Mapping[str, Json] = {}
    """For an agent that takes its rules as JSON."""
    for_folders: Callable[[LaunchContext], dict[str, Json]] | None = None
    """The rules that name folders or links, which are known only when the agent is launched."""
    servers: Mapping[str, str] = {}
    """Of the MCP servers that are started: name → further settings, in the agent's own format."""
    notes: tuple[str, ...] = ()
    """For the notes of the launch: what these rules mean for other options."""
    tools: tuple[str, ...] = ()
    """Tools that the model is offered, for an agent that does not report them."""
    unhooked: tuple[str, ...] = ()
    """With ``RunOptions.hooked``: calls that the agent makes without asking, one sentence each."""
    in_sandbox: AgentControls | None = None
    """The controls for a run in corral's sandbox, if they are others."""

    def folder_rules(self, place: LaunchContext) -> dict[str, Json]:
        """What ``for_folders`` makes of this machine; empty where no rule names a folder."""
        return {} if self.for_folders is None else self.for_folders(place)


class LaunchContext(msgspec.Struct, frozen=True, kw_only=True):
    """What was found on this machine for one session.

    ::

        def launch(
            run: RunOptions, place: agents.LaunchContext, prompt: str, resume: str | None
        ) -> agents.Launch:
            argv = (*place.program, "--json", *place.controls.flags)
            return agents.Launch(argv=argv, env={"HOME": place.home}, stdin=prompt.encode())
    """

    program: tuple[str, ...]
    """How to start the agent: the program, or its interpreter and the script."""
    version: str | None
    grants: Grants
    controls: AgentControls
    """The run's policy, in the agent's own controls. A launch does not read the policy."""
    cwd: str
    home: str
    """The session's private home; ``files`` of a launch are written below it."""
    tmp: str
    images: str = ""
    """The folder for the images of a prompt."""
    env: Mapping[str, str] = {}
    """The variables of ``AgentSpec.env_names`` that our environment has."""
    credentials: tuple[str, ...] = ()
    """The agent's ``credential_files`` that exist in the real home."""
    project_files: tuple[str, ...] = ()
    """The repository's own files that would take effect, as absolute paths."""
    user_settings: Mapping[str, Json] = {}
    """The user's own settings for the agent, if they are to take effect."""
    helpers: Mapping[str, str] = {}
    """The agent's ``helpers`` that were found: name → absolute path."""
    hook_command: str = ""
    """The command line that the agent must run before each tool call; empty if it need not."""
    key: str = ""
    """Random. The variables of MCP servers are enciphered with it in those of the agent."""
    links: Links = Links()
    """Links in the session's folders that lead to where it may not write, as found when the agent
    starts. Only for an agent with ``needs_links``, and a policy that is not unlimited."""


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """One turn, ready to be started.

    ::

        start = agents.Launch(argv=("mine", "--json"), env={"HOME": place.home}, stdin=b"Hello")
    """

    argv: tuple[str, ...]
    env: dict[str, str]
    """Added to the variables that are passed on: private paths and switches, no secrets."""
    stdin: bytes
    files: dict[str, str] = {}
    """Relative to the private home."""
    hidden_env: frozenset[str] = frozenset()
    """Variables of ``AgentSpec.env_names`` that are not passed on to this launch."""
    cwd: str | None = None
    """The folder in which a persistent program is started, if not the working directory of its
    sessions: for a program that obeys files of the folder that it is started in."""
    session_id: str | None = None
    """The vendor's session id, if it is chosen here and not by the agent."""
    report: str | None = None
    """A file that the agent writes before it exits, for ``read_report``."""
    session_meta: Mapping[str, Json] = {}
    """Sent as ``_meta`` with each request to open a session (ACP)."""
    notes: tuple[str, ...] = ()
    """Choices that were made for the caller, one sentence each."""
    path_folders: tuple[str, ...] = ()
    """Folders that are appended to PATH."""
    service_url: str | None = None
    """The URL of the model's service, as these settings choose it; None if it is not known."""


class MeterRoute(msgspec.Struct, frozen=True, kw_only=True):
    """How the model calls of an agent can be sent through corral's proxy, which counts them.

    ::

        route = agents.MeterRoute(
            url_env="MINE_BASE_URL",
            url="https://api.openai.com/v1",
            key_env=("MINE_API_KEY",),
            vendors=("openai",),
        )
    """

    url_env: str
    """The variable with the base URL of the model's service."""
    url: str
    """That base URL, without the proxy."""
    key_env: tuple[str, ...]
    """Variables with the keys that the agent sends to the service. It gets dummy keys."""
    vendors: tuple[str, ...]
    """Whose APIs it may use there, as ``corral.models`` names them."""
    unused_env: tuple[str, ...] = ()
    """Variables with keys that the agent does not need with this service."""
    pause_env: Mapping[str, str] = {}
    """Variables that let the agent wait for a response without a limit."""


def image_name(number: int, path: str) -> str:
    """The name of a prompt's image in the folder that the agent reads it from."""
    return f"{number}-{os.path.basename(path)}"


class TurnEnding(msgspec.Struct, frozen=True, kw_only=True):
    """How a turn ended: the input of ``AgentSpec.explain``.

    ::

        def explain(ending: agents.TurnEnding) -> errors.CorralError | None:
            if ending.finish is not None and ending.finish.ok:
                return None
            return errors.ProcessFailed(ending.stderr or f"it ended with {ending.code}")
    """

    code: int | None
    signal: int | None
    stderr: str
    finish: TurnEnd | None
    answered: bool
    run: RunOptions


ADD_PATCH = "*** Begin Patch\n*** Add File: {path}\n+{text}\n*** End Patch\n"
EDIT_PATCH = "*** Begin Patch\n*** Update File: {path}\n@@\n-{before}\n+{after}\n*** End Patch\n"
"""With the placeholders of ``Probe.forms``, for the agents whose tool takes such a patch."""


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """How the scripted model reaches an agent, and calls its tools: for ``doctor`` and the kits.

    ::

        probe = agents.Probe(
            forms={
                "run": (("bash", {"command": "{command}"}),),
                "write": (("write_file", {"path": "{path}", "content": "{text}"}),),
            },
            url_env="MINE_BASE_URL",
            key_env="MINE_API_KEY",
            model="any-model",
        )
    """

    forms: Mapping[Act, tuple[Form, ...]]
    """The tools by what they do; several if the agent has several. There are ``run`` and ``write``.
    Placeholders: ``{command}``; ``{path}``, or ``{abspath}`` for a tool that takes absolute paths
    only; ``{text}`` (new content), ``{before}`` and ``{after}`` (an edit); ``{pattern}``;
    ``{url}``; ``{query}``; ``{prompt}``; ``{skill}``; ``{server}`` and ``{uri}``."""
    url_env: str
    """The variables that connect the agent to that model."""
    key_env: str
    model: str
    default_models: tuple[str, ...] = ()
    """The models that the tested versions ask if none is named; empty if that is not known."""
    replacements: tuple[str, ...] = ()
    """The models that some tested versions ask in place of ``model``."""
    model_env: str = ""
    """The variable that names the model, for an agent that has no default behind ``url_env``."""
    reports_denials: bool = True
    """Whether the agent reports that a call was denied; if not, only the disk shows it."""
    mcp_name: str = "mcp__{server}__{tool}"
    """The model's name for a tool of an MCP server."""
    folder: str = ""
    """The working directory, for the calls below."""
    plain_command: str = ""
    """A command for a shell that starts the program by itself with this model, after the variables
    were exported. ``{url}`` is the address of the server."""

    def env(self, url: str, key: str) -> dict[str, str]:
        """The variables that connect the agent to a scripted model."""
        variables = {self.url_env: url, self.key_env: key, self.model_env: self.model}
        return {name: value for name, value in variables.items() if name}

    @property
    def write(self) -> Form:
        """A tool call that writes ``probe.txt`` in the working directory."""
        return self._call("write", path="probe.txt", text="written by the agent")

    @property
    def shell(self) -> Form:
        """A tool call that would write ``shell.txt`` if the policy did not deny it."""
        return self._call("run", command="touch shell.txt")

    @property
    def read(self) -> Form | None:
        """A tool call that reads ``here.txt``; None if the agent has no tool that reads."""
        return self._call("read", path="here.txt") if "read" in self.forms else None

    def _call(self, act: Act, **values: str) -> Form:
        name, arguments = self.forms[act][0]
        abspath = os.path.join(self.folder, values.get("path", ""))
        return name, fill_placeholders(arguments, {**values, "abspath": abspath})


def fill_placeholders(arguments: JsonObject, values: Mapping[str, str]) -> JsonObject:
    """The arguments of a form with these values, at any depth."""

    def filled(value: Json) -> Json:
        if isinstance(value, str):
            for placeholder, text in values.items():
                value = value.replace("{" + placeholder + "}", text)
            return value
        if isinstance(value, dict):
            return {key: filled(inner) for key, inner in value.items()}
        return [filled(inner) for inner in value] if isinstance(value, list) else value

    return {key: filled(value) for key, value in arguments.items()}


class CommandHook(msgspec.Struct, frozen=True, kw_only=True):
    """For an agent that runs a command before each tool call and obeys its answer. The call is JSON
    on the command's stdin.

    ::

        hook = agents.CommandHook(
            kind_of=lambda tool: "execute" if tool == "bash" else "other",
            own_prefix="mcp__corral__",
            deny=lambda reason: {"decision": "deny", "reason": reason},
            edit=lambda arguments: {"decision": "allow", "input": arguments},
        )
    """

    fields: tuple[str, str] = ("tool_name", "tool_input")
    """The fields of that JSON that have the tool's name and its arguments. The arguments are an
    object, or the JSON text of one."""
    kind_of: Callable[[str], ToolKind]
    own_prefix: str
    """Name prefix of the tools of the caller's own server."""
    deny: Callable[[str], JsonObject]
    """A reason → the answer that denies the call."""
    edit: Callable[[JsonObject], JsonObject]
    """Arguments → the answer that makes the call with them."""
    names: Mapping[str, str] = {}
    """Tools that the hook calls by another name than the model does."""


class StreamTransport(msgspec.Struct, frozen=True, kw_only=True):
    """One process per prompt. It writes one JSON object per line to stdout.

    ::

        class Line(msgspec.Struct):
            text: str = ""

        transport = agents.StreamTransport(
            frames=Line, translator=lambda: lambda lines: [line.text for line in lines]
        )
    """

    kind: ClassVar[Literal["stream"]] = "stream"
    frames: object
    """The type that a line of its output decodes to."""
    translator: Callable[[], Translate]
    """Makes a new function from frames to events for each turn."""
    two_way: StreamQuirks | None = None
    """Set where permission requests arrive on stdout and are answered on stdin. ``Launch.stdin`` is
    then the user's text, and images and attachments are sent with it."""
    read_report: Callable[[bytes, TurnEnd], TurnEnd] | None = None
    """Adds the content of ``Launch.report`` to the end of the turn."""
    command_hook: CommandHook | None = None
    """How ``on_tool_call`` gets the calls of an agent that cannot ask. ``launch`` registers
    ``LaunchContext.hook_command`` with the agent."""
    stdout: Literal["pipe", "file"] = "pipe"
    """``file`` for a program that exits before its pipe is flushed."""


class AcpTransport(msgspec.Struct, frozen=True, kw_only=True):
    """A persistent process that speaks the Agent Client Protocol and serves many prompts."""

    kind: ClassVar[Literal["acp"]] = "acp"
    quirks: AcpQuirks = DEFAULT_QUIRKS
    """Where the agent deviates from the protocol."""
    arguments: tuple[str, ...] = ()
    """What makes the program speak the protocol, as a person would type it."""
    mode_at_start: bool = False
    """The planning mode is an argument of the program, not a setting of a session."""
    model_at_start: bool = False
    """The model is an argument of the program, not a setting of a session."""
    drops_media_beside_files: bool = False
    """Images and audio are lost in a prompt that also has attachments."""
    conversation_files: str = ""
    """Pattern, relative to the private home, of the files of a conversation. ``{}`` stands for the
    first eight characters of its id."""
    read_refused_calls: Callable[[bytes], list[RawEvent]] | None = None
    """What a prompt added to those files → events of the calls that the agent refused and did not
    report."""
    rename_to_load: Callable[[Sequence[str], str, float], dict[str, str]] | None = None
    """(names of those files, conversation id, time) → old name → new name, for the files that must
    be renamed before the conversation is loaded."""
    commands_outlive_cancel: bool = False
    """A command of a cancelled prompt goes on, or what it started does. The process is then ended,
    and the next prompt loads the conversation in a new one."""
    sessions_per_process: int = 1000
    """The process is replaced after this many sessions: some never free what a session took."""
    bytes_per_process: int = 2 * 1024**3
    """The process is replaced when it uses more memory than this."""


class InProcess(msgspec.Struct, frozen=True, kw_only=True):
    """Runs in this process: there is no program to start."""

    kind: ClassVar[Literal["builtin"]] = "builtin"
    driver: str
    """``module:name`` of the class that drives a session."""
    runs_commands: bool = False
    """Its commands are programs, which a sandbox can contain."""
    takes_messages: bool = False
    """A conversation of another agent becomes part of its history, as messages; otherwise it is
    text before the first prompt."""


Transport = StreamTransport | AcpTransport | InProcess


def stream_transport(agent: AgentSpec) -> StreamTransport:
    """The transport of an agent that is known to run once per prompt. Raises ``TypeError``."""
    if not isinstance(agent.transport, StreamTransport):
        raise TypeError(f"{agent.name} does not run as one process per prompt")
    return agent.transport


def _no_launch(run: RunOptions, place: LaunchContext, prompt: str, resume: str | None) -> Launch:
    raise RuntimeError(f"{run.agent} runs in this process: there is nothing to launch")


class AgentSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What corral knows about one agent. ``transport`` holds what only one transport needs; a test
    keeps every other field meaningful for all of them.

    ::

        AGENTS = (
            agents.AgentSpec(
                name="mine",
                title="Mine",
                description="Mine, one process per prompt",
                transport=transport,
                programs=("mine",),
                controls=controls,
                launch=launch,
                explain=explain,
                tools={"bash": "execute", "write_file": "edit"},
            ),
        )
    """

    name: str
    title: str
    description: str
    transport: Transport
    controls: Callable[[Grants, RunOptions], AgentControls]
    """Translates the grants. Called once per run, by ``agents.report.compile_for``."""
    tools: Mapping[str, ToolKind]
    notes: str = ""
    """What users should know besides: what it needs, and what it does not do. Markdown."""
    aliases: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    """Names to look for on PATH."""
    program: str | None = None
    """The program that the caller's command line names, instead of a search for ``programs``."""
    vendor: str = ""
    """The vendor of its models, as ``corral.models`` names it; empty if it has those of several."""
    package: Package = Package(name="", tested="", minimum="")
    launch: Callable[[RunOptions, LaunchContext, str, str | None], Launch] = _no_launch
    """(options, machine, prompt, vendor's id of the session to resume) → what to start."""
    meter_route: Callable[[RunOptions, Mapping[str, str]], MeterRoute | str] | None = None
    """(options, variables of the agent) → how its model calls can be counted by corral's proxy, or
    the reason why they cannot."""
    explain: Callable[[TurnEnding], CorralError | None] = lambda _ending: None
    """Why a turn failed, or None if it succeeded."""
    helpers: Mapping[str, tuple[str, ...]] = {}
    """Programs that the agent starts, and would download if they were not on PATH: name → where
    the packages of installed agents contain one, as patterns below the folder of managed agents."""
    runs_git: bool = False
    """The agent itself runs git in the working directory, and no variable prevents that. A
    repository whose settings make git start programs is refused unless it is trusted."""
    needs_links: bool = False
    """The agent's own rules compare paths as text, without following links.
    ``LaunchContext.links`` is filled in, so that ``launch`` can deny those links by name."""
    probe: Probe | None = None
    native_schema: Callable[[dict[str, Json]], bool] | None = None
    """Whether the agent itself enforces this JSON Schema, given as ``output_schema``. The last
    message of its answer is then the JSON."""
    for_run: Callable[[RunOptions], AgentSpec] | None = None
    """The spec for these options, where it depends on them."""
    normalize_policy: Callable[[Policy, RunOptions], Policy] | None = None
    """Replaces the policy's lists of tools by capabilities, for an agent that has one tool for
    each capability. Raises ``PolicyError`` for a name that is not one of its tools."""
    supports: frozenset[str] = frozenset()
    """Options beyond the common ones. Any other option that is set is an error."""
    capabilities: tuple[str, ...] = ()
    asks: bool = False
    """The agent can send permission requests."""
    tool_call_hook: HookSupport = "none"
    """Whether the agent can be made to ask before each of its tool calls (``on_tool_call``), and
    whether a call can then be edited. ``controls`` make it ask if ``RunOptions.hooked`` is set."""
    refused_commands: tuple[str, ...] = ()
    """Shell commands that the program refuses by itself, whatever its rules allow: one description
    each. No flag or setting permits them. The report says so wherever commands may run."""
    own_sandbox: bool = False
    """The agent always runs its commands in its own sandbox."""
    resumes: bool = False
    native_resume: tuple[str, ...] = ()
    """The command that continues a session in the agent's own program, for people to copy: ``env``,
    a variable, the program's name, its arguments. ``{session}`` is the agent's id, ``{home}`` the
    private home. Empty: none is known."""
    native_key_settings: tuple[str, ...] = ()
    """Words after the program in that command, of a session that was billed to an API key."""
    keeps_unfinished: Literal["always", "with_text", "with_tools"] = "with_text"
    """When an interrupted or timed-out turn stays in the agent's conversation, which can then be
    resumed even if that turn was the first: always, only if it produced text or used a tool, or
    only if it used a tool."""
    cumulative_usage: bool = False
    """The token counts cover all turns of the session so far, not one turn."""
    reports_all_denials: bool = True
    """False if the agent may deny a call without reporting it."""
    open_turns: bool = False
    """A prompt that was not answered in time stays open: the session can be resumed from there."""
    default_limits: Mapping[str, float] = {}
    """The agent's own defaults of timeouts and other limits, by option name."""
    prompt_limit: int = 64 * 1024 * 1024
    """The largest prompt, in bytes, that reaches the model unchanged."""
    hosts: tuple[str, ...] = ()
    """The vendor's hosts that serve the model and the login; a sandbox lets the agent reach
    these. ``{NAME}`` stands for the value of a variable, such as a region; without it there is no
    such host."""
    env_names: tuple[str, ...] = ()
    """Variables that are passed on from our environment; ``X_*`` matches by prefix."""
    conditional_env: Mapping[str, tuple[str, ...]] = {}
    """Variables that are passed on only if this variable is set: the keys of a cloud that serves
    the model."""
    secret_env: tuple[str, ...] = ()
    """Those of the passed variables whose values are secrets."""
    own_names: Callable[[dict[str, str]], dict[str, str]] | None = None
    """Gives the program its variables under the names that it reads."""
    subscription_env: tuple[str, ...] = ()
    """Those of the secret variables that stand for a login rather than a key."""
    login_files: tuple[str, ...] = ()
    """Those of ``credential_files`` that prove a login. Empty: all of them."""
    credential_files: tuple[str, ...] = ()
    """Relative to the real home; linked into the private home."""
    user_settings: str | None = None
    """The user's settings file, relative to the real home; read for ``inherit="user"``."""
    user_files: tuple[str, ...] = ()
    """Linked into the private home for ``inherit="user"``."""
    path_bound_files: tuple[str, ...] = ()
    """Name patterns of files in the private home that contain the home's own path. They are left
    out of a copy of the home; the agent makes them again."""
    project_files: tuple[str, ...] = ()
    """Files in the working directory that the program would obey."""
    parent_files: tuple[str, ...] = ()
    """The same for the working directory and every folder above it."""
    skill_folder: str = ""
    """Where the program looks for skills, relative to a project and to the real home. Empty: not
    known."""
    fatal_stderr: tuple[str, ...] = ()
    """A stderr line that contains one of these means that the policy did not load."""
    read_stderr: Callable[[str], RawEvent | None] | None = None
    """The event that a stderr line stands for, if any."""
    ignored_stderr: tuple[str, ...] = ()
    """Prefixes of stderr lines that are left out of error messages."""
    model_aliases: frozenset[str] = frozenset()
    """Model names that the program itself turns into other names."""

    def version_warning(self, version: str | None) -> str | None:
        """What a person must know about this version: that it was never tested. Else None."""
        if self.package.place(version) != "newer":
            return None
        oldest, newest = self.package.minimum, self.package.newest or self.package.tested
        tested = newest if oldest == newest else f"{oldest} to {newest}"
        return f"{self.title} {version} was never tested with corral (tested: {tested})"
