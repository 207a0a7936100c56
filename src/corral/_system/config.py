"""Read ``corral.toml``: defaults for runs.

The file is ``CORRAL_CONFIG``; if that is not set, the one in the user's configuration folder *and*
the one in the current directory. A file in the current directory may come with another person's
repository, so it may set only harmless options. Name it in ``CORRAL_CONFIG`` (or ``--config``) to
trust it completely.

::

    agent = "claude"            # of runs that name none

    [defaults]
    timeout = 900

    [agents.gemini-cli]
    program = "/opt/gemini/bin/gemini"
    model = "gemini-2.5-flash"

    [agents.mine]               # your own agent, see ``corral._agents.configured``
    command = "my-agent --acp"
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import msgspec

from corral._agents import registry as agents_registry
from corral._agents.spec import AgentSpec
from corral._core.durations import seconds
from corral._core.nesting import decode_toml
from corral._option_definitions import with_trait
from corral._system import paths
from corral.errors import ConfigError, PolicyError, UnknownAgent
from corral.options import KNOWN, ProbeMode
from corral.policy import Policy, policy_from_table
from corral.values import JsonObject, as_texts, is_list, is_object

UNTRUSTED_OPTIONS = with_trait("untrusted")
PROBE_MODES: tuple[str, ...] = get_args(ProbeMode)


LARGEST = 1_048_576
"""Largest configuration or policy file, in bytes."""
_TRUST_HINT = (
    "It may come with a repository. To trust it: --config corral.toml"
    " (or CORRAL_CONFIG=corral.toml)."
)


class ConfigFile(msgspec.Struct, frozen=True):
    """A configuration file that applies here, if it exists."""

    path: str
    exists: bool
    trusted: bool
    """False: it may set only the options in ``UNTRUSTED_OPTIONS``."""


def files() -> list[ConfigFile]:
    """The configuration files in the order in which they apply; later ones win."""
    given = os.environ.get("CORRAL_CONFIG")
    if given is not None:
        return [ConfigFile(given, os.path.isfile(given), trusted=True)] if given else []
    user, local = paths.user_config(), Path("corral.toml").absolute()
    return [
        ConfigFile(str(user), user.is_file(), trusted=True),
        ConfigFile(str(local), local.is_file(), trusted=False),
    ]


def existing_files() -> list[ConfigFile]:
    return [file for file in files() if file.exists]


def agents_with_settings() -> list[str]:
    """The default agent, and every agent that a configuration file has a table for. Raises
    ``ConfigError`` for a file that cannot be read."""
    names = [find_agent(default_agent()).name]
    for file in existing_files():
        path = Path(file.path)
        for name in _table(path, read_file(path), "agents"):
            with contextlib.suppress(UnknownAgent):
                names.append(find_agent(name).name)
    return list(dict.fromkeys(names))


def default_agent(model: str | None = None) -> str:
    """The agent of a run that names none: the built-in agent for ``vendor:model``, else that of
    ``CORRAL_AGENT``, else ``agent`` of a trusted file. Without any of them, the ``model`` of
    ``[defaults]`` decides as if it was given. Raises ``ConfigError`` and ``UnknownProvider``."""
    if model is None or ":" not in agents_registry.full_name(model):
        if named := os.environ.get("CORRAL_AGENT", ""):
            return _known_agent(named, "CORRAL_AGENT")
        for path in reversed(_trusted()):
            tables = read_file(path)
            if named := _default_agent(path, tables):
                return _known_agent(named, f"{path}: agent")
            default = _table(path, tables, "defaults").get("model")
            if model is None and isinstance(default, str):
                model = default
    return agents_registry.default(model)


def _known_agent(name: str, source: str) -> str:
    """The name, if there is such an agent; the error names where it is written."""
    try:
        find_agent(name)
    except UnknownAgent as error:
        raise UnknownAgent(f"{source}: {error.message}", hint=error.hint) from error
    return name


def _default_agent(path: Path, tables: JsonObject) -> str:
    named = tables.get("agent", "")
    if not isinstance(named, str):
        raise ConfigError(
            f"{path}: agent must be the name of an agent", hint='Write agent = "claude".'
        )
    return named


def load(agent: str) -> dict[str, object]:
    """The defaults for one agent, from all files that apply, and ``CORRAL_PROBE``."""
    values: dict[str, object] = {}
    for path in _trusted():
        values |= _options(path, agent)
    if probe := os.environ.get("CORRAL_PROBE"):
        if probe not in PROBE_MODES:
            modes = ", ".join(PROBE_MODES)
            raise ConfigError(f"CORRAL_PROBE must be one of {modes}, got: {probe!r}")
        values["probe"] = probe
    local = Path("corral.toml")
    if os.environ.get("CORRAL_CONFIG") is not None or not local.is_file():
        return values
    for name, _ in _declared(local):
        raise ConfigError(
            f"corral.toml in the current directory may not declare the agent {name!r}",
            hint=_TRUST_HINT,
        )
    found = _options(local, agent)
    if read_file(local).get("agent") is not None:
        found["agent"] = None
    # A name that is no option does no harm; a warning corrects it.
    unsafe = sorted(set(found) & {"agent", *KNOWN} - UNTRUSTED_OPTIONS)
    if unsafe:
        raise ConfigError(
            f"corral.toml in the current directory may not set {', '.join(unsafe)}",
            hint=_TRUST_HINT,
        )
    raised = [name for name in found if name in values and _is_more(found[name], values[name])]
    if raised:
        raise ConfigError(
            f"corral.toml in the current directory may not raise {', '.join(sorted(raised))}"
            f" above that of {paths.user_config()}",
            hint=_TRUST_HINT,
        )
    return values | found


def _is_more(given: object, own: object) -> bool:
    """Whether a limit is higher than the user's own. What is no number is reported later."""
    with contextlib.suppress(ValueError, TypeError):
        if isinstance(given, str | int | float) and isinstance(own, str | int | float):
            return seconds(given) > seconds(own)
    return False


