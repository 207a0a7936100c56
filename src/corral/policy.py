"""The permission policy: one model for all agents.

A ``Policy`` sets each capability to ``allow``, ``ask`` or ``deny``. An unset capability is ``ask``,
and ``ask`` without anybody to answer is ``deny``. The order is fixed: deny rules, then allow
rules, then the capability. Everything here is pure; ``agents/`` translates a policy into each
agent's own controls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, get_args

import msgspec

from corral._core.display import short_traceback
from corral._core.lookup import nearest
from corral._core.shell_patterns import MAX_LENGTH, accepts, is_literal, matches, parse
from corral.errors import PolicyError
from corral.events import ToolKind

if TYPE_CHECKING:
    from corral._core.host_rules import HostRule

__all__ = [
    "Action", "Capability", "Enforcer", "Policy", "Preset", "Ruling", "SandboxCell",
    "ShellRule", "Verdict", "is_narrower", "parse_shell_rule", "policy_from_table",
]  # fmt: skip

Verdict = Literal["allow", "ask", "deny"]
Capability = Literal["read", "write", "shell", "network", "mcp"]
Enforcer = Literal["native", "brokered", "sandbox", "advisory", "impossible", "not offered"]
"""Who enforces a verdict: the agent's own controls, corral's answers to its permission requests,
the operating system; nobody, although the agent is asked to comply; nobody. ``not offered``: the
agent has no way to let such calls through, so that they are not made."""
Preset = Literal["reads", "edits", "all"]
SandboxCell = Literal[
    "read outside",
    "write outside",
    "write inside",
    "network",
    "local sockets",
    "other processes",
    "credentials",
]
SANDBOX_CELLS: tuple[SandboxCell, ...] = get_args(SandboxCell)

CAPABILITIES: tuple[Capability, ...] = ("read", "write", "shell", "network", "mcp")
VERDICTS = ("allow", "ask", "deny")

CAPABILITY_OF: dict[ToolKind, Capability | None] = {
    "read": "read",
    "search": "read",
    "edit": "write",
    "delete": "write",
    "move": "write",
    "execute": "shell",
    "fetch": "network",
    "mcp": "mcp",
    "think": None,
    "other": "shell",
}
"""An unknown kind counts as ``shell``; thinking needs no permission."""


class SandboxRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """One way out of the workspace, and whether the sandbox prevents it."""

    cell: SandboxCell
    verdict: Literal["allow", "deny"]
    enforcer: Enforcer | None = None
    """None: it is allowed, so there is nothing to enforce."""
    note: str = ""


class Policy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an agent may do. Wrong values raise ``PolicyError``.

    - ``allow_tools``: if set, only these tools may be used, and they need no further permission;
      an empty list means none. ``deny_tools`` wins over it.
    - ``shell_rules``: ``"allow git status"``, ``"deny git push *"``; the first that
      matches a command decides. ``*`` stands for any text. Allow rules accept plain
      words only: in ``a && b``, ``a || b``, ``a | b`` and ``a; b`` each command needs a
      rule, and everything else of the shell's language (``$``, ``>``, comments, newlines,
      assignments ...) is not accepted. See ``corral._core.shell_patterns``. Rules refuse commands
      of more than 16 KB. Blanks around a rule and between its words do not matter.
    - ``writable``: further folders that may be written. Everything outside the workspace and
      these folders may not.
    - ``network_hosts``: the only hosts that commands may reach: ``"pypi.org"``, ``"*.npmjs.org"``,
      ``"localhost:5432"``. All else of the network is denied, the agent's own web tools too:
      some fetch from the vendor's servers. So it sets ``network`` to ``deny``.
    - ``own_mcp``: for the MCP server of the caller's own functions; if unset, ``mcp`` applies.
    - ``mode``: ``"native"`` uses the agent's own defaults; ``"plan"`` is the agent's planning
      mode.

    ::

        policy = corral.Policy(write="allow", shell_rules=["allow git status", "deny git push *"])
        corral.run_sync("gemini-cli", "What has changed?", policy=policy)
    """

    read: Verdict | None = "allow"
    write: Verdict | None = None
    shell: Verdict | None = None
    network: Verdict | None = None
    mcp: Verdict | None = None
    own_mcp: Verdict | None = None
    allow_tools: Sequence[str] | None = None
    deny_tools: Sequence[str] = ()
    shell_rules: Sequence[str] = ()
    writable: Sequence[str] = ()
    network_hosts: Sequence[str] = ()
    mode: Literal["native", "plan"] | None = None

    @short_traceback
    def __post_init__(self) -> None:
        for name in (*CAPABILITIES, "own_mcp"):
            value: object = getattr(self, name)
            if value is not None and value not in VERDICTS:
                raise PolicyError(f"{name} must be allow, ask or deny, got: {value!r}")
        for name in _PARSERS:
            _parse_list(self, name)
        if self.network_hosts:
            msgspec.structs.force_setattr(self, "network", "deny")
        if self.mode not in (None, "native", "plan"):
            raise PolicyError(f"mode must be native or plan, got: {self.mode!r}")

    @classmethod
    def reads(cls) -> Policy:
        """Read files, and nothing else."""
        return cls(read="allow", write="deny", shell="deny", network="deny", mcp="deny")

    @classmethod
    def edits(cls) -> Policy:
        """Read and edit files and use the caller's tools; no shell, no network."""
        return cls(read="allow", write="allow", shell="deny", network="deny", own_mcp="allow")

    @classmethod
    def all(cls) -> Policy:
        """Everything. Never a default: the caller must request it."""
        return cls(read="allow", write="allow", shell="allow", network="allow", mcp="allow")

    @classmethod
    def plan(cls) -> Policy:
        return cls(
            read="allow", write="deny", shell="deny", network="deny", mcp="deny", mode="plan"
        )

    @classmethod
    def native(cls) -> Policy:
        """The agent's own defaults."""
        return cls(read=None, mode="native")

    def __repr__(self) -> str:
        """The constructor of a preset, or the values that differ from the default."""
        for name in ("reads", "edits", "all", "plan", "native"):
            if self == getattr(Policy, name)():
                return f"Policy.{name}()"
        values = ((name, getattr(self, name)) for name in self.__struct_fields__)
        default = Policy()
        given = (f"{name}={v!r}" for name, v in values if v != getattr(default, name))
        return f"Policy({', '.join(given)})"

    def verdict(self, capability: Capability, *, own: bool = False) -> Verdict:
        """The verdict for a capability without rules; unset is ``ask``."""
        if capability == "mcp" and own and self.own_mcp is not None:
            return self.own_mcp
        verdict: Verdict | None = getattr(self, capability)
        return verdict or "ask"

    @property
    def rules(self) -> tuple[ShellRule, ...]:
        """``shell_rules``, parsed."""
        return tuple(map(parse_shell_rule, self.shell_rules))

    @property
    def allows_commands(self) -> bool:
        """Whether a shell rule allows some command."""
        return any(rule.verdict == "allow" for rule in self.rules)

    def host_rules(self) -> tuple[HostRule, ...]:
        """``network_hosts``, parsed."""
        from corral._core.host_rules import parse_host_rule

        return tuple(map(parse_host_rule, self.network_hosts))

    @property
    def is_unlimited(self) -> bool:
        """Allows everything without any rule."""
        return self == Policy.all()

    def evaluate(self, action: Action) -> Ruling:
        """Decide about an action: deny rules first, then allow rules, then the capability."""
        if action.tool in self.deny_tools:
            return Ruling("deny", f"deny_tools: {action.tool}")
        listed = self.allow_tools is not None and action.tool in self.allow_tools
        if self.allow_tools is not None and not listed:
            return Ruling("deny", "allow_tools: not listed")
        if action.command is not None:
            ruling = _shell_ruling(self.rules, action.command)
            # Any tool may have an argument called command: allow rules apply to the shell only.
            if ruling is not None and (ruling.verdict == "deny" or action.kind == "execute"):
                return ruling
        if listed:
            return Ruling("allow", f"allow_tools: {action.tool}")
        capability = CAPABILITY_OF[action.kind]
        if capability is None:
            return Ruling("allow", "harmless")
        verdict = self.verdict(capability, own=action.own)
        return Ruling(verdict, f"{capability}={verdict}")


