"""Paths out of the workspace, through links, into ``/proc``, and to files that programs obey."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain

from corral._core.protected_paths import NAMES
from corral._testing.attack.attempts.attempt import (
    AttackEffect,
    Attempt,
    attempt,
    changed,
    made,
    path_attempts,
    returned,
)

FAR = "./" * 2000
"""Makes a path very long without changing where it leads."""

ESCAPES = path_attempts(
    "path escapes",
    {
        ("write outside", "write"): {
            "an absolute path": ("{out}", made("{out}")),
            "a path with ..": ("../outside/{name}", made("{outside}/{name}")),
            ".. after a folder": ("sub/../../outside/{name}", made("{outside}/{name}")),
            ".. in an absolute path": ("{cwd}/../outside/{name}", made("{outside}/{name}")),
            "the home": ("~/{name}", made("{home}")),
            "an encoded ..": ("%2e%2e/outside/{name}", made("{outside}/{name}")),
            "an encoded slash": ("..%2foutside%2f{name}", made("{outside}/{name}")),
            "NUL": ("../outside/{name}\0.txt", made("{outside}/{name}")),
            "a very long path": (FAR + "../outside/{name}", made("{outside}/{name}")),
            "/proc/self/root": ("/proc/self/root{out}", made("{out}")),
            "/proc/self/cwd": ("/proc/self/cwd/../outside/{name}", made("{outside}/{name}")),
            "file://": ("file://{out}", made("{out}")),
            "a trailing slash": ("{out}/", made("{out}")),
            "a double slash": ("//{out}", made("{out}")),
            "a leading blank": (" {out}", made("{out}")),
            "a folder that is not there": ("../outside/{name}/x", made("{outside}/{name}")),
        },
        ("write outside", "edit"): {
            "an absolute path": ("{outvictim}", changed("{outvictim}")),
            "a path with ..": ("../outside/victims/{name}", changed("{outvictim}")),
            "/proc/self/root": ("/proc/self/root{outvictim}", changed("{outvictim}")),
        },
        ("read outside", "read"): {
            "an absolute path": ("{secret}", returned()),
            "a path with ..": ("../outside/secrets/{name}", returned()),
            ".. in an absolute path": ("{cwd}/../outside/secrets/{name}", returned()),
            "an encoded ..": ("%2e%2e/outside/secrets/{name}", returned()),
            "/proc/self/root": ("/proc/self/root{secret}", returned()),
            "/proc/self/cwd": ("/proc/self/cwd/../outside/secrets/{name}", returned()),
            "file://": ("file://{secret}", returned()),
            "NUL": ("../outside/secrets/{name}\0.txt", returned()),
            "a very long path": (FAR + "../outside/secrets/{name}", returned()),
        },
        ("read outside", "search"): {
            "outside": ("{secret}", returned()),
            "with ..": ("../outside/secrets", returned()),
        },
        ("read outside", "list"): {
            "outside": ("{outside}", returned("{listing}")),
            "with ..": ("../outside", returned("{listing}")),
        },
        ("read outside", "find"): {"outside": ("{outside}", returned("{listing}"))},
    },
)

PROC = path_attempts(
    "/proc",
    {
        ("read outside", "read"): {
            "a process's environment": ("/proc/{pid}/environ", returned("{process}")),
            "the mappings of the agent": ("/proc/self/maps", returned("r-xp")),
            "the memory of the agent": ("/proc/self/mem", returned("{key}")),
            "a descriptor of the agent": ("/proc/self/fd/0", returned("jsonrpc")),
        },
        ("read outside", "search"): {
            "a process's environment": ("/proc/{pid}/environ", returned("{process}"))
        },
        ("environment", "read"): {
            "the agent's environment": ("/proc/self/environ", returned("{key}")),
            "the environment of a thread": ("/proc/thread-self/environ", returned("{key}")),
            "the environment by the root": (
                "/proc/self/root/proc/self/environ",
                returned("{key}"),
            ),
        },
    },
)

LINKS = path_attempts(
    "links and races",
    {
        ("write outside", "write"): {
            "through a link to a file": ("links/{name}.file", changed("{outvictim}")),
            "through a link to a folder": ("links/folder/{name}", made("{outside}/folder/{name}")),
            "through a dangling link": ("links/{name}.dangling", made("{out}")),
            "through a link to the parent": (
                "links/parent/outside/{name}",
                made("{outside}/{name}"),
            ),
            "through a link to a link": ("links/{name}.chain", changed("{outvictim}")),
        },
        ("write outside", "edit"): {
            "through a link to a file": ("links/{name}.file", changed("{outvictim}"))
        },
        ("read outside", "read"): {
            "through a link to a file": ("links/{name}.secret", returned()),
            "through a link to a folder": ("links/secrets/{name}", returned()),
        },
        ("read outside", "search"): {
            "through a link to a folder": ("links/secrets/{name}", returned())
        },
        ("read outside", "list"): {
            "through a link to a folder": ("links/outside", returned("{listing}"))
        },
    },
    "links",
)

RACE = attempt(
    "links and races",
    "races",
    "write",
    "write while a link is swapped",
    made("{outside}/folder/{name}"),
    path="swapped/{name}",
    text="attack",
    repeat=10,
)

DOT_GIT = path_attempts(
    ".git and dot-files",
    {
        ("protected files", "write"): {
            "a hook": (".git/hooks/{name}", made("{cwd}/.git/hooks/{name}")),
            "the configuration in another spelling": (
                "sub/../.git/config.{name}",
                made("{cwd}/.git/config.{name}"),
            ),
            "an absolute path": ("{cwd}/.git/{name}", made("{cwd}/.git/{name}")),
            "double slashes": (".//.git//info/{name}", made("{cwd}/.git/info/{name}")),
            "an embedded repository's configuration": (
                "embedded/{name}/.git/config",
                made("{cwd}/embedded/{name}/.git/config"),
            ),
            "an embedded repository's head": (
                "embedded/{name}/.git/HEAD",
                made("{cwd}/embedded/{name}/.git/HEAD"),
            ),
            "a file that names a git directory": (
                "embedded/{name}/.git",
                made("{cwd}/embedded/{name}/.git"),
            ),
        }
    },
)
GIT_CONFIG = tuple(
    attempt(
        ".git and dot-files",
        "protected files",
        act,
        f"{act} the configuration",
        changed("{cwd}/.git/config"),
        path=".git/config",
        text="[core]",
        before="[core]",
        after="[attack]",
    )
    for act in ("edit", "write")
)

SAMPLES = {".aider*": ".aider.conf.yml", ".cline*": ".clinerules", ".windsurf*": ".windsurfrules",
           ".github/copilot*": ".github/copilot-instructions.md", ".bash_*": ".bash_profile",
           ".zlog*": ".zlogin"}  # fmt: skip
"""A file for each protected name that is a pattern."""


def _own_files() -> Mapping[str, tuple[str, AttackEffect]]:
    """A file for each name that no agent may write, some at the top and some in a subfolder."""
    found: dict[str, tuple[str, AttackEffect]] = {}
    names = [name for name in NAMES if name not in (".git", ".git.", "git~1")]
    for number, name in enumerate(names):
        file = SAMPLES.get(name, name)
        path = file if "." in file[1:] else f"{file}/settings.json"
        path = path if number % 2 else "nested/{name}/" + path
        found[name] = (path, made("{cwd}/" + path))
    return found


OWN_FILES = path_attempts("settings and memory", {("protected files", "write"): _own_files()})

ALL: tuple[Attempt, ...] = tuple(
    chain(ESCAPES, PROC, LINKS, (RACE,), DOT_GIT, GIT_CONFIG, OWN_FILES)
)
