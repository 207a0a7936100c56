"""The sandbox of a run: whether it gets one, and what is inside.

``choose`` and ``find_complete`` examine the machine before anything is started, ``agent_sandbox``
and ``command_sandbox`` make the box for one start.
``corral._sessions.enforcement`` decides whether a run needs it.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from corral._agents import registry
from corral._agents.report import PolicyRow
from corral._agents.spec import AgentSpec, Launch
from corral._sessions.prepared_run import PreparedRun
from corral._system import environment, fs, paths
from corral._system.paths import is_inside
from corral._system.sandbox.box import (
    CREDENTIALS,
    Box,
    SandboxEndpoint,
    credentials_to_cover,
    interpreter_folders,
    is_system,
)
from corral._system.sandbox.sandbox import Sandbox, Support, enforced_rows, find_support
from corral.errors import ConfigError, SandboxFailed
from corral.options import RunOptions
from corral.policy import SandboxRow

if TYPE_CHECKING:
    from corral._system.hook_socket import HookSocket
    from corral._system.sandbox.repository_guard import Report

# Kept as text: re compiles them when first needed.
_URL = r"https?://(?:\[[0-9a-fA-F:]+\]|[\w.-]+)(?::\d+)?"
_WORK_TREE = r"(?m)^[ \t]*worktree[ \t]*=(.*)$"
_LIBRARIES = ("lib", "lib64", "libexec")
_SHARED = (
    ".cache",
    ".config",
    ".local",
    ".local/share",
    ".local/state",
    ".var",
    ".var/app",
    "Desktop",
    "Documents",
    "Downloads",
    "Library",
    "Library/Application Support",
    "snap",
)
"""Folders of the home in which many programs, or the user, keep data."""
_PORTS = {"http": 80, "https": 443}
COMPLETE = Support(method="bubblewrap")
"""A sandbox that enforces all that corral's can; whether this machine has it is not examined."""


def find_complete(run: RunOptions, cwd: str) -> Support:
    """The sandbox of this machine. Raises as ``choose`` with ``require``."""
    support = find_support(cwd)
    if not support.is_complete:
        raise SandboxFailed(f"this machine has none: {support.reason}", hint=support.hint)
    _check_folders(run, cwd)
    return support


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
    _check_folders(run, cwd)
    return support


def _check_folders(run: RunOptions, cwd: str) -> None:
    _check_folder(os.path.realpath(cwd))
    for path in run.policy.writable:
        folder = os.path.join(cwd, path)
        _check_folder(os.path.realpath(folder))
        check_link(folder, cwd)
    for path in run.hidden:
        _check_hidden(run, cwd, path)


def _check_hidden(run: RunOptions, cwd: str, path: str) -> None:
    """Raises ``ConfigError`` for a path that does not exist or that the agent may read."""
    full = os.path.realpath(os.path.join(cwd, os.path.expanduser(path)))
    if not path.strip() or not os.path.exists(full):
        raise ConfigError(f"what is to be hidden does not exist: {path or '(empty)'}")
    more = {
        "a folder of include_directories": run.include_directories,
        "a writable folder of the policy": run.policy.writable,
    }
    shown = [("the workspace", cwd), *((what, each) for what in more for each in more[what])]
    for what, folder in shown:
        real = os.path.realpath(os.path.join(cwd, folder))
        if is_inside(full, real):
            raise ConfigError(
                f"{path} is to be hidden and is in {what}, which the agent may read: {real}",
                hint="Keep it in a folder elsewhere.",
            )
        if is_inside(real, full):
            raise ConfigError(f"{path} is to be hidden and contains {what}: {real}")


def check_link(path: str, cwd: str) -> None:
    """Raises ``ConfigError`` for a path in the workspace that leads out of it: an agent of an
    earlier run may have made the link."""
    real, root = os.path.realpath(path), os.path.realpath(cwd)
    if is_inside(os.path.normpath(path), os.path.normpath(cwd)) and not is_inside(real, root):
        raise ConfigError(
            f"{path} is a link that leads out of the workspace, to {real}",
            hint=f"If it may be written, name it as it is: {real}",
        )


def _check_folder(folder: str) -> None:
    home = _real_home()
    if is_inside(home, folder):
        what = "the root folder" if folder == "/" else "the home folder or contains it"
        raise ConfigError(
            f"{folder} is {what}: the sandbox could not hide keys and other projects",
            hint="Use the folder of one project as cwd, or sandbox='off'.",
        )
    if is_system(folder):
        raise ConfigError(
            f"{folder} belongs to the system: it can only be read in the sandbox",
            hint="Use a folder elsewhere, or sandbox='off'.",
        )


def _real_home() -> str:
    return fs.real_path(paths.user_home())


