"""The sandbox of a run: whether it gets one, what is inside, and what that means for its policy.

``choose`` decides before anything is started, ``raise_levels`` corrects the policy report, and
``for_agent`` and ``for_commands`` make the box for one start.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from corral.agents.spec import Launch, PolicyRow
from corral.errors import ConfigError, SandboxFailed
from corral.options import RunOptions
from corral.policy import Policy
from corral.system import paths
from corral.system.sandbox.box import Box, Endpoint, interpreter_folders, is_inside
from corral.system.sandbox.sandbox import Sandbox, Support, find_support

if TYPE_CHECKING:
    from corral.sessions.prepare import PreparedRun

_URL = re.compile(r"https?://(?:\[[0-9a-fA-F:]+\]|[\w.-]+)(?::\d+)?")
_PORTS = {"http": 80, "https": 443}


def choose(run: RunOptions, cwd: str) -> Support | None:
    """The sandbox that a run with ``auto`` or ``require`` gets; None if it gets none. Raises
    ``ConfigError`` for a folder around which no useful sandbox can be built, and ``SandboxFailed``
    if one is required that this machine does not have."""
    support = find_support(cwd)
    if run.sandbox == "require" and not support.is_complete:
        raise SandboxFailed(
            f"a sandbox is required, and this machine has none: {support.reason}", hint=support.hint
        )
    if support.method is None:
        return None
    for folder in (cwd, *(os.path.join(cwd, path) for path in run.policy.writable)):
        _check_folder(os.path.realpath(folder))
    return support


def _check_folder(folder: str) -> None:
    home = os.path.realpath(paths.user_home())
    if is_inside(home, folder):
        what = "the root folder" if folder == "/" else "the home folder or contains it"
        raise ConfigError(
            f"{folder} is {what}: the sandbox could not hide keys and other projects",
            hint="Use the folder of one project as cwd, or sandbox='off'.",
        )


def raise_levels(
    report: tuple[PolicyRow, ...], policy: Policy, support: Support
) -> tuple[PolicyRow, ...]:
    """The report with what the operating system enforces."""
    return tuple(_raised(row, policy, support) for row in report)


def _raised(row: PolicyRow, policy: Policy, support: Support) -> PolicyRow:
    notes = {
        "write": "only the workspace and the policy's writable folders",
        "read": "the workspace, added folders and the system's programs",
        "shell": "commands see and reach only what is in the sandbox",
        "network": "only the model and the given tool servers can be reached",
    }
    can_write = row.verdict != "deny"
    match row.capability:
        case "write":
            note = notes["write"] if can_write else "the workspace cannot be written"
        case "network" if policy.network != "allow" and support.is_complete:
            row = msgspec.structs.replace(row, verdict="deny")
            note = notes["network"]
        case "read" if row.verdict != "deny" and support.is_complete:
            note = notes["read"]
        case "shell" if row.verdict == "allow" and policy.shell_rules == () and support.is_complete:
            note = notes["shell"]
        case _:
            return row
    return msgspec.structs.replace(
        row, enforcement="sandboxed", note=note, reach="workspace", races="closed"
    )


def for_agent(prepared: PreparedRun, support: Support, launch: Launch, folder: Path) -> Sandbox:
    """The sandbox for one start of the agent, for a session stored in ``folder``."""
    own = tuple(str(folder / name) for name in ("home", "tmp", "images"))
    base = _base(prepared)
    box = msgspec.structs.replace(
        base,
        cwd=launch.cwd or prepared.cwd,
        writable=(*base.writable, *own, *_credentials(prepared)),
        readable=(*base.readable, *_programs(prepared, launch)),
        endpoints=tuple(_endpoints(prepared, launch)),
    )
    return Sandbox(support=support, box=box)


def for_commands(prepared: PreparedRun, support: Support) -> Sandbox:
    """The sandbox for commands that corral runs for the agent: those of the built-in agent's shell,
    and the check of ``until``."""
    return Sandbox(support=support, box=_base(prepared))


def _base(prepared: PreparedRun) -> Box:
    """What the policy says of folders and the network."""
    run, policy, cwd = prepared.run, prepared.run.policy, prepared.cwd
    added = [os.path.join(cwd, path) for path in run.include_directories]
    writable = [cwd, *(os.path.join(cwd, path) for path in policy.writable)]
    if policy.write == "deny" and policy.mode != "native":
        added, writable = [*added, *writable], []
    git = list(_git_folders(cwd))
    if policy.is_unlimited:
        writable += git
    search = prepared.environment.values.get("PATH", "").split(os.pathsep)
    shown = [install_folder(path) for path in search if os.path.isabs(path) and os.path.isdir(path)]
    return Box(
        cwd=cwd,
        writable=tuple(writable),
        readable=(*added, *git, *shown, *interpreter_folders()),
        read_only=() if policy.is_unlimited else _existing([os.path.join(cwd, ".git")], writable),
        hidden=(str(paths.home()),),
        network=policy.network == "allow",
    )


def _existing(files: Iterable[str], folders: Iterable[str]) -> tuple[str, ...]:
    """Those that exist, if their folder can be written at all."""
    return tuple(
        file for file in files if os.path.dirname(file) in folders and os.path.exists(file)
    )


def _credentials(prepared: PreparedRun) -> Iterator[str]:
    """The user's own files that the private home links to. The agent renews its login there."""
    home = paths.user_home()
    for name in prepared.linked:
        yield str(home / name)


