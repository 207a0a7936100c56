"""What the child process may see: an allow-list, never all we have.

A base set that programs need to run at all, the agent's own credential family,
and what the caller names. ``DATABASE_URL`` and other vendors' keys stay home.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

import msgspec

from corral.agents.profile import Agent
from corral.options import Run

BASE = (
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LANGUAGE",
    "LC_*",
    "TZ",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "NODE_EXTRA_CA_CERTS",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "no_proxy",
    # Windows cannot start a program without these.
    "SYSTEMROOT",
    "SYSTEMDRIVE",
    "WINDIR",
    "COMSPEC",
    "PATHEXT",
    "USERPROFILE",
    "APPDATA",
    "LOCALAPPDATA",
    "PROGRAMFILES",
    "PROGRAMDATA",
    "NUMBER_OF_PROCESSORS",
)

SHORTEST_SECRET = 8
"""Striking out a shorter value would tear ordinary text apart."""

_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL|AUTH", re.IGNORECASE)


class Environment(msgspec.Struct, frozen=True):
    values: dict[str, str]
    family: dict[str, str]
    """Of these, the agent's own."""
    secrets: dict[str, str]
    """Name → value of what must be struck out wherever it appears."""


def gather(agent: Agent, run: Run, environ: Mapping[str, str] | None = None) -> Environment:
    """The child's environment out of ours."""
    ours = os.environ if environ is None else environ
    family = _chosen(ours, agent.env_family)
    passed = {name: ours[name] for name in run.pass_env if name in ours}
    values = {**_chosen(ours, BASE), **family, **passed, **run.env}
    secrets = {name: family[name] for name in agent.secret_env if name in family}
    for name, value in {**passed, **run.env}.items():
        if _SECRET_NAME.search(name):
            secrets[name] = value
    for server in run.mcp_servers:
        for name, value in {**server.env, **server.headers}.items():
            secrets[f"{server.name}:{name}"] = value.removeprefix("Bearer ")
    long = {name: value for name, value in secrets.items() if len(value) >= SHORTEST_SECRET}
    return Environment(values, {**family, **_chosen(run.env, agent.env_family)}, long)


def named_secrets(values: Mapping[str, str]) -> dict[str, str]:
    """Those that their names tell to be secrets. A file that holds one is none itself."""
    return {
        name: value
        for name, value in values.items()
        if _SECRET_NAME.search(name)
        and len(value) >= SHORTEST_SECRET
        and not (os.path.isabs(value) and os.path.exists(value))
    }


def _chosen(ours: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in names:
        if "*" in name:
            found.update({key: ours[key] for key in ours if fnmatchcase(key, name)})
        elif name in ours:
            found[name] = ours[name]
    return found


class Eraser:
    """Strikes the known secrets out of bytes and text, naming what stood there. They are known
    as JSON writes them too: what is cleaned is mostly JSON that nobody has taken apart yet."""

    def __init__(self, secrets: Mapping[str, str]) -> None:
        marks: dict[bytes, bytes] = {}
        for name, value in secrets.items():
            escaped = (json.dumps(value, ensure_ascii=not plain)[1:-1] for plain in (True, False))
            for form in (value, *escaped):
                marks[form.encode("utf-8", "surrogateescape")] = f"[{name} struck out]".encode()
        self._pairs = sorted(marks.items(), key=lambda pair: -len(pair[0]))
        self.values = tuple(value.decode("utf-8", "replace") for value, _ in self._pairs)
        """What is redacted, in each of its written forms; the longest first."""

    def clean(self, data: bytes) -> bytes:
        for value, mark in self._pairs:
            if value in data:
                data = data.replace(value, mark)
        return data

    def clean_text(self, text: str) -> str:
        return self.clean(text.encode("utf-8", "replace")).decode() if self._pairs else text
