"""Start git. Every git process of corral is started here.

Theory of operation
-------------------
An agent may have written any file of the workspace, the ``.git`` folder of the user's repository
included. So git is never allowed to find a repository by itself, and never reads a configuration
file that an agent could have written:

- ``--git-dir`` is always a folder of corral's own (see ``corral._system.git.stub``), outside every
  folder that an agent may write. Its ``config`` and ``info/attributes`` are ours. git's current
  folder is that folder too.
- Neither the user's nor the system's configuration is read, except for ``fetch`` and ``push``,
  which log in as the user does, and for reading the user's name and ignore file.
- No transport is allowed, except for ``fetch`` and ``push``. Remote helpers such as ``ext::`` are
  never allowed.
- The environment is an allow-list. ``PATH`` has absolute folders only.
- Time and output are limited. A call that exceeds its limits is killed with its children.

git is never asked to compare or add files of a work tree: that would read attribute and ignore
files, and start git in embedded repositories. Files are listed, read and written by
``corral._system.git.scan`` and ``tree``.

Who calls: the other modules of this package, from any thread. ``call`` blocks. Several calls may
run at once; ``locked`` is for work that only one process of the machine may do at a time.

States of a call: started (its own session, three pipes) -> exchanging input and output -> ended.
It returns git's exit code, output and a short error text without passwords, or it raises
``StorageFailed``. When it has returned or raised, the git process is dead and waited for, and its
pipes are closed.

Crashes: if corral is killed, running git processes are not killed with it: they have their own
session. They inherit the lock of ``locked``, so no other process enters before they have ended. git
writes references and objects atomically.
"""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import signal
import subprocess
import time
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO

import msgspec

from corral._system import fs
from corral.errors import ConfigError, StorageFailed

TIMEOUT = 300.0
"""Seconds for one call of git."""
OUTPUT_LIMIT = 256 * 1024 * 1024
"""Bytes of output that one call may return."""
_ERRORS_LIMIT = 64 * 1024
_CHUNK = 256 * 1024

NETWORK = "file:git:http:https:ssh"
"""Protocols for ``fetch`` and ``push``. Never ``ext`` or another remote helper."""

_OPTIONS = {
    "core.hooksPath": "/dev/null",
    "core.fsmonitor": "false",
    "core.attributesFile": "/dev/null",
    "core.excludesFile": "/dev/null",
    "core.pager": "cat",
    "core.untrackedCache": "false",
    "commit.gpgSign": "false",
    "fetch.recurseSubmodules": "false",
    "gc.auto": "0",
    "log.showSignature": "false",
    "maintenance.auto": "false",
    "protocol.ext.allow": "never",
    "push.gpgSign": "false",
    "push.recurseSubmodules": "no",
    "submodule.recurse": "false",
}
_BASE_ENV = ("TMPDIR", "SYSTEMROOT", "TZ")
_LOGIN_ENV = (
    *("HOME", "USER", "LOGNAME", "LANG", "XDG_*", "DBUS_SESSION_BUS_ADDRESS", "DISPLAY"),
    *("WAYLAND_DISPLAY", "SSH_*", "SSL_CERT_FILE", "SSL_CERT_DIR", "CURL_CA_BUNDLE"),
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"),
    *("http_proxy", "https_proxy", "all_proxy", "no_proxy"),
    *("GIT_SSH", "GIT_SSH_*", "GIT_SSL_*", "GIT_HTTP_*", "GIT_ASKPASS"),
    *("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM"),
    *("GH_TOKEN", "GITHUB_TOKEN", "GITLAB_TOKEN", "AWS_*", "GCM_*", "KRB5*", "GNUPGHOME"),
)
"""What ssh and the user's credential helpers need to log in."""
_ALWAYS = {
    "GIT_ADVICE": "0",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_EDITOR": "false",
    "GIT_LITERAL_PATHSPECS": "1",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_PAGER": "cat",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",  # corral reads the messages
}
_NO_USER = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null"}
# Kept as text: re compiles them when first needed.
_URL_LOGIN = r"(?<=://)[^/\s]+@"
_SCP_LOGIN = r"(?<![^\s'\"])[^\s/'\"@:]*:[^\s/'\"]*@"

_locks: ContextVar[tuple[int, ...]] = ContextVar("_locks", default=())


class GitOutput(msgspec.Struct, frozen=True, kw_only=True):
    """How a call of git ended."""

    code: int
    out: bytes
    """Its standard output. Cut where ``is_cut``."""
    errors: str
    """The first and the last error line, without passwords."""
    is_cut: bool = False

    @property
    def text(self) -> str:
        """The output. Bytes that are not UTF-8 become lone surrogates."""
        return self.out.decode("utf-8", "surrogateescape")


class GitLimits(msgspec.Struct, frozen=True, kw_only=True):
    seconds: float = TIMEOUT
    output: int = OUTPUT_LIMIT


class GitAccess(msgspec.Struct, frozen=True, kw_only=True):
    """What a call may use besides its git folder."""

    protocols: str = ""
    """Separated by colons. Empty: git may contact nothing."""
    user_config: bool = False
    """Read the user's and the system's configuration, and pass what is needed to log in."""


LOCAL = GitAccess()
REMOTE = GitAccess(protocols=NETWORK, user_config=True)


@contextmanager
def locked(gate: Path) -> Generator[None]:
    """Hold a lock that all processes of this machine respect. git processes that are started
    meanwhile hold it too: if corral is killed, no other process enters before they have ended."""
    with fs.exclusive_lock(gate) as fd:
        token = _locks.set((*_locks.get(), fd))
        try:
            yield
        finally:
            _locks.reset(token)


