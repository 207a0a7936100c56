"""Task folders of harbor (schema 1.4): ``task.toml``, ``instruction.md``, ``tests/test.sh``.

A task whose environment is an image or is built by a Dockerfile or compose file cannot run here: it
is reported as skipped. One without runs in a private folder with the files of ``environment/``. In
the sandbox of its verifier ``/tests`` and ``/logs`` exist, and ``workdir`` is another name of the
folder. In the agent's prompt that name is replaced by the folder's real path: the agent's own
sandbox does not have it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from corral.comparison import task_files
from corral.comparison.task import CompareTask
from corral.comparison.task_files import read_toml
from corral.errors import ConfigError
from corral.system import paths
from corral.system.sandbox.box import SYSTEM, interpreter_folders, is_inside
from corral.values import JsonObject, as_object, as_text, number_or_none

CONFIG = "task.toml"
RESERVED = ("/dev", "/proc", "/run", "/tests", "/logs")
"""Folders that the sandbox has, besides those of the system."""
TEMPORARY = ("/tmp", "/var/tmp")  # noqa: S108
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
    name, config_file = path.name, path / CONFIG
    data = task_files.read_text(name, path, CONFIG)
    if data is None:
        return None
    config = read_toml(config_file, data)
    environment = as_object(config.get("environment"))
    verifier = as_object(config.get("verifier"))
    prompt = task_files.read_text(name, path, "instruction.md") or ""
    has_files = task_files.kind_of(name, path, "environment") == "folder"
    has_tests = task_files.kind_of(name, path, "tests/test.sh") == "file"
    return CompareTask(
        id=name,
        prompt=prompt or "-",
        tests=str(path / "tests") if has_tests else "",
        folder=str(path / "environment") if has_files else "",
        is_empty=not has_files,
        timeout=_limit(config_file, "agent", as_object(config.get("agent"))),
        verify_timeout=_limit(config_file, "verifier", verifier) or DEFAULT_TIMEOUT,
        layout="harbor",
        workdir=as_text(environment.get("workdir")).rstrip("/"),
        network=_wants_network(verifier, environment),
        skipped="it has no tests/test.sh"
        if not has_tests
        else _why_not(path, config, environment, prompt),
    )


def _limit(path: Path, section: str, table: JsonObject) -> float | None:
    value = table.get("timeout_sec")
    number = number_or_none(value)
    if value is not None and (number is None or not number > 0):
        raise ConfigError(f"{path}: [{section}] timeout_sec must be a positive number: {value!r}")
    return number


def _wants_network(verifier: JsonObject, environment: JsonObject) -> bool:
    modes = (verifier.get("network_mode"), environment.get("network_mode"))
    return next((mode for mode in modes if mode is not None), None) == "public"


def _is_free(workdir: str) -> bool:
    """Whether the workspace can be mounted there. What the sandbox needs must stay what it is: the
    system, Python, the homes. Temporary folders may contain it, but not be it."""
    place = workdir.rstrip("/") or "/"
    if not place.isprintable() or place.startswith("//") or os.path.normpath(place) != place:
        return False
    homes = (str(paths.user_home()), str(paths.home()))
    taken = (*SYSTEM, *RESERVED, *homes, *interpreter_folders())
    return (
        os.path.isabs(place)
        and not any(is_inside(place, folder) or is_inside(folder, place) for folder in taken)
        and not any(is_inside(folder, place) for folder in TEMPORARY)
    )


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
        f"its workdir cannot be another name of a folder here: {workdir!r}": workdir
        and not _is_free(workdir),
        "it has no instruction.md": not prompt.strip(),
    }
    return next((reason for reason, applies in reasons.items() if applies), "")
