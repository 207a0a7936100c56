"""Folders that are tasks of a comparison: those of harbor and those of exercism.

A task may be a stranger's. So its id is a short printable text, and a path in it names a regular
file or a folder below the folder of the task: relative, without ``..``, without links at any
component. A link could name any file of the user, whose content would then be in the prompt, in the
workspace or in the verifier's sandbox; a FIFO would never end.

What is below such a folder is copied without following links (``corral._system.git`` stores a link
as a link, and so does ``corral._pipelines.execution.verifier``).

harbor (schema 1.4)
-------------------
``task.toml``, ``instruction.md``, ``tests/test.sh``. A task whose environment is an image or is
built by a Dockerfile or compose file cannot run here: it is reported as skipped. One without runs
in a private folder with the files of ``environment/``. In the sandbox of its verifier ``/tests``
and ``/logs`` exist, and ``workdir`` is another name of the folder. In the agent's prompt that name
is replaced by the folder's real path: the agent's own sandbox does not have it.

exercism, as the polyglot benchmark of aider has it
---------------------------------------------------
``.docs/instructions.md`` is the prompt, and ``.meta/config.json`` names the files of the solution
and of the tests. The agent gets the exercise without its tests and without ``.meta``. Then the
tests are copied back and run with the command of the language (``COMMANDS``, or ``--verify``).
"""

from __future__ import annotations

import os
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from corral._core.nesting import decode_json
from corral._engine.batch.tasks import MAX_ID
from corral._system import fs, paths
from corral._system.paths import is_inside
from corral._system.sandbox.box import SYSTEM, interpreter_folders
from corral.errors import ConfigError
from corral.values import JsonObject, as_object, as_text, as_texts, number_or_none

MAX_PATH = 1_000
"""Characters of a path in a task."""
MAX_TEXT = 512 * 1024
"""Bytes of a file that becomes a prompt, or that describes a task."""

Kind = Literal["file", "folder"]


class CompareTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task of a comparison, however it was written."""

    id: str
    prompt: str
    verify: str = ""
    """A command that verifies the work; empty: that of the comparison, if there is one."""
    usual_verify: str = ""
    """The command if neither the task nor the comparison has one."""
    tests: str = ""
    """A file or folder that is copied into the workspace before it is verified."""
    test_files: tuple[str, ...] = ()
    """Of ``tests``, the files that are copied; empty: all."""
    folder: str = ""
    """The files that the agent starts with; empty: those of the comparison's working directory."""
    hidden: tuple[str, ...] = ()
    """Files and folders in ``folder`` that the agent does not get."""
    is_empty: bool = False
    """Whether the agent starts in an empty folder."""
    timeout: float | None = None
    """Seconds for the agent."""
    verify_timeout: float | None = None
    layout: Literal["", "harbor"] = ""
    workdir: str = ""
    network: bool = False
    """Whether the task asks for the network."""
    is_confined: bool = False
    """Whether its commands, and commands on its files, run in a sandbox only, with what the policy
    of the comparison allows: the task may be a stranger's."""
    skipped: str = ""
    """Why it cannot be run here; empty if it can."""


# Names and files, checked for every reader.


def check_id(name: str) -> str:
    """The id of a task, from the name of its folder. Raises ``ConfigError``."""
    if not name or len(name) > MAX_ID or not name.isprintable() or name != name.strip():
        raise ConfigError(
            f"{name[:60]!r} is not a valid name of a task",
            hint=f"Use at most {MAX_ID} printable characters.",
        )
    return name


def check_path(task: str, path: str) -> str:
    """A path in a task, as it is. Raises ``ConfigError``."""
    parts = path.split("/")
    wrong = {
        "is empty": not path,
        f"has more than {MAX_PATH} characters": len(path) > MAX_PATH,
        "is not printable": not path.isprintable(),
        "is not relative": path.startswith(("/", "~")),
        "leads out of the task": ".." in parts,
        "has an empty part": bool(path) and ("" in parts[:-1] or "." in parts or parts[-1] == ""),
    }
    reason = next((reason for reason, applies in wrong.items() if applies), None)
    if reason is not None:
        raise ConfigError(
            f"task {task!r}: the path {path[:80]!r} {reason}",
            hint="Paths of a task name files in its own folder, such as tests/test.sh.",
        )
    return path


def kind_of(task: str, folder: Path, path: str) -> Kind | None:
    """What a path of a task names below a folder; None if there is nothing. Raises ``ConfigError``
    for anything but a regular file or a folder, and for a link on the way."""
    try:
        mode = fs.mode_below(folder, check_path(task, path))
    except OSError as error:
        raise ConfigError(f"task {task!r}: {folder / path}: {error.strerror or error}") from error
    if mode is None:
        return None
    if stat.S_ISLNK(mode):
        raise ConfigError(
            f"task {task!r}: {folder / path} leads through a link",
            hint="Links of a task are not followed: put the files themselves there.",
        )
    if stat.S_ISDIR(mode):
        return "folder"
    if not stat.S_ISREG(mode):
        raise ConfigError(f"task {task!r}: {folder / path} is neither a file nor a folder")
    return "file"