def is_installed() -> bool:
    return program() is not None


def require(what: str) -> None:
    """Raise ``ConfigError`` if git is not installed."""
    if not is_installed():
        raise ConfigError(f"{what} needs git, which is not installed")


def redact(text: str) -> str:
    """Remove names and passwords from URLs and from ``user:password@host:path``."""
    return re.sub(_SCP_LOGIN, "…@", re.sub(_URL_LOGIN, "…@", text))


def call(
    git_dir: Path,
    *words: str,
    access: GitAccess = LOCAL,
    limits: GitLimits | None = None,
    env: Mapping[str, str] | None = None,
    feed: Iterable[bytes] = (),
    output: IO[bytes] | None = None,
) -> GitOutput:
    """Run one git command in a git folder of corral's own. Blocks.

    ``env`` adds variables (an index, a work tree, an identity). ``feed`` is written to git's
    standard input. ``output`` receives the standard output in place of ``GitOutput.out``. Raises
    ``StorageFailed`` if git cannot be started, does not end in time, or exceeds the output limit
    of an ``output`` file.
    """
    found = program()
    if found is None:
        raise StorageFailed("git is not installed")
    options = [word for name, value in _OPTIONS.items() for word in ("-c", f"{name}={value}")]
    command = [found, "--no-pager", *options, f"--git-dir={git_dir}", *words]
    names = (*_BASE_ENV, *_LOGIN_ENV) if access.user_config else _BASE_ENV
    passed = {
        name: value
        for name, value in os.environ.items()
        if any(fnmatchcase(name, wanted) for wanted in names)
    }
    passed |= {**_ALWAYS, **({} if access.user_config else _NO_USER)}
    passed |= {"PATH": _path(), "GIT_ALLOW_PROTOCOL": access.protocols}
    try:
        process = subprocess.Popen(
            command,
            cwd=git_dir,
            env={**passed, **(env or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # Not where it logs in: a helper that stays in the background would keep the lock.
            pass_fds=() if access.user_config else _locks.get(),
            start_new_session=True,  # without a terminal ssh cannot ask for a password
        )
    except OSError as error:
        raise StorageFailed(f"git {_summary_of(words)}: {error}") from error
    try:
        out, errors, is_cut = _exchange(process, iter(feed), output, limits or GitLimits())
    except (TimeoutError, subprocess.TimeoutExpired) as error:
        raise StorageFailed(f"git {_summary_of(words)}: it did not end in time") from error
    finally:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
    if is_cut and output is not None:
        raise StorageFailed(f"git {_summary_of(words)}: too much output")
    # The first line, and the last one that says why git ended.
    lines = errors.decode("utf-8", "replace").strip().splitlines()
    fatal = [line for line in lines if line.startswith("fatal: ")]
    summary = redact("; ".join(dict.fromkeys([*lines[:1], *(fatal or lines)[-1:]])))
    return GitOutput(code=process.returncode, out=out, errors=summary, is_cut=is_cut)


def _exchange(
    process: subprocess.Popen[bytes],
    feed: Iterator[bytes],
    output: IO[bytes] | None,
    limits: GitLimits,
) -> tuple[bytes, bytes, bool]:
    """Write the input and read both outputs until git ends, or until its output is too long: then
    the last value is True. Raises ``TimeoutError`` and ``TimeoutExpired``."""
    if process.stdin is None or process.stdout is None or process.stderr is None:
        raise RuntimeError("git was started without pipes")
    ends = time.monotonic() + limits.seconds
    pending: memoryview | None = None
    out, errors, size = bytearray(), bytearray(), 0
    with selectors.DefaultSelector() as selector:
        for pipe in (process.stdin, process.stdout, process.stderr):
            os.set_blocking(pipe.fileno(), False)
            is_input = pipe is process.stdin
            selector.register(pipe, selectors.EVENT_WRITE if is_input else selectors.EVENT_READ)
        while selector.get_map() and size <= limits.output:
            if (left := ends - time.monotonic()) <= 0:
                raise TimeoutError
            for key, _ in selector.select(left):
                if key.fileobj is process.stdin:
                    pending = _write_part(key.fd, pending, feed)
                    if pending is None:
                        selector.unregister(process.stdin)
                        process.stdin.close()
                    continue
                data = os.read(key.fd, _CHUNK)
                if not data:
                    selector.unregister(key.fileobj)
                elif key.fileobj is process.stderr:
                    errors += data
                    if len(errors) > _ERRORS_LIMIT:
                        del errors[_ERRORS_LIMIT // 2 : -_ERRORS_LIMIT // 4]
                else:
                    size += len(data)
                    (out.extend if output is None else output.write)(data)
    is_cut = size > limits.output
    if not is_cut:
        process.wait(max(0.0, ends - time.monotonic()))
    return bytes(out), bytes(errors), is_cut


def _write_part(fd: int, pending: memoryview | None, feed: Iterator[bytes]) -> memoryview | None:
    """Write ``pending``, or the next part of the input. Returns what is left of it, None at the
    end."""
    part = pending if pending else next(feed, None)
    if part is None:
        return None
    left = memoryview(part)
    try:
        return left[os.write(fd, left) :]
    except BlockingIOError:
        return left
    except BrokenPipeError:  # git has ended; its exit code says why
        return None


def program() -> str | None:
    """The path of git, from absolute folders of PATH only: a workspace may hold a ``git``."""
    return fs.find_program("git", _path())


def _path() -> str:
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return os.pathsep.join(folder for folder in folders if os.path.isabs(folder))


def _summary_of(words: Iterable[str]) -> str:
    return redact(" ".join(word for word in words if not word.startswith("-")))[:80]
