"""What the launches of several agents have in common.

- Checks that are made before anything is spawned.
- MCP servers in the settings of agents. Secrets are in environment variables: those of headers are
  replaced by the agent, those of variables by the program that starts the server.
- The route of the model calls of an agent that takes any server with a chat-completions API.
- A prompt as the text of a custom command. Some programs take a leading ``/`` for a command and
  inline the files after every ``@``. They send the text of a command in the private home unchanged,
  and the prompt only names that command.
- ``on_tool_call`` for agents that are extended by JavaScript: a module runs a command, which gets
  ``{"tool_name", "tool_input"}`` on stdin and prints ``{}``, ``{"deny": reason}`` or
  ``{"input": arguments}``. If it fails in any way the call is denied.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import shake_256

import msgspec

from corral._agents.spec import CommandHook, LaunchContext, MeterRoute
from corral._core.quoting import toml_string
from corral.errors import AuthenticationFailed, ConfigError, UntrustedFolder
from corral.events import ToolKind
from corral.options import RunOptions
from corral.values import Json, McpServer


def refuse_project_files(run: RunOptions, place: LaunchContext, what: str) -> None:
    """For an agent that would obey files of the repository regardless of its settings. Raises
    ``UntrustedFolder`` unless the repository is trusted; ``what`` describes the effect."""
    if run.inherit == "nothing":
        refuse_trust(place, what)


def refuse_trust(place: LaunchContext, what: str) -> None:
    """Raises ``UntrustedFolder`` if the repository has files that the agent would obey."""
    if place.project_files:
        raise UntrustedFolder(
            f"{what}: {', '.join(place.project_files[:5])}",
            hint="If you trust them, set inherit='project' (--inherit project).",
            phase="config",
        )


def refuse_user_settings(run: RunOptions) -> None:
    """For an agent that cannot combine the user's settings with ours."""
    if run.inherit == "user":
        raise ConfigError(f"{run.agent} cannot inherit the user's settings")


def check_effort(run: RunOptions, title: str, efforts: tuple[str, ...]) -> None:
    effort = run.reasoning_effort
    if effort is not None and effort not in efforts:
        raise ConfigError(
            f"{title} has no effort {effort!r}", hint=f"It has: {', '.join(efforts)}."
        )


def find_credentials(place: LaunchContext, names: Iterable[str], title: str, hint: str) -> str:
    """The first of these variables, or of the login files, that exists. Raises
    ``AuthenticationFailed`` if none does."""
    found = [name for name in names if place.env.get(name)]
    found += [f"~/{name}" for name in place.credentials]
    if not found:
        raise AuthenticationFailed(
            f"no credentials for {title} were found", hint=hint, phase="config"
        )
    return found[0]


_PREFIX = "CORRAL_MCP_SECRET_"
"""Agents recognize such names as secrets, and most hide them from their shell."""
_START = f"""\
import hashlib, json, os, sys
key, names, env = sys.argv[1], json.loads(sys.argv[2]), dict(os.environb)
for name in [name for name in env if name.startswith(b"{_PREFIX}")]:
    value = env.pop(name)
    if name.decode() in names:
        data = bytes.fromhex(value.decode())
        pad = hashlib.shake_256(key.encode() + name).digest(len(data))
        env[names[name.decode()].encode()] = bytes(a ^ b for a, b in zip(data, pad))
os.execvpe(sys.argv[3], sys.argv[3:], env)
"""
"""Starts an MCP server with its own variables, and without those of the others."""


def header_references(number: int, server: McpServer, naming: str = "${{{}}}") -> dict[str, Json]:
    """References in place of the values of a server's headers. ``naming`` is the agent's format of
    a reference."""
    return {name: naming.format(secret_name(number, name)) for name in server.headers}


def secret_variables(servers: Iterable[McpServer], key: str) -> Mapping[str, str]:
    """The variables of the agent that have the values of its servers: of headers as they are, of
    variables enciphered, because an agent uses some names itself, and most agents pass all their
    variables on to each server, and some to their commands."""
    found: dict[str, str] = {}
    for number, server in enumerate(servers):
        found |= {secret_name(number, name): value for name, value in server.headers.items()}
        for name, value in server.env.items():
            secret = secret_name(number, name)
            data = value.encode("utf-8", "surrogateescape")
            pad = shake_256((key + secret).encode()).digest(len(data))
            found[secret] = bytes(a ^ b for a, b in zip(data, pad, strict=True)).hex()
    return found


def server_command(number: int, servers: Sequence[McpServer], key: str) -> tuple[str, ...]:
    """The command line of a server. It is started by a program that gives it its variables, and
    those of no other, if any server has some."""
    server = servers[number]
    if not any(each.env or each.headers for each in servers):
        return server.command
    names = {secret_name(number, name): name for name in server.env}
    return (sys.executable, "-I", "-S", "-c", _START, key, json.dumps(names), *server.command)


def variable_references(number: int, server: McpServer, naming: str = "${{{}}}") -> dict[str, Json]:
    """The variables that the agent gives to the program of ``server_command``."""
    names = [secret_name(number, name) for name in server.env]
    return {name: naming.format(name) for name in names}


