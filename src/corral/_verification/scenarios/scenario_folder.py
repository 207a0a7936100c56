"""A folder of held-out scenarios, read and checked completely before a run.

Each scenario is one file directly in the folder:

* ``NAME.toml`` describes a command, an HTTP call, a file for pytest, or a question to a judging
  model (``_ScenarioFile`` has the keys);
* ``test_NAME.py`` is run by pytest. A TOML file that names it (``pytest = "test_NAME.py"``) may
  give its class, weight and time.

``scenarios.toml``, if it is there, has what applies to all of them (``_SettingsFile``). ``files/``
has what commands and tests need besides, ``conftest.py`` belongs to the tests. ``README.md`` and
names that begin with a dot are left alone. Anything else is an error: a scenario that is misnamed
would be left out, and nobody would notice.

The errors here name files. They are raised before a run, to the person who starts it. What is
raised while a run goes on names none (``folder_digest``).
"""

from __future__ import annotations

import os
import re
import stat
import tomllib
from collections.abc import Iterator
from hashlib import blake2b
from typing import Annotated, Literal, TypeAlias, TypeVar
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from corral._core import durations
from corral._core.lookup import check_keys
from corral._core.nesting import decode_toml
from corral._system import fs
from corral.errors import ConfigError
from corral.values import Json, convert_to

ScenarioKind: TypeAlias = Literal["command", "http", "pytest", "judge"]

SETTINGS, FILES, FIXTURES = "scenarios.toml", "files", "conftest.py"
TIMEOUT, BUILD_TIMEOUT = 300.0, 1800.0
"""Seconds of a scenario, and of the build, that name none."""
MAX_FILE = 1024 * 1024
"""Bytes of a file that is a scenario."""
MAX_SCENARIOS = 10_000
MAX_WEIGHT = 1_000.0
_CLASS = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")
_TEST = re.compile(r"test_\w+\.py")
_LOOPBACK = ("127.0.0.1", "localhost")
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")

_File = TypeVar("_File", bound=msgspec.Struct)
_Texts: TypeAlias = str | list[str]
_Time: TypeAlias = str | float