def agent_sandbox(
    prepared: PreparedRun,
    launch: Launch,
    folder: Path,
    hook: HookSocket | None = None,
    report: Report | None = None,
) -> Sandbox | None:
    """The sandbox for one start of the agent, for a session stored in ``folder``; None without one.
    Its ``hook`` can be reached inside. ``report`` gets notices about repositories."""
    if prepared.sandbox is None or prepared.run.replay is not None:
        return None  # the player of a recording is a program of corral's own
    own = tuple(str(folder / name) for name in ("home", "tmp"))
    # The user's own files that the private home links to: the agent renews its login there.
    linked = (str(paths.user_home() / name) for name in prepared.linked)
    base = _base(prepared)
    box = msgspec.structs.replace(
        base,
        cwd=launch.cwd or prepared.cwd,
        writable=(*base.writable, *own, *linked),
        readable=(*base.readable, str(folder / "images"), *_programs(prepared, launch)),
        endpoints=(*base.endpoints, *_endpoints(prepared, launch)),
    )
    if not box.network and any(name.lower().endswith("_proxy") for name in environment.variables()):
        from corral._system.sandbox.host_proxy import user_proxy

        for endpoint in box.endpoints:
            user_proxy(endpoint)  # raises ConfigError for a proxy that corral cannot use
    box = _covered(box)
    if hook is not None:
        if hook.port is None:
            raise TypeError("the hook of an agent in a sandbox needs a port")
        box = msgspec.structs.replace(
            box,
            readable=(*box.readable, hook.folder),
            endpoints=(*box.endpoints, SandboxEndpoint("127.0.0.1", hook.port)),
        )
    return Sandbox(support=prepared.sandbox, box=box, report=report)


def command_sandbox(
    prepared: PreparedRun, report: Report | None = None, *, shown: Sequence[str] = ()
) -> Sandbox | None:
    """The sandbox for commands that corral runs for the agent: those of the built-in agent's shell,
    the check of ``until``, MCP servers; None without one. ``report`` gets notices about
    repositories. ``shown``: programs and files whose folders can be read."""
    if prepared.sandbox is None:
        return None
    base = _base(prepared)
    readable = (*base.readable, *_folders_of(shown, prepared.cwd))
    box = msgspec.structs.replace(base, readable=readable)
    return Sandbox(support=prepared.sandbox, box=_covered(box), report=report)


def for_user_command(run: RunOptions, cwd: str, own: Iterable[str]) -> Sandbox | None:
    """The sandbox for a command of the user, if this machine has one. The workspace and the folders
    in ``own`` can be written. Raises as ``choose``."""
    support = choose(run, cwd)
    if support is None:
        return None
    box = _box(run, (), cwd, environment.variables().get("PATH", ""))
    box = msgspec.structs.replace(box, writable=(*box.writable, *own))
    return Sandbox(support=support, box=_covered(box))


def sandbox_report(prepared: PreparedRun) -> tuple[SandboxRow, ...]:
    """What the sandbox of a run enforces; nothing without one."""
    if prepared.sandbox is None:
        return ()
    env = prepared.environment.agent_values.values()
    reached = (
        *(endpoint for text in env for endpoint in urls(text)),
        *_hosts(prepared.agent, prepared.environment.values),
    )
    return _rows(prepared.agent, prepared.sandbox, _base(prepared), reached)


def rows_before_a_run(
    agent: AgentSpec, run: RunOptions, report: Iterable[PolicyRow], cwd: str, support: Support
) -> tuple[SandboxRow, ...]:
    """What the sandbox would enforce for a run in this folder."""
    environ = environment.variables()
    box = _box(run, report, cwd, environ.get("PATH", ""))
    return _rows(agent, support, box, _hosts(agent, environ))


def _rows(
    agent: AgentSpec, support: Support, box: Box, endpoints: Iterable[SandboxEndpoint]
) -> tuple[SandboxRow, ...]:
    home = str(paths.user_home())
    box = msgspec.structs.replace(_covered(box), endpoints=(*box.endpoints, *endpoints))
    names = {*CREDENTIALS, *_logins()} - {*agent.credential_files}
    return enforced_rows(support, box, home, [os.path.join(home, name) for name in sorted(names)])


def _hosts(agent: AgentSpec, environ: Mapping[str, str]) -> Iterator[SandboxEndpoint]:
    for host in named_hosts(agent.hosts, environ):
        yield SandboxEndpoint(host, _PORTS["https"])


def _base(prepared: PreparedRun) -> Box:
    search = prepared.environment.values.get("PATH", "")
    return _box(prepared.run, prepared.compiled.report, prepared.cwd, search)