class Action(msgspec.Struct, frozen=True):
    """What an agent is about to do, as far as known.

    ::

        ruling = run_policy.evaluate(Action(tool="shell", kind="execute", command="git status"))
    """

    tool: str
    kind: ToolKind = "other"
    command: str | None = None
    own: bool = False
    """A tool of the caller's own MCP server."""


class Ruling(msgspec.Struct, frozen=True):
    """What a policy says about an action, and the rule that decided.

    ::

        ruling = run_policy.evaluate(action)
        print(ruling.verdict, ruling.rule)
    """

    verdict: Verdict
    rule: str
    """The rule that decided, as written in the policy."""


def is_narrower(policy: Policy, than: Policy, tools: Mapping[str, ToolKind] | None = None) -> bool:
    """Whether ``policy`` allows nothing that ``than`` does not allow, and asks about nothing that
    ``than`` denies. Equal policies are narrower than each other. Each writable folder must be one
    of ``than`` or below it, also if ``than`` allows everything: a sandbox shows these folders only.

    The answer is safe, not complete: ``True`` is always right, ``False`` may be given for rules
    that cannot be compared. A command is taken to belong to a tool of the shell. ``tools`` are the
    agent's tools with their kinds: without them a tool that only ``policy`` lists in
    ``allow_tools`` cannot be compared, as it would be allowed whatever its capability is.

    ::

        assert is_narrower(corral.Policy.reads(), corral.Policy.edits())
    """
    if "native" in (policy.mode, than.mode):
        return policy == than
    if policy == than:
        return True
    if policy.is_unlimited or (than.mode == "plan" and policy.mode != "plan"):
        return False
    capabilities = all(
        VERDICTS.index(policy.verdict(name, own=own)) >= VERDICTS.index(than.verdict(name, own=own))
        for name in CAPABILITIES
        for own in (False, True)
    )
    return (
        capabilities
        and (than.network == "allow" or set(policy.network_hosts) <= set(than.network_hosts))
        and all(_is_below(folder, than.writable) for folder in policy.writable)
        and _tools_are_narrower(policy, than, tools or {})
        and _commands_are_narrower(policy, than, tools or {})
    )