def server_config(number: int, servers: Sequence[McpServer], key: str) -> dict[str, Json]:
    """A server in the most common format: ``httpUrl``, or a command."""
    server = servers[number]
    if server.url is not None:
        headers: Json = header_references(number, server)
        return {"httpUrl": server.url, "headers": headers}
    command, *args = server_command(number, servers, key)
    return {"command": command, "args": [*args], "env": variable_references(number, server)}


def secret_name(number: int, name: str) -> str:
    """The name of the variable that has a variable or a header of the server with this number. It
    differs for any two names."""
    plain = re.sub("[^A-Za-z0-9]", lambda sign: f"_{ord(sign[0]):x}_", name)
    return f"{_PREFIX}{number}_{plain}"


def without_versions(**versions: str) -> Callable[[dict[str, str]], dict[str, str]]:
    """For ``own_names``. Variable with a base URL → the version that the agent appends to it, and
    in which the user's URL may end."""

    def renamed(env: dict[str, str]) -> dict[str, str]:
        read = {
            name: env[name].rstrip("/").removesuffix(version)
            for name, version in versions.items()
            if name in env
        }
        return {**env, **read}

    return renamed


Route = Callable[[RunOptions, Mapping[str, str]], MeterRoute | str]


def behind_url(url_env: str, key_env: str, unused_env: tuple[str, ...] = ()) -> Route:
    """Counted if the environment names the server and its key."""

    def route(run: RunOptions, env: Mapping[str, str]) -> MeterRoute | str:
        url = env.get(url_env)
        if not url or not env.get(key_env):
            return f"model calls are counted only with {url_env} and {key_env}"
        return MeterRoute(
            url_env=url_env,
            url=url,
            key_env=(key_env,),
            vendors=("openai-chat", "openai"),
            unused_env=unused_env,
        )

    return route


def behind_key(services: Mapping[str, tuple[tuple[str, ...], str, str]]) -> Route:
    """Counted with the first of these keys that is set. Variable of the key → whose APIs it may
    use, the variable with their URL, and the URL without it."""

    def route(run: RunOptions, env: Mapping[str, str]) -> MeterRoute | str:
        key = next((name for name in services if env.get(name)), None)
        if key is None:
            return f"model calls are counted only with {' or '.join(services)}"
        vendors, url_env, url = services[key]
        return MeterRoute(
            url_env=url_env,
            url=env.get(url_env) or url,
            key_env=(key,),
            vendors=vendors,
            unused_env=tuple(name for name in services if name != key),
        )

    return route


COMMAND = "corral-prompt"
"""The session's name is appended: if the repository had a command of the same name, possibly
neither would run."""
_LIVE = r"(?<!\\)@(?=\S)"
_TEMPLATE = ("{{args}}", "!{", "@{")


def has_special_syntax(prompt: str) -> bool:
    """Whether the program would not take all of it for text."""
    return prompt.startswith("/") or ("@" in prompt and re.search(_LIVE, prompt) is not None)


def has_template_syntax(prompt: str) -> bool:
    """Whether it contains something that is interpreted inside a command's text, too."""
    return any(mark in prompt for mark in _TEMPLATE)


class PromptInput(msgspec.Struct, frozen=True):
    """How a prompt is passed as plain text."""

    stdin: bytes
    files: dict[str, str] = {}
    notes: tuple[str, ...] = ()


def plain_prompt(
    prompt: str, place: LaunchContext, folder: str, *, is_command: bool = False
) -> PromptInput:
    """As it is, if the program takes all of it for text; else as the text of a command below the
    settings ``folder`` (always with ``is_command``), or escaped if it cannot be that either."""
    if not is_command and not has_special_syntax(prompt):
        return PromptInput(prompt.encode())
    if has_template_syntax(prompt) and not is_command:
        text = re.sub(_LIVE, lambda sign: "\\" + sign[0], prompt)
        note = "the prompt's @ signs are sent as \\@: the CLI would inline the files they name"
        return PromptInput(escape_slash(text), notes=(note,))
    name = f"{COMMAND}-{os.path.basename(os.path.dirname(place.home))}"
    command = {f"{folder}/commands/{name}.toml": f"prompt = {toml_string(prompt)}\n"}
    return PromptInput(f"/{name}".encode(), command)


def escape_slash(prompt: str) -> bytes:
    """The prompt for stdin. A leading ``/`` is not that of a command."""
    return (f"\n{prompt}" if prompt.startswith("/") else prompt).encode()


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


def hook_script(command: str, rest: str) -> str:
    """A module with the functions ``ask(name, input)``, which returns the answer, and
    ``replace(input, other)``, which edits an input in place. ``rest`` uses them."""
    constants = f"const COMMAND = {json.dumps(command)}, DENIED = {json.dumps(DENIED)};\n"
    return f"{constants}{_SCRIPT}{rest}"


def scripted_hook(
    kind_of: Callable[[str], ToolKind], own_prefix: str, names: Mapping[str, str] | None = None
) -> CommandHook:
    """The hook of an agent with such a script."""
    return CommandHook(
        kind_of=kind_of,
        own_prefix=own_prefix,
        deny=lambda reason: {"deny": f"{DENIED}{reason}"},
        edit=lambda arguments: {"input": arguments},
        names=names or {},
    )