def _box(run: RunOptions, report: Iterable[PolicyRow], cwd: str, search: str) -> Box:
    """What the policy says of folders and the network. ``search``: the folders of programs, as in
    PATH."""
    policy = run.policy
    added = [os.path.join(cwd, path) for path in run.include_directories]
    own = writable = [cwd, *(os.path.join(cwd, path) for path in policy.writable)]
    if any(row.capability == "write" and row.is_denied for row in report):
        added, writable = [*added, *writable], []
    guarded = [*writable]
    git = list(git_folders(cwd))
    if policy.is_unlimited:
        writable += git
    shown = [
        folder
        for path in search.split(os.pathsep)
        if os.path.isabs(path) and os.path.isdir(path) and not _is_below(path, own)
        for folder in install_folders(path, cwd, named=False)
    ]
    protected = (*interpreter_folders(), *paths.own_settings(cwd))
    if not policy.is_unlimited and not os.path.islink(os.path.join(cwd, ".git")):
        protected = (*protected, os.path.join(cwd, ".git"))
    return Box(
        cwd=cwd,
        writable=tuple(writable),
        guarded=tuple(guarded),
        can_change_git=policy.is_unlimited,
        readable=(*added, *git, *shown, *_interpreter(cwd)),
        read_only=tuple(_inside(protected, writable)),
        hidden=(
            *paths.own_files(),
            *(os.path.join(cwd, os.path.expanduser(path)) for path in run.hidden),
        ),
        absent=tuple(path for path in paths.own_files()[1:] if not os.path.lexists(path)),
        network=policy.network == "allow",
        # Servers of this machine that the policy names: reached directly, as programs expect.
        endpoints=tuple(
            SandboxEndpoint(rule.host, port)
            for rule in policy.host_rules()
            if rule.is_local
            for port in rule.ports
        ),
        hosts=policy.host_rules(),
    )


def _is_below(path: str, folders: Iterable[str]) -> bool:
    """Whether a folder of PATH has its name in one of these folders, which the agent writes. Then
    it is shown with them. It may be a link that an agent of an earlier run made."""
    roots = {
        root for folder in folders for root in (os.path.normpath(folder), fs.real_path(folder))
    }
    return any(is_inside(os.path.normpath(path), root) for root in roots)


def _interpreter(cwd: str) -> Iterator[str]:
    """What Python and corral need. Python may be installed in the home itself."""
    for folder in interpreter_folders():
        if _is_shared(folder, cwd):
            yield from _programs_and_libraries(folder)
        else:
            yield folder


def _inside(paths: Iterable[str], folders: Iterable[str]) -> Iterator[str]:
    """Those that exist in one of the folders."""
    real = [fs.real_path(folder) for folder in folders]
    for path in paths:
        found = fs.real_path(path)
        inside = found not in real and any(is_inside(found, folder) for folder in real)
        if inside and os.path.exists(found):
            yield found


def _covered(box: Box) -> Box:
    """The same box, without credentials in the folders that it shows."""
    home = str(paths.user_home())
    covered = credentials_to_cover(home, _logins, (*box.writable, *box.readable))
    return msgspec.structs.replace(box, hidden=(*box.hidden, *covered))


def _logins() -> list[str]:
    return [name for agent in registry.all_agents() for name in agent.credential_files]


def git_folders(cwd: str) -> Iterator[str]:
    """The repository of a work tree or a submodule, which is elsewhere. The file ``.git`` may come
    from a stranger or an agent, so the repository must name this folder too."""
    file = os.path.join(cwd, ".git")
    if not os.path.isfile(file) or os.path.islink(file):
        return
    head = _read_text(file)
    if not head.startswith("gitdir:"):
        return
    folder = os.path.realpath(os.path.join(cwd, head.removeprefix("gitdir:").strip()))
    if os.path.basename(os.path.dirname(folder)) == "worktrees":
        back = _read_text(os.path.join(folder, "gitdir")).strip()
        if back and os.path.realpath(back) == os.path.realpath(file):
            yield os.path.dirname(os.path.dirname(folder))
        return
    tree = re.search(_WORK_TREE, _read_text(os.path.join(folder, "config")))
    named = tree[1].strip() if tree else ""
    if named and os.path.realpath(os.path.join(folder, named)) == os.path.realpath(cwd):
        yield folder


def _read_text(file: str) -> str:
    """The beginning of a file; empty if it cannot be read or is not a plain file."""
    try:
        number = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    with open(number, encoding="utf-8", errors="replace") as opened:
        return opened.read(65536) if stat.S_ISREG(os.fstat(number).st_mode) else ""