def _tools_are_narrower(policy: Policy, than: Policy, tools: Mapping[str, ToolKind]) -> bool:
    if policy.allow_tools is None:
        return than.allow_tools is None and set(than.deny_tools) <= set(policy.deny_tools)
    listed = set(policy.allow_tools) - set(policy.deny_tools)
    if listed & set(than.deny_tools):
        return False
    if than.allow_tools is not None:
        return listed <= set(than.allow_tools)
    # The capability of each tool must be allowed, of the caller's own server or not. An unknown
    # tool may have any.
    return all(
        than.verdict(capability, own=own) == "allow"
        for name in listed
        for capability in ((CAPABILITY_OF[tools[name]],) if name in tools else CAPABILITIES)
        if capability is not None
        for own in (False, True)
    )


def _is_below(folder: str, roots: Iterable[str]) -> bool:
    """Whether a folder is one of ``roots`` or below it, compared as text. What ``..`` means depends
    on links: such a folder must be one of them."""
    if folder in roots:
        return True
    parts = folder.split("/")
    return ".." not in parts and any(
        root != "." and parts[: len(root.rstrip("/").split("/"))] == root.rstrip("/").split("/")
        for root in roots
    )


def _commands_are_narrower(policy: Policy, than: Policy, tools: Mapping[str, ToolKind]) -> bool:
    rules, wider = tuple(dict.fromkeys(policy.rules)), tuple(dict.fromkeys(than.rules))
    # Whether ``allow_tools`` has a tool that may run commands.
    listed = set(policy.allow_tools or ()) - set(policy.deny_tools)
    lists_shell = any(CAPABILITY_OF[tools.get(name, "other")] == "shell" for name in listed)
    if not policy.allows_commands and policy.verdict("shell") == "deny" and not lists_shell:
        return True  # no command is allowed, nor asked about
    if not wider:
        return than.verdict("shell") == "allow" or not policy.allows_commands
    # The rules must be those of ``wider`` in their order, perhaps without some that allow, and with
    # more that deny.
    common = [rule for rule in rules if rule.verdict == "allow" or rule in wider]
    remaining = iter(wider)
    in_order = all(rule in remaining for rule in common)
    denied = {rule for rule in wider if rule.verdict == "deny"}
    return bool(rules) and in_order and denied <= set(common)