def _git_folders(cwd: str) -> Iterator[str]:
    """The repository of a work tree, which is elsewhere."""
    file = os.path.join(cwd, ".git")
    if not os.path.isfile(file):
        return
    with open(file, encoding="utf-8", errors="replace") as opened:
        head = opened.read(4096)
    if head.startswith("gitdir:"):
        folder = os.path.realpath(os.path.join(cwd, head.removeprefix("gitdir:").strip()))
        if os.path.basename(os.path.dirname(folder)) == "worktrees":
            folder = os.path.dirname(os.path.dirname(folder))
        if os.path.basename(folder) == ".git" or ".git" in folder.split(os.sep):
            yield folder


def _programs(prepared: PreparedRun, launch: Launch) -> Iterator[str]:
    """Folders with what the agent executes: its own program and its helpers."""
    # A persistent agent's arguments are its command. Another agent's may contain the prompt.
    known = launch.argv if prepared.agent.transport.kind == "acp" else launch.argv[:2]
    named = (prepared.program.path, *prepared.program.argv, *known)
    for path in (*named, *prepared.helpers.values(), *launch.path_folders):
        if os.path.isabs(path) and os.path.exists(path):
            for name in dict.fromkeys((path, os.path.realpath(path))):
                yield install_folder(name)


def install_folder(path: str) -> str:
    """The folder to show for a program: that of its package, or the one above ``bin``."""
    before, found, _ = path.partition("/node_modules/")
    if found:
        return before
    folder = path if os.path.isdir(path) else os.path.dirname(path)
    above = os.path.dirname(folder)
    home = os.path.realpath(paths.user_home())
    if os.path.basename(folder) == "bin" and not is_inside(home, above):
        return above
    return path if is_inside(home, folder) else folder


def _endpoints(prepared: PreparedRun, launch: Launch) -> Iterator[Endpoint]:
    """The model and the tool servers that the run was given."""
    agent = prepared.agent
    texts = [*prepared.environment.family.values(), *launch.env.values()]
    texts += [server.url for server in prepared.run.mcp_servers if server.url]
    given = {endpoint for text in texts for endpoint in urls(text)}
    yield from sorted(given, key=lambda endpoint: (endpoint.host, endpoint.port))
    for host in agent.hosts:
        yield Endpoint(host, _PORTS["https"])


def urls(text: str) -> Iterator[Endpoint]:
    """The hosts and ports of all URLs in a text."""
    for found in _URL.finditer(text):
        parts = urlsplit(found[0])
        try:
            port = parts.port or _PORTS[parts.scheme]
        except ValueError:
            continue
        if parts.hostname:
            yield Endpoint(parts.hostname, port)