def _programs(prepared: PreparedRun, launch: Launch) -> Iterator[str]:
    """Folders with what the agent executes: its own program, its helpers and its MCP servers."""
    # A persistent agent's arguments are its command. Another agent's may contain the prompt.
    known = launch.argv if prepared.agent.transport.kind == "acp" else launch.argv[:2]
    named = (prepared.program.path, *prepared.program.argv, *known)
    servers = (word for server in prepared.servers for word in server.command[:2])
    found = (*named, *prepared.helpers.values(), *launch.path_folders, *servers)
    yield from _folders_of(found, prepared.cwd)


def _folders_of(names: Iterable[str], cwd: str) -> Iterator[str]:
    """The folders to show for those of the names that are paths of existing files."""
    for path in names:
        if os.path.isabs(path) and os.path.exists(path):
            for name in dict.fromkeys((path, os.path.realpath(path))):
                yield from install_folders(name, cwd, named=True)


def install_folders(path: str, cwd: str, *, named: bool) -> Iterator[str]:
    """The folders to show for a program or a folder of programs: that of its package, or the one
    above ``bin``. Of a folder that also contains other things, such as ``~/.local``, only the
    programs and their libraries. ``named``: the run itself starts the program. Otherwise it is a
    folder of PATH, and nothing of a project is shown but its programs."""
    before, found, _ = path.partition("/node_modules/")
    if found:
        # Beside its packages, corral's own installation has Node's compile cache.
        is_ours = is_inside(before, str(paths.home()))
        yield before if is_ours else f"{before}/node_modules"
        return
    folder = path if not named or os.path.isdir(path) else os.path.dirname(path)
    above = os.path.dirname(folder)
    if _is_shared(folder, cwd):
        if folder != path:
            yield path
    elif os.path.basename(folder) != "bin":
        yield folder
    elif _is_package(above, cwd) and (named or not os.path.lexists(os.path.join(above, ".git"))):
        yield above
    else:
        yield from _programs_and_libraries(above)


def _programs_and_libraries(folder: str) -> Iterator[str]:
    yield os.path.join(folder, "bin")
    yield from filter(os.path.isdir, (os.path.join(folder, name) for name in _LIBRARIES))


def _is_package(folder: str, cwd: str) -> bool:
    """Whether a folder with ``bin`` in it belongs to one program. ``~/.local`` and ``/data`` do
    not."""
    if _is_shared(folder, cwd):
        return False
    depth = _depth_in_home(fs.real_path(folder))
    return depth != 1 or os.path.exists(os.path.join(folder, "pyvenv.cfg"))


def _is_shared(folder: str, cwd: str) -> bool:
    """Whether a folder contains more than programs: a home, what contains a home or the workspace,
    the first level of the file system, and where programs keep their data."""
    home, real = _real_home(), fs.real_path(folder)
    depth = _depth_in_home(real)
    is_high = real.count("/") == 1 if depth is None else depth < 1
    return (
        is_high
        or is_inside(home, real)
        or is_inside(fs.real_path(cwd), real)
        or real in (os.path.join(home, name) for name in _SHARED)
    )


def _depth_in_home(real: str) -> int | None:
    """How many folders it is below the home of a user; None if it is in none."""
    parts = PurePath(real).parts
    for own in (PurePath(_real_home()).parts, ("/", "root")):
        if parts[: len(own)] == own:
            return len(parts) - len(own)
    return len(parts) - 3 if parts[1:2] in (("home",), ("Users",)) else None


def _endpoints(prepared: PreparedRun, launch: Launch) -> Iterator[SandboxEndpoint]:
    """The model and the tool servers that the run was given."""
    agent = prepared.agent
    texts = [*prepared.environment.agent_values.values(), *launch.env.values()]
    texts += [server.url for server in prepared.servers if server.url]
    given = {endpoint for text in texts for endpoint in urls(text)}
    yield from sorted(given, key=lambda endpoint: (endpoint.host, endpoint.port))
    yield from _hosts(agent, prepared.environment.values)


def named_hosts(hosts: Iterable[str], environ: Mapping[str, str]) -> Iterator[str]:
    """The hosts, each ``{NAME}`` replaced by the value of that variable."""
    for host in hosts:
        if "{" not in host:
            yield host
            continue
        names = re.findall(r"\{(\w+)\}", host)
        values = {name: environ.get(name, "") for name in names}
        if all(re.fullmatch(r"[a-z0-9-]+", value) for value in values.values()):
            yield host.format(**values)


def urls(text: str) -> Iterator[SandboxEndpoint]:
    """The hosts and ports of all URLs in a text."""
    if "://" not in text:
        return
    for found in re.finditer(_URL, text):
        parts = urlsplit(found[0])
        try:
            port = parts.port or _PORTS[parts.scheme]
        except ValueError:
            continue
        if parts.hostname:
            yield SandboxEndpoint(parts.hostname, port)