def passed_env() -> tuple[str, ...]:
    """Variables that trusted files pass on to every agent and command (``pass_env`` of their
    ``[defaults]``). Raises ``ConfigError``."""
    names: list[str] = []
    for path in _trusted():
        found = _table(path, read_file(path), "defaults").get("pass_env", [])
        texts = as_texts(found)
        if not is_list(found) or len(texts) < len(found):
            raise ConfigError(f"{path}: pass_env must be a list of names")
        names += texts
    return tuple(names)


def read_policy(path: Path) -> Policy:
    """A policy file (TOML). Raises ``PolicyError`` with line and column."""
    try:
        values = read_file(path)
    except ConfigError as error:
        raise PolicyError(error.message, hint=error.hint) from error
    return policy_from_table({**values}, str(path))


def _options(path: Path, agent: str) -> dict[str, object]:
    tables = read_file(path)
    _default_agent(path, tables)
    if "agent" in _table(path, tables, "defaults"):
        raise ConfigError(
            f"{path}: agent is not in [defaults]", hint="Write it above the first table."
        )
    unknown = sorted(set(tables) - {"agent", "defaults", "agents"})
    if unknown:
        from difflib import get_close_matches

        names = {"agent": "agent", "defaults": "[defaults]", "agents": "[agents]"}
        near = get_close_matches(unknown[0], names, 1)
        raise ConfigError(
            f"{path}: unknown {'table' if is_object(tables[unknown[0]]) else 'key'} {unknown[0]!r}",
            hint=(f"Did you mean {names[near[0]]}? " if near else "")
            + "Known are [defaults] and [agents.NAME], and agent above them.",
        )
    values: dict[str, object] = {
        **_table(path, tables, "defaults"),
        **_agent_table(path, tables, agent),
    }
    if is_object(policy := values.get("policy")):
        values["policy"] = policy_from_table({**policy}, f"{path}: policy")
    return values


