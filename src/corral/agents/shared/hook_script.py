"""``on_tool_call`` for agents that are extended by JavaScript: a module that runs a command.

The command gets ``{"tool_name", "tool_input"}`` on stdin and prints ``{}``, ``{"deny": reason}`` or
``{"input": arguments}`` (``command_hook``). If it fails in any way the call is denied.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from corral.agents.spec import CommandHook
from corral.events import ToolKind
from corral.values import JsonObject

DENIED = "corral: "
"""How the reason of a denied call begins, so that it is recognized in the agent's output."""

_SCRIPT = """import { spawn } from "node:child_process";
const ask = (name, input) => new Promise((resolve) => {
  const hook = spawn("/bin/sh", ["-c", COMMAND], { stdio: ["pipe", "pipe", "pipe"] });
  const deny = (reason) => resolve({ deny: DENIED + reason });
  let answer = "", errors = "";
  hook.stdout.setEncoding("utf8").on("data", (part) => { answer += part; });
  hook.stderr.setEncoding("utf8").on("data", (part) => { errors += part; });
  hook.on("error", (error) => deny(String(error)));
  hook.on("close", (code) => {
    if (code !== 0) return deny(errors.trim() || `the hook ended with ${code}`);
    try { resolve(JSON.parse(answer)); } catch (error) { deny(String(error)); }
  });
  hook.stdin.on("error", () => {});
  hook.stdin.end(JSON.stringify({ tool_name: name, tool_input: input }));
});
const replace = (input, other) => {
  for (const key of Object.keys(input)) delete input[key];
  Object.assign(input, other);
};
"""


def script(command: str, rest: str) -> str:
    """A module with the functions ``ask(name, input)``, which returns the answer, and
    ``replace(input, other)``, which edits an input in place. ``rest`` uses them."""
    constants = f"const COMMAND = {json.dumps(command)}, DENIED = {json.dumps(DENIED)};\n"
    return f"{constants}{_SCRIPT}{rest}"


def command_hook(
    kind_of: Callable[[str], ToolKind], own_prefix: str, names: Mapping[str, str] | None = None
) -> CommandHook:
    """The hook of an agent with such a script."""
    return CommandHook(
        kind_of=kind_of, own_prefix=own_prefix, deny=_deny, edit=_edit, names=names or {}
    )


def _deny(reason: str) -> JsonObject:
    return {"deny": f"{DENIED}{reason}"}


def _edit(arguments: JsonObject) -> JsonObject:
    return {"input": arguments}