class ShellRule(msgspec.Struct, frozen=True):
    """``"allow git *"``, parsed. ``str`` gives the rule in its normal form.

    ::

        rule = parse_shell_rule("allow git *")
        print(rule.verdict, rule.pattern)
    """

    verdict: Literal["allow", "deny"]
    pattern: str

    def __str__(self) -> str:
        return f"{self.verdict} {self.pattern}"


def parse_shell_rule(text: str) -> ShellRule:
    """Raises ``PolicyError``.

    ::

        print(parse_shell_rule("deny  git push *"))
    """
    words = text.split()
    match words:
        case ["allow" | "deny" as verdict, *rest] if rest:
            pattern = " ".join(rest)
        case _:
            raise PolicyError(
                f"a shell rule must be 'allow PATTERN' or 'deny PATTERN', got: {text!r}",
                hint="For example: shell_rules = ['allow git status', 'deny git push *']",
            )
    if not text.strip().replace("\t", " ").isprintable():
        raise PolicyError(
            f"a shell rule must be one line of printable characters, got: {text!r}",
            hint="Write one rule for each command.",
        )
    # Blanks inside quotes are part of a word: without them it would be another rule.
    if ("'" in pattern or '"' in pattern) and pattern not in text:
        raise PolicyError(
            f"a shell rule with quotes must have single blanks, got: {text!r}",
            hint="Use * for a part of the command that has several blanks.",
        )
    return ShellRule("allow" if verdict == "allow" else "deny", pattern)


def _parse_tool(text: str) -> str:
    """Lists of tools become flags and rules of the agents, in which some characters separate names
    or have another meaning."""
    name = text.strip()
    if "*" in name:
        raise PolicyError(f"names, not patterns: {text!r}")
    if not name.isprintable() or any(char in " ,()\"'" for char in name):
        raise PolicyError(
            f"not the name of a tool: {text!r}",
            hint="Name each tool by itself. Rules for commands are shell_rules: 'allow git *'.",
        )
    return name


def _parse_folder(text: str) -> str:
    """Without ``.`` and doubled separators. ``..`` stays: what it means depends on links."""
    parts = [part for part in text.split("/") if part not in ("", ".")]
    folder = ("/" if text.startswith("/") else "") + "/".join(parts) or "."
    if folder != folder.strip():
        raise PolicyError(f"a path that begins or ends with a blank: {text!r}", hint="Remove it.")
    return folder


def _parse_host(text: str) -> str:
    from corral._core.host_rules import parse_host_rule

    return str(parse_host_rule(text))


_PARSERS: dict[str, Callable[[str], str]] = {
    "allow_tools": _parse_tool,
    "deny_tools": _parse_tool,
    "shell_rules": lambda text: str(parse_shell_rule(text)),
    "writable": _parse_folder,
    "network_hosts": _parse_host,
}
"""The fields with lists, and what makes the normal form of an item. Each raises ``PolicyError``."""