class ScenarioCall(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request to the server that the scenario starts, and what its response must be."""

    url: str
    """A path, such as ``/health``; or a URL on 127.0.0.1 with a port."""
    method: str = "GET"
    headers: dict[str, str] = {}
    body: str | None = None
    json: Json | msgspec.UnsetType = msgspec.UNSET
    """Instead of ``body``."""
    status: int | list[int] = []
    """The accepted status; empty: each from 200 to 299."""
    contains: _Texts = []
    """Texts that must be in the body."""
    equals: Json | msgspec.UnsetType = msgspec.UNSET
    """What the body must be, as JSON."""


class _ScenarioFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The keys of a scenario's TOML file."""

    class_name: str = msgspec.field(name="class", default="")
    """What the agent learns of a scenario that is not satisfied. By default its kind."""
    weight: Annotated[float, Meta(gt=0, le=MAX_WEIGHT)] = 1.0
    timeout: _Time = TIMEOUT
    setup: str = ""
    """A command before it, in the same build. If it fails, the scenario is missing."""
    command: str = ""
    """Satisfied if it exits with 0."""
    start: str = ""
    """The command of the server that ``http`` calls. It gets the port as ``PORT``."""
    http: ScenarioCall | None = None
    pytest: str = ""
    prompt: str = ""
    """The question to the judging model."""
    rubric: str = ""
    """When the answer is yes."""
    files: _Texts = []
    """Patterns of files that the judging model reads; by default those that the run changed."""


class _SettingsFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The keys of ``scenarios.toml``."""

    build: str = ""
    """A command that is run once, before all scenarios."""
    build_timeout: _Time = BUILD_TIMEOUT
    python: str = "python3"
    """The Python that runs pytest."""


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """One held-out check."""

    name: str
    """Of its file. No agent may see it."""
    kind: ScenarioKind
    class_name: str
    """Agents see it."""
    weight: float = 1.0
    timeout: float = TIMEOUT
    setup: str = ""
    command: str = ""
    start: str = ""
    call: ScenarioCall | None = None
    test_file: str = ""
    prompt: str = ""
    rubric: str = ""
    files: tuple[str, ...] = ()


class ScenarioFolder(msgspec.Struct, frozen=True, kw_only=True):
    """All scenarios of a folder."""

    path: str
    """Without links."""
    scenarios: tuple[Scenario, ...]
    """In the order of their names."""
    digest: str
    """Of all files: says in a receipt which scenarios were used, without a name."""
    build: str = ""
    build_timeout: float = BUILD_TIMEOUT
    python: str = "python3"

    @property
    def needs_judge(self) -> bool:
        return any(scenario.kind == "judge" for scenario in self.scenarios)


def read_folder(path: str | os.PathLike[str]) -> ScenarioFolder:
    """The scenarios of a folder. Raises ``ConfigError`` for the first mistake."""
    given = os.fspath(path)
    if not given.strip():
        raise ConfigError("the folder of scenarios is empty: give its path")
    real = fs.real_path(os.path.expanduser(given))
    if not fs.is_dir(real):
        what = "is not a folder" if fs.exists(real) else "does not exist"
        raise ConfigError(f"the folder of scenarios {what}: {given}")
    try:
        names = sorted(fs.list_names(real))
        _check_links(real)
        digest = folder_digest(real)
    except OSError as error:
        raise ConfigError(f"the scenarios cannot be read: {error}") from error
    settings = _SettingsFile()
    tests: set[str] = set()
    described: list[Scenario] = []
    for name in names:
        if _is_ignored(name) or name == FIXTURES:
            continue
        is_folder = fs.is_dir(os.path.join(real, name))
        if name == FILES and is_folder:
            continue
        if _TEST.fullmatch(name) and not is_folder:
            tests.add(name)
        elif name == SETTINGS:
            settings = _read_toml(real, name, _SettingsFile)
        elif name.endswith(".toml") and not is_folder:
            described.append(_scenario(name, _read_toml(real, name, _ScenarioFile)))
        else:
            raise ConfigError(
                f"{given}: {name} is not a scenario",
                hint="Scenarios are NAME.toml and test_NAME.py; put other files into files/.",
            )
    scenarios = (*described, *_undescribed(tests, described))
    if not scenarios:
        raise ConfigError(
            f"{given} contains no scenarios",
            hint="Write each as NAME.toml or test_NAME.py; `corral docs scenarios` shows how.",
        )
    if len(scenarios) > MAX_SCENARIOS:
        raise ConfigError(f"{given} contains more than {MAX_SCENARIOS:,} scenarios")
    return ScenarioFolder(
        path=real,
        scenarios=tuple(sorted(scenarios, key=lambda scenario: scenario.name)),
        digest=digest,
        build=settings.build,
        build_timeout=_seconds(SETTINGS, "build_timeout", settings.build_timeout),
        python=settings.python,
    )


def _is_ignored(name: str) -> bool:
    return name.startswith(".") or name in ("README.md", "__pycache__")


def _files(folder: str) -> Iterator[str]:
    """The paths of all files that belong to the scenarios, links too, in order."""
    for name in sorted(fs.list_names(folder)):
        if not _is_ignored(name):
            path = os.path.join(folder, name)
            if fs.is_dir(path) and not fs.is_link(path):
                yield from _files(path)
            else:
                yield path


def _check_links(folder: str) -> None:
    """A link leads out of the folder that is hidden, and a second name of a file may be in a
    workspace. Raises ``ConfigError``."""
    for path in _files(folder):
        name = os.path.relpath(path, folder)
        if fs.is_link(path):
            raise ConfigError(f"the scenario {name} is a link", hint="Copy the file instead.")
        status = fs.status(path)
        if not stat.S_ISREG(status.st_mode):
            raise ConfigError(f"the scenario {name} is not a regular file")
        if status.st_nlink > 1:
            raise ConfigError(
                f"the scenario {name} has a second name (a hard link), under which an agent may"
                " read it",
                hint="Copy the file instead.",
            )


def folder_digest(folder: str) -> str:
    """The digest of all files with their names. Raises ``OSError``."""
    digest = blake2b(digest_size=16)
    for path in _files(folder):
        with fs.open_regular(path) as file:
            content = file.read()
        name = os.path.relpath(path, folder)
        digest.update(f"{name}\0{len(content)}\0".encode("utf-8", "surrogateescape") + content)
    return f"blake2b:{digest.hexdigest()}"


def _read_toml(folder: str, name: str, kind: type[_File]) -> _File:
    data = fs.read_small(os.path.join(folder, name), MAX_FILE)
    if data is None:
        raise ConfigError(f"{name} cannot be read, or is over {MAX_FILE:,} bytes")
    try:
        table = decode_toml(data.decode())
        check_keys(f"{name}:", table, [each.encode_name for each in msgspec.structs.fields(kind)])
        return convert_to(table, kind)
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{name} is not TOML: {error}") from error
    except msgspec.ValidationError as error:
        raise ConfigError(f"{name}: {error}") from error


def _scenario(name: str, read: _ScenarioFile) -> Scenario:
    class_name = read.class_name
    given: dict[ScenarioKind, bool] = {
        "command": bool(read.command.strip()),
        "http": read.http is not None,
        "pytest": bool(read.pytest),
        "judge": bool(read.prompt.strip()),
    }
    kinds: list[ScenarioKind] = [kind for kind, is_given in given.items() if is_given]
    if len(kinds) != 1:
        raise ConfigError(
            f"{name} must have one of command, http, pytest and prompt, and has"
            f" {' and '.join(kinds) or 'none of them'}"
        )
    if class_name and not _CLASS.fullmatch(class_name):
        raise ConfigError(
            f"{name}: class must be a word of at most 40 letters, digits, - and _,"
            f" got: {class_name!r}",
            hint="Agents see it: name what goes wrong, not how it is checked.",
        )
    if read.http is not None:
        _check_call(name, read.http, read.start)
    elif read.start:
        raise ConfigError(f"{name}: start needs http: it starts the server that is called")
    if (read.rubric or read.files) and kinds != ["judge"]:
        raise ConfigError(f"{name}: rubric and files belong to a prompt")
    if kinds == ["judge"] and not read.rubric.strip():
        raise ConfigError(f"{name}: a prompt needs a rubric, which says when the answer is yes")
    if read.pytest and not _TEST.fullmatch(read.pytest):
        raise ConfigError(f"{name}: pytest must be the name of a file test_NAME.py of the folder")
    files = (read.files,) if isinstance(read.files, str) else tuple(read.files)
    for pattern in files:
        if not pattern or pattern.startswith("/") or ".." in pattern.split("/"):
            raise ConfigError(f"{name}: files must be paths below the workspace, got: {pattern!r}")
    return Scenario(
        name=name,
        kind=kinds[0],
        class_name=class_name or kinds[0],
        weight=read.weight,
        timeout=_seconds(name, "timeout", read.timeout),
        setup=read.setup,
        command=read.command,
        start=read.start,
        call=read.http,
        test_file=read.pytest,
        prompt=read.prompt,
        rubric=read.rubric,
        files=files,
    )


def _undescribed(tests: set[str], described: list[Scenario]) -> Iterator[Scenario]:
    """The tests that no TOML file names, after a check of those that are named."""
    named: dict[str, str] = {}
    for scenario in described:
        if test := scenario.test_file:
            if test not in tests:
                raise ConfigError(f"{scenario.name} names {test}, which does not exist")
            if test in named:
                raise ConfigError(f"{scenario.name} and {named[test]} both name {test}")
            named[test] = scenario.name
    for test in sorted(tests - named.keys()):
        yield Scenario(name=test, kind="pytest", class_name="pytest", test_file=test)


def _check_call(name: str, call: ScenarioCall, start: str) -> None:
    if call.method not in METHODS:
        raise ConfigError(f"{name}: method must be one of {', '.join(METHODS)}")
    if call.body is not None and call.json is not msgspec.UNSET:
        raise ConfigError(f"{name}: body and json both given")
    if not start.strip():
        raise ConfigError(
            f"{name}: http needs start, the command of the server",
            hint='For example: start = "python3 app.py"; it gets the port as PORT.',
        )
    if call.url.startswith("/"):
        return
    try:
        parts = urlsplit(call.url)
        is_local = parts.scheme == "http" and parts.hostname in _LOOPBACK and bool(parts.port)
    except ValueError:
        is_local = False
    if not is_local:
        raise ConfigError(
            f"{name}: url must be a path such as /health, or http://127.0.0.1:PORT/…,"
            f" got: {call.url!r}",
            hint="The server and the call are in a sandbox without a network.",
        )


def _seconds(name: str, key: str, value: _Time) -> float:
    try:
        seconds = durations.seconds(value)
    except ValueError as error:
        raise ConfigError(f"{name}: {key}: {error}") from error
    if not seconds > 0:
        raise ConfigError(f"{name}: {key} must be more than 0, got: {value}")
    return seconds