def find_agent(name: str) -> AgentSpec:
    """Find an agent by name: one that a trusted file declares, ``acp:ID`` of a registry, or a known
    one. Raises ``UnknownAgent`` and ``ConfigError``."""
    if isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        for path in _trusted():
            table = _table(path, _table(path, read_file(path), "agents"), name)
            if "command" in table:
                return _declared_agent(name, table, path)
        if name.startswith("acp:"):
            return _from_acp_registry(name.removeprefix("acp:"))
    agent = agents_registry.find(name)
    if agent.program is not None:  # a command with a path
        from corral._system import programs

        if programs.is_namesake(agent):
            return agents_registry.from_command(name)
    return agent


def all_agents() -> Iterator[AgentSpec]:
    """The agents that trusted files declare, then all known ones."""
    for path in _trusted():
        for name, table in _declared(path):
            yield _declared_agent(name, table, path)
    yield from agents_registry.all_agents()


def _trusted() -> list[Path]:
    """Files that may name a command: never the one in the current directory."""
    given = os.environ.get("CORRAL_CONFIG")
    if given is not None:
        return [Path(given)] if given else []
    user = paths.user_config()
    return [user] if user.is_file() else []


def _declared(path: Path) -> Iterator[tuple[str, JsonObject]]:
    """The tables of a file that declare an agent, by its name."""
    tables = _table(path, read_file(path), "agents")
    for name in tables:
        table = _table(path, tables, name)
        if "command" in table:
            yield name, table


def _declared_agent(name: str, table: JsonObject, path: Path) -> AgentSpec:
    try:
        known = agents_registry.find(name)
    except (UnknownAgent, ConfigError):
        known = None
    if known is not None:
        raise ConfigError(
            f"{path}: [agents.{name}] has a command, but this is the name of a known agent",
            hint="Choose another name. To use another program for a known agent, set program.",
        )
    return agents_registry.from_table(name, table, str(path))


def _from_acp_registry(id: str) -> AgentSpec:
    """Find an agent in the registry of the Agent Client Protocol, a file on this machine."""
    given = os.environ.get("CORRAL_ACP_REGISTRY")
    path = Path(given) if given else paths.user_config().with_name("acp-registry.json")
    try:
        registry = path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"there is no registry of agents at {path}: {error.strerror}",
            hint="Save the Agent Client Protocol's registry.json there, or set"
            " CORRAL_ACP_REGISTRY to where it is.",
        ) from error
    return agents_registry.from_registry(registry, id, str(path))


def _agent_table(path: Path, tables: JsonObject, agent: str) -> dict[str, object]:
    """The table of the agent, under any of its names."""
    found: dict[str, object] = {}
    for name in _table(path, tables, "agents"):
        table = _table(path, _table(path, tables, "agents"), name)
        if "command" in table:
            if name == agent:
                found |= agents_registry.options_of(table)
            continue
        try:
            known = agents_registry.find(name).name
        except UnknownAgent as error:
            warnings.warn(f"{path}: [agents.{name!r}], ignored: {error.hint}", stacklevel=2)
            continue
        if known == agent:
            found |= table
    return found


def _table(path: Path, tables: JsonObject, name: str) -> JsonObject:
    found = tables.get(name, {})
    if not is_object(found):
        raise ConfigError(f"{path}: {name} must be a table of options")
    return found


def read_file(path: Path) -> JsonObject:
    import tomllib  # most runs have no such file

    try:
        with path.open("rb") as file:
            data = file.read(LARGEST + 1)
        message = f"read {path}"
        import logging  # commands that read no file start without it

        logging.getLogger("corral.config").debug("%s", message)
        if len(data) > LARGEST:
            raise ConfigError(f"{path}: larger than {LARGEST:,} bytes: not a configuration file")
        return decode_toml(data.decode().replace("\r\n", "\n"))
    except tomllib.TOMLDecodeError as error:  # its message ends in line and column
        raise ConfigError(f"{path}: {error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8: {error}") from error
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