def _shell_ruling(rules: Sequence[ShellRule], command: str) -> Ruling | None:
    """The first rule that matches decides, for each simple command of the line by itself: one
    that is denied denies the line, and the line is allowed when all of them are. A line that
    cannot be parsed is judged in one piece, and only by deny rules and its own exact text."""
    if rules and len(command) > MAX_LENGTH:
        return Ruling("deny", f"shell_rules: the command has more than {MAX_LENGTH} characters")
    open_parts = parse(command)
    allowed_by: dict[str, None] = {}
    for rule in rules:
        if is_literal(rule.pattern, command):
            return Ruling(rule.verdict, f"shell_rules: {rule}")
        if rule.verdict == "deny":
            texts = [command] if open_parts is None else [part.text for part in open_parts]
            if any(matches(rule.pattern, text) for text in texts):
                return Ruling("deny", f"shell_rules: {rule}")
        elif open_parts is not None:
            left = tuple(part for part in open_parts if not accepts(rule.pattern, part))
            if len(left) < len(open_parts):
                allowed_by[str(rule)] = None
            if not left:
                return Ruling("allow", f"shell_rules: {', '.join(allowed_by)}")
            open_parts = left
    return None


def _parse_list(policy: Policy, name: str) -> None:
    """Bring a list of the policy into its normal form."""
    items: Iterable[object] | None = getattr(policy, name)
    if items is None and name == "allow_tools":
        return
    # The order of rules matters, and a set has none.
    ordered = (list, tuple)
    allowed = ordered if name == "shell_rules" else (*ordered, set, frozenset)
    if items is None or not isinstance(items, allowed):
        raise PolicyError(f"{name} must be a list, got: {type(items).__name__}")
    parsed: dict[str, None] = {}
    for item in items:
        if not isinstance(item, str) or not item.strip():
            raise PolicyError(f"{name} must contain names, got: {item!r}")
        if "\0" in item or any("\ud800" <= char <= "\udfff" for char in item):
            raise PolicyError(
                f"{name} contains text that cannot be passed to a program, got: {item!r}",
                hint="Remove the NUL character or the lone surrogate.",
            )
        try:
            parsed[_PARSERS[name](item)] = None
        except PolicyError as error:
            raise PolicyError(f"{name}: {error.message}", hint=error.hint) from None
    msgspec.structs.force_setattr(policy, name, tuple(parsed))


def with_tools(policy: Policy, tools: Iterable[object]) -> Policy:
    """The policy with ``allow_tools``, which alone decides what may be used. A preset's denial of
    the network is dropped: a shell in the list can use the network, and the caller listed it. A
    policy that is not a preset keeps its denial."""
    is_preset = policy in (Policy.reads(), Policy.edits(), Policy.plan())
    network = None if is_preset else policy.network
    return msgspec.structs.replace(policy, allow_tools=tuple(tools), network=network)


def policy_from_table(values: dict[str, object], source: str) -> Policy:
    """A policy from a table of a configuration file. Unknown keys raise ``PolicyError``: ignoring
    a misspelled rule would allow too much.

    ::

        policy = policy_from_table({"preset": "edits", "network": "allow"}, "policy.toml")
    """
    preset = values.pop("preset", None)
    base = Policy()
    if preset is not None:
        if not isinstance(preset, str) or preset not in PRESETS:
            raise PolicyError(f"{source}: preset must be reads, edits or all, got: {preset!r}")
        base = PRESETS[preset]
    known = ("preset", *Policy.__struct_fields__)
    for key in values:
        if key not in known:
            hint = nearest(key, known, f"known: {', '.join(known)}.")
            raise PolicyError(f"{source}: unknown key {key!r}", hint=hint[:1].upper() + hint[1:])
    try:
        if values.get("allow_tools") is not None and "network" not in values:
            base = with_tools(base, ())
        return msgspec.structs.replace(base, **values)
    except PolicyError as error:
        raise PolicyError(f"{source}: {error.message}", hint=error.hint) from error


PRESETS: dict[str, Policy] = {
    "reads": Policy.reads(),
    "edits": Policy.edits(),
    "all": Policy.all(),
}
