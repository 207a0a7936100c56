"""Task folders of harbor (schema 1.4): ``task.toml``, ``instruction.md``, ``tests/test.sh``.

A task whose environment is an image or is built by a Dockerfile or compose file cannot run here: it
is reported as skipped. One without runs in a private folder with the files of ``environment/``. In
the sandbox of its verifier ``/tests`` and ``/logs`` exist, and ``workdir`` is another name of the
folder. In the agent's prompt that name is replaced by the folder's real path: the agent's own
sandbox does not have it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path

from corral.comparison.task import CompareTask
from corral.errors import ConfigError
from corral.values import JsonObject, as_object, as_text, number_or_none

IMAGE_FILES = (
    "Dockerfile",
    "docker-compose.yaml",
    "docker-compose.yml",
    "compose.yaml",
    "compose.yml",
)
DEFAULT_TIMEOUT = 600.0
"""Seconds of harbor's verifier, if the task has none."""


def read_task(path: Path) -> CompareTask | None:
    """The task in a folder; None if it is no task of harbor. Raises ``ConfigError``."""
    config_file, instruction = path / "task.toml", path / "instruction.md"
    if not config_file.is_file():
        return None
    config = _read_toml(config_file)
    environment = as_object(config.get("environment"))
    verifier = as_object(config.get("verifier"))
    try:
        prompt = instruction.read_text("utf-8") if instruction.is_file() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{instruction} cannot be read: {error}") from error
    files = path / "environment"
    return CompareTask(
        id=path.name,
        prompt=prompt or "-",
        tests=str(path / "tests") if (path / "tests").is_dir() else "",
        folder=str(files) if files.is_dir() else "",
        is_empty=not files.is_dir(),
        timeout=_limit(config_file, "agent", as_object(config.get("agent"))),
        verify_timeout=_limit(config_file, "verifier", verifier) or DEFAULT_TIMEOUT,
        layout="harbor",
        workdir=as_text(environment.get("workdir")).rstrip("/"),
        network=_wants_network(verifier, environment),
        skipped=_why_not(path, config, environment, prompt),
    )


def _read_toml(path: Path) -> JsonObject:
    try:
        return as_object(tomllib.loads(path.read_bytes().decode()))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error


def _limit(path: Path, section: str, table: JsonObject) -> float | None:
    value = table.get("timeout_sec")
    number = number_or_none(value)
    if value is not None and (number is None or not number > 0):
        raise ConfigError(f"{path}: [{section}] timeout_sec must be a positive number: {value!r}")
    return number


def _wants_network(verifier: JsonObject, environment: JsonObject) -> bool:
    modes = (verifier.get("network_mode"), environment.get("network_mode"))
    return next((mode for mode in modes if mode is not None), None) == "public"


def _why_not(path: Path, config: Mapping[str, object], environment: JsonObject, prompt: str) -> str:
    """Why the task cannot run here; empty if it can."""
    found = next((name for name in IMAGE_FILES if (path / "environment" / name).exists()), None)
    workdir = as_text(environment.get("workdir"))
    reasons = {
        f"it needs the image {environment.get('docker_image')}": environment.get("docker_image"),
        f"it builds an image (environment/{found})": found,
        "it has several steps": (path / "steps").is_dir() or config.get("steps"),
        "its verifier needs another environment": as_object(config.get("verifier")).get(
            "environment"
        ),
        "it has MCP servers": environment.get("mcp_servers"),
        f"it is for {environment.get('os')}": as_text(environment.get("os")).lower()
        not in ("", "linux"),
        f"its workdir is not an absolute path: {workdir!r}": workdir
        and not workdir.startswith("/"),
        "it has no instruction.md": not prompt.strip(),
        "it has no tests/test.sh": not (path / "tests" / "test.sh").is_file(),
    }
    return next((reason for reason, applies in reasons.items() if applies), "")
