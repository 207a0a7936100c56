"""Where programs keep logins, keys and passwords in the user's home.

The sandbox shows nothing of the home but tool chains and what the caller names. Should one of these
paths be in a shown folder all the same, it is covered.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator

from corral.system import fs, paths
from corral.system.sandbox.box import TOOLCHAINS, is_inside

NAMES = (
    ".ssh",
    ".gnupg",
    ".pki",
    ".password-store",
    ".netrc",
    ".pgpass",
    ".my.cnf",
    ".git-credentials",
    ".vault-token",
    ".aws",
    ".azure",
    ".oci",
    ".kube",
    ".docker",
    ".terraform.d",
    ".npmrc",
    ".yarnrc.yml",
    ".pypirc",
    ".cargo/credentials",
    ".cargo/credentials.toml",
    ".gem/credentials",
    ".m2/settings.xml",
    ".gradle/gradle.properties",
    ".config/gcloud",
    ".config/gh",
    ".config/git/credentials",
    ".config/glab-cli",
    ".config/hub",
    ".config/op",
    ".config/pip",
    ".config/rclone",
    ".config/containers",
    ".local/share/keyrings",
    ".local/share/kwalletd",
    ".local/share/uv/credentials",
    ".local/share/containers",
    ".mozilla",
    ".thunderbird",
    ".config/google-chrome",
    ".config/chromium",
    ".config/BraveSoftware",
    ".config/microsoft-edge",
    ".config/vivaldi",
    "Library/Keychains",
    "Library/Cookies",
    "Library/Application Support/Google/Chrome",
    "Library/Application Support/Firefox",
)
"""Folders and files. Those of agents are in their specs."""
_LIBRARIES = (".local/lib", ".local/lib64", ".local/libexec")
"""Libraries of programs, without credentials."""


def to_cover(home: str, logins: Callable[[], Iterable[str]], shown: Iterable[str]) -> Iterator[str]:
    """The paths of credentials that are in a shown folder. One that is itself shown, or contains
    what is shown, was named by the caller. ``logins``: the files of agents. It is called only if
    one of them can be in a shown folder."""
    folders = [fs.real_path(folder) for folder in dict.fromkeys(shown)]
    may_have = _may_have_logins(home, filter(os.path.isdir, folders))
    names = [*NAMES, *(logins() if may_have else ())]
    for name in dict.fromkeys(names):
        file = os.path.join(home, name)
        if os.path.exists(file):
            path = fs.real_path(file)
            is_named = any(is_inside(folder, path) for folder in folders)
            if not is_named and any(is_inside(path, folder) for folder in folders):
                yield path


def _may_have_logins(home: str, folders: Iterable[str]) -> bool:
    """Whether a folder is in a hidden entry of the home, or contains one: agents keep their logins
    there."""
    try:
        entries = _hidden_entries(home)
    except OSError:
        return True
    tools = (os.path.join(home, name) for name in (*TOOLCHAINS, *_LIBRARIES))
    without = [fs.real_path(path) for path in (str(paths.home()), *filter(os.path.exists, tools))]
    others = [path for path in folders if not any(is_inside(path, each) for each in without)]
    pairs = ((path, entry) for path in others for entry in entries)
    return any(is_inside(path, entry) or is_inside(entry, path) for path, entry in pairs)


def _hidden_entries(home: str) -> list[str]:
    """Without links."""
    real = os.path.realpath(home)
    with os.scandir(real) as found:
        entries = [entry for entry in found if entry.name.startswith(".")]
    return [os.path.realpath(each.path) if each.is_symlink() else each.path for each in entries]
