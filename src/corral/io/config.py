"""``corral.toml``: defaults for runs, read before anything else.

Looked for in ``CORRAL_CONFIG``, else in the user's configuration folder *and* in
the current directory. A file in the current directory may come with a stranger's
repository, so it may set only what can do no harm; give its path in
``CORRAL_CONFIG`` (or ``--config``) to trust it whole.

::

    [defaults]
    timeout = 900

    [agents.gemini-cli]
    program = "/opt/gemini/bin/gemini"
    model = "gemini-2.5-flash"
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any, cast

from corral import agents
from corral.errors import ConfigError, PolicyError, UnknownAgent
from corral.io import folders
from corral.policy import Policy, policy_from

HARMLESS = frozenset(
    {"model", "timeout", "idle_timeout", "startup_timeout", "grace", "max_turns", "retries"}
)
"""What a file in the current directory may set without being trusted."""


def load(agent: str) -> dict[str, Any]:
    """The defaults for one agent, out of every file that counts."""
    given = os.environ.get("CORRAL_CONFIG")
    if given is not None:
        return _options(Path(given), agent) if given else {}
    values: dict[str, Any] = {}
    user = folders.user_config()
    if user.is_file():
        values |= _options(user, agent)
    local = Path("corral.toml")
    if local.is_file():
        found = _options(local, agent)
        unsafe = sorted(set(found) - HARMLESS)
        if unsafe:
            raise ConfigError(
                f"corral.toml in the current directory may not set {', '.join(unsafe)}",
                hint="It may come with a repository. To trust it: --config corral.toml"
                " (or CORRAL_CONFIG=corral.toml).",
            )
        values |= found
    return values


def read_policy(path: Path) -> Policy:
    """A policy file (TOML). Raises ``PolicyError`` with line and column."""
    try:
        values = _toml(path)
    except ConfigError as error:
        raise PolicyError(error.message, hint=error.hint) from error
    return policy_from(values, str(path))


def _options(path: Path, agent: str) -> dict[str, Any]:
    tables = _toml(path)
    unknown = sorted(set(tables) - {"defaults", "agents"})
    if unknown:
        raise ConfigError(
            f"{path}: unknown table {unknown[0]!r}",
            hint="Known are [defaults] and [agents.NAME].",
        )
    values = {
        **_table(path, tables, "defaults"),
        **_agent_table(path, tables, agent),
    }
    if isinstance(values.get("policy"), dict):
        values["policy"] = policy_from(dict(values["policy"]), f"{path}: policy")
    return values


def _agent_table(path: Path, tables: dict[str, Any], agent: str) -> dict[str, Any]:
    """Under whichever of its names the agent stands there."""
    found: dict[str, Any] = {}
    for name in _table(path, tables, "agents"):
        try:
            known = agents.find(name).name
        except UnknownAgent as error:
            warnings.warn(f"{path}: [agents.{name!r}], ignored: {error.hint}", stacklevel=2)
            continue
        if known == agent:
            found |= _table(path, _table(path, tables, "agents"), name)
    return found


def _table(path: Path, tables: dict[str, Any], name: str) -> dict[str, Any]:
    found: object = tables.get(name, {})
    if not isinstance(found, dict):
        raise ConfigError(f"{path}: {name} must be a table of options")
    return cast("dict[str, Any]", found)


def _toml(path: Path) -> dict[str, Any]:
    import tomllib  # most runs have no such file

    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except tomllib.TOMLDecodeError as error:  # its message ends in line and column
        raise ConfigError(f"{path}: {error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8: {error}") from error
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
