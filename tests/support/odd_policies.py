"""Policies for tests over all agents: the presets, and combinations that are easily mistaken."""

from __future__ import annotations

from msgspec.structs import replace

from corral.policy import Policy

PRESETS: dict[str, Policy] = {
    "default": Policy(),
    "reads": Policy.reads(),
    "edits": Policy.edits(),
    "all": Policy.all(),
    "plan": Policy.plan(),
    "native": Policy.native(),
}
ODD_POLICIES: dict[str, Policy] = {
    "nothing": Policy(read="deny", write="deny", shell="deny", network="deny", mcp="deny"),
    "one command": Policy(shell="deny", shell_rules=("allow git status",)),
    "a rule without effect": Policy(shell="deny", shell_rules=("deny rm *",)),
    "asks but for one command": Policy(shell_rules=("deny rm *",)),
    "asks but for allowed commands": Policy(shell_rules=("allow git *",)),
    "all commands but one": Policy(shell="allow", shell_rules=("deny rm *",)),
    "a rule for what is allowed": Policy(shell="allow", shell_rules=("allow git *",)),
    "edits with rules": replace(Policy.edits(), shell_rules=("deny git push *", "allow git *")),
    "a rule that no regex expresses": Policy(shell_rules=("allow *a*b*c* x", "allow ls")),
    "blanks": Policy(shell="deny", shell_rules=(" allow  ls ", "\tdeny rm *")),
    "shell without network": Policy(write="allow", shell="allow", network="deny"),
    "shell": Policy(shell="allow"),
    "shell and write": Policy(shell="allow", write="allow"),
    "shell without read": Policy(read="deny", shell="allow"),
    "shell, asks to read": Policy(read="ask", shell="allow", write="allow"),
    "shell, asks to write": Policy(write="ask", shell="allow"),
    "asks to read": Policy(read="ask"),
    "network": Policy(network="allow", write="deny", shell="deny"),
    "asks for the network": Policy(network="ask", write="allow", shell="deny"),
    "hosts for a shell": Policy(shell="allow", network_hosts=("pypi.org", "localhost:5432")),
    "hosts for one command": Policy(shell_rules=("allow pip *",), network_hosts=("pypi.org",)),
    "hosts without commands": Policy(shell="deny", network_hosts=("pypi.org",)),
    "servers": Policy(mcp="allow"),
    "own functions only": Policy(mcp="deny", own_mcp="allow"),
    "servers, no own functions": Policy(mcp="allow", own_mcp="deny"),
    "asks for servers": Policy(mcp="ask", own_mcp="ask"),
    "asks for servers, shell": Policy(mcp="ask", shell="allow"),
    "all but servers": replace(Policy.all(), mcp="deny"),
    "all but the network": replace(Policy.all(), network="deny"),
    "all but one command": replace(Policy.all(), shell_rules=("deny rm *",)),
    "writable": replace(Policy.edits(), writable=("more",)),
    "writable, no writing": Policy(write="deny", writable=("more",)),
    "plan that writes": replace(Policy.plan(), write="allow"),
    "no tool": Policy(allow_tools=()),
}
