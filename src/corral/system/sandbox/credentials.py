"""Where programs keep logins, keys and passwords in the user's home.

The sandbox shows nothing of the home but tool chains and what the caller names. Should one of these
paths be in a shown folder all the same, it is covered.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from corral.system.sandbox.box import is_inside

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


def to_cover(home: str, names: Iterable[str], shown: Iterable[str]) -> Iterator[str]:
    """The paths of credentials that are in a shown folder. One that is itself shown, or contains
    what is shown, was named by the caller."""
    folders = [os.path.realpath(folder) for folder in shown]
    for name in dict.fromkeys((*NAMES, *names)):
        path = os.path.realpath(os.path.join(home, name))
        if any(is_inside(folder, path) for folder in folders) or not os.path.exists(path):
            continue
        if any(is_inside(path, folder) for folder in folders):
            yield path