def read_file(task: str, folder: Path, path: str) -> bytes | None:
    """The content of a small file of a task; None if there is none. Raises ``ConfigError``."""
    if kind_of(task, folder, path) != "file":
        return None
    data = fs.read_small(folder / path, MAX_TEXT)
    if data is None:
        raise ConfigError(
            f"task {task!r}: {folder / path} cannot be read, or has more than {MAX_TEXT:,} bytes"
        )
    return data


def read_text(task: str, folder: Path, path: str) -> str | None:
    """The same as text. Raises ``ConfigError``."""
    data = read_file(task, folder, path)
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"task {task!r}: {folder / path} is not UTF-8: {error}") from error


def read_toml(path: Path, text: str) -> JsonObject:
    """Raises ``ConfigError``."""
    try:
        return as_object(tomllib.loads(text))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error


# harbor

HARBOR_CONFIG = "task.toml"
RESERVED = ("/dev", "/proc", "/run", "/runtime", "/tests", "/logs", "/solution")
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


def read_harbor_task(path: Path) -> CompareTask | None:
    """The task in a folder; None if it is no task of harbor. Raises ``ConfigError``."""
    name, config_file = path.name, path / HARBOR_CONFIG
    data = read_text(name, path, HARBOR_CONFIG)
    if data is None:
        return None
    config = read_toml(config_file, data)
    environment = as_object(config.get("environment"))
    verifier = as_object(config.get("verifier"))
    modes = (verifier.get("network_mode"), environment.get("network_mode"))
    prompt = read_text(name, path, "instruction.md") or ""
    has_files = kind_of(name, path, "environment") == "folder"
    has_tests = kind_of(name, path, "tests/test.sh") == "file"
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
        network=next((mode for mode in modes if mode is not None), None) == "public",
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
    reasons = {
        "it has several steps": fs.is_dir(path / "steps") or config.get("steps"),
        "its verifier needs another environment": as_object(config.get("verifier")).get(
            "environment"
        ),
        "it has MCP servers": environment.get("mcp_servers"),
        "it has no instruction.md": not prompt.strip(),
    }
    image, system = (as_text(environment.get(key)) for key in ("docker_image", "os"))
    found = why_no_sandbox(
        path / "environment", image=image, os=system, workdir=as_text(environment.get("workdir"))
    )
    return found or next((reason for reason, applies in reasons.items() if applies), "")


def why_no_sandbox(folder: Path, *, image: str, os: str, workdir: str) -> str:
    """Why an environment of harbor cannot be a sandbox of this machine; empty if it can. ``folder``
    has its files."""
    found = next((name for name in IMAGE_FILES if fs.exists(folder / name)), None)
    reasons = {
        f"it needs the image {image}": image,
        f"it builds an image ({folder.name}/{found})": found,
        f"it is for {os}": os.lower() not in ("", "linux"),
        f"its workdir cannot be another name of a folder here: {workdir!r}": workdir
        and not _is_free(workdir),
    }
    return next((reason for reason, applies in reasons.items() if applies), "")


# exercism

EXERCISM_CONFIG = ".meta/config.json"
DOCS = ("introduction.md", "instructions.md", "instructions.append.md")
COMMANDS = {
    ".py": "python3 -m pytest -q .",
    ".go": "go test ./...",
    ".rs": "cargo test -- --include-ignored",
    ".js": "npm test --silent",
    ".java": "./gradlew test",
    ".cpp": "cmake -B build && cmake --build build",
}
"""The command for the tests, by the suffix of the first test file."""
HIDDEN = (".meta", ".docs")
"""Folders that the agent does not get: the first contains a solution."""
ASK = (
    "Implement the solution in: {files}. Change no other file. Names and signatures in the files"
    " stay as they are: tests that you do not have use them."
)


def read_exercise(path: Path) -> CompareTask | None:
    """The exercise in a folder; None if there is no exercise. Raises ``ConfigError``."""
    name = path.name
    config = read_file(name, path, EXERCISM_CONFIG)
    if config is None or kind_of(name, path, ".docs/instructions.md") != "file":
        return None
    try:
        files = as_object(as_object(decode_json(config)).get("files"))
    except (UnicodeDecodeError, msgspec.DecodeError) as error:
        raise ConfigError(f"{path / EXERCISM_CONFIG}: {error}") from error
    texts = [read_text(name, path, f".docs/{doc}") for doc in DOCS]
    solution, tests = as_texts(files.get("solution")), as_texts(files.get("test"))
    if not solution or not tests:
        raise ConfigError(
            f"{path / EXERCISM_CONFIG} names no files of the solution or of the tests"
        )
    for file in solution:
        check_path(name, file)
    for file in tests:
        if kind_of(name, path, file) is None:
            raise ConfigError(f"task {name!r}: there is no {path / file}")
    ask = ASK.format(files=", ".join(solution))
    return CompareTask(
        id=name,
        prompt="\n\n".join([*(text.strip() for text in texts if text is not None), ask]),
        usual_verify=COMMANDS.get(Path(tests[0]).suffix, ""),
        folder=str(path),
        hidden=(*HIDDEN, *tests),
        tests=str(path),
        test_files=tuple(tests),
    )
