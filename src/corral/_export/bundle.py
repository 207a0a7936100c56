"""A diagnostic bundle: a zip file with what is needed to understand a run, without secrets.

Every file goes through ``ExportRedactor``: secrets of the environment and keys by their form are
redacted, and the home folder becomes ``~``. Of the environment there are only names. Values of
``env``, headers and everything whose name sounds like a secret are left out of the configuration.
"""

from __future__ import annotations

import platform
import re
import sys
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from corral._core.terminal_text import json_bytes, plain
from corral._pipelines.events import RunEvent, StepStarted
from corral._pipelines.execution import run_dir
from corral._runs.redactor import ExportRedactor
from corral._runs.stored_run import LogReader, Notices, StoredRun, copy_log, visit_folder
from corral._sessions import store
from corral._system import config, fs
from corral._system.environment import is_secret, variables
from corral.errors import CorralError
from corral.events import Done, Error, Init, Vendor
from corral.values import Json, JsonObject, as_object, as_text, is_list, is_object
from corral.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_LOG = 32 * 1024 * 1024
"""Bytes of one event log. Of a longer one the beginning and the end are in the bundle."""
MAX_FILE = 1024 * 1024
"""Bytes of any other file."""
HIDDEN = "[value left out]"

TITLES = {
    "README.txt": "this list",
    "run.json": "what the run was: agent, version, model, status, usage, cost, errors",
    "events.ndjson": "the events of the run",
    "meta.json": "the stored session",
    "manifest.json": "the stored pipeline run",
    "checkpoint.json": "the state of the pipeline run",
    "policy.json": "how the policy of the run was enforced",
    "stderr.txt": "the last lines that the agent wrote to stderr",
    "versions.json": "corral, Python, the platform, packages",
    "environment.txt": "names of environment variables, without values",
    "config.json": "the configuration files, without values of env and headers",
    "doctor.txt": "what `corral agents doctor` found",
    "visits/": "status, prompt and events of each node",
}


def write(
    run: StoredRun, out: Callable[[bytes], object], doctor: Callable[[str], str] | None = None
) -> list[str]:
    """Write the bundle, from front to back. ``doctor`` is called with the name of the agent and
    returns a report. Returns what the bundle contains, one line per file."""
    redactor = ExportRedactor(hide_home=True)
    reader = LogReader(Notices(), redactor)
    names: list[str] = []
    with zipfile.ZipFile(_Output(out), "w", zipfile.ZIP_DEFLATED) as archive:

        def add(name: str, data: bytes) -> None:
            names.append(name)
            # Without terminal sequences of an agent.
            if name.endswith(".json"):
                data = json_bytes(data)
            else:
                data = plain(data.decode("utf-8", "replace")).encode("utf-8", "replace")
            archive.writestr(name, redactor.clean(data))

        facts = _RunFacts()
        for event in run.events():
            facts.add(event)
        logs = {"events.ndjson": run.log}
        if run.folder is not None:
            for visit in facts.visits:
                log = visit_folder(run.folder, visit) / run_dir.EVENTS
                if fs.is_file(log):
                    logs[f"visits/{log.parent.name}/{run_dir.EVENTS}"] = log
        for name, path in logs.items():
            with archive.open(name, "w", force_zip64=True) as file:
                copy_log(path, lambda line: file.write(json_bytes(line)), reader, MAX_LOG)
            names.append(name)
        for name, data in _stored_files(run, facts):
            add(name, data)
        add("run.json", _json({**facts.as_json(), "id": run.id, "kind": run.kind}))
        add("versions.json", _json(_versions(facts)))
        add("environment.txt", "".join(f"{name}\n" for name in sorted(variables())).encode())
        add("config.json", _json(_configuration()))
        if doctor is not None and facts.agent:
            add("doctor.txt", doctor(facts.agent).encode())
        readme = [
            f"Diagnostic bundle of the {run.kind} {run.id}, written by corral {__version__}.",
            "Secrets of the environment and keys by their form are redacted; the home folder is ~.",
            "Prompts, answers, file names and output of tools are in it: read it before you share"
            " it.",
            "",
            *map(_described, [*names, "README.txt"]),
            *(["", *run.notices.sentences()] if run.notices.sentences() else []),
        ]
        add("README.txt", ("\n".join(readme) + "\n").encode())
    return [_described(name) for name in names]


class _Output:
    """A file for ``zipfile`` that has no positions: then it writes each byte once, in order."""

    def __init__(self, out: Callable[[bytes], object]) -> None:
        self._out = out

    def write(self, data: bytes, /) -> int:
        self._out(data)
        return len(data)

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        """The caller closes what it writes to."""


def _described(name: str) -> str:
    known = TITLES.get(name) or TITLES.get(name.partition("/")[0] + "/", "")
    return f"{name}: {known}" if known else name


class _RunFacts:
    """What is collected from the events."""

    def __init__(self) -> None:
        self.agent = ""
        self.init: Init | None = None
        self.done: list[Done] = []
        self.errors: list[JsonObject] = []
        self.stderr = ""
        self.policy: Json = None
        self.visits: list[str] = []
        self.events = 0

    def add(self, event: RunEvent) -> None:
        self.events += 1
        match event:
            case Init():
                self.agent, self.init = event.agent or self.agent, event
            case Done():
                self.done = [*self.done[-99:], event]
                if event.error is not None:
                    self._error(event.error)
            case Error():
                self._error(event)
            case Vendor(name="run_facts"):
                self.policy = as_object(event.data).get("policy")
            case StepStarted():
                self.visits = [*self.visits[-999:], event.visit]
            case _:
                pass

    def _error(self, error: Error) -> None:
        self.stderr = as_text(error.facts.get("stderr")) or self.stderr
        self.errors = [*self.errors[-99:], as_object(msgspec.to_builtins(error))]

    def as_json(self) -> JsonObject:
        return {
            "agent": self.agent,
            **{
                name: getattr(self.init, name, None)
                for name in ("agent_version", "model", "cwd", "sandbox", "auth")
            },
            "events": self.events,
            "turns": [
                {
                    "status": done.status,
                    "model": done.model,
                    "duration_ms": done.duration_ms,
                    "usage": as_object(msgspec.to_builtins(done.usage)),
                    "cost": as_object(msgspec.to_builtins(done.cost)),
                }
                for done in self.done
            ],
            "errors": [*self.errors],
        }


def _stored_files(run: StoredRun, facts: _RunFacts) -> Iterator[tuple[str, bytes]]:
    if facts.policy is not None:
        yield "policy.json", _json(facts.policy)
    if facts.stderr:
        yield "stderr.txt", facts.stderr.encode("utf-8", "replace")
    if run.folder is None:
        return
    for name in (store.META, run_dir.MANIFEST, run_dir.CHECKPOINT):
        if (data := _beginning(run.folder / name)) is not None:
            yield name, data
    for visit in facts.visits:
        folder = visit_folder(run.folder, visit)
        for name in (run_dir.STATUS, "prompt.md", "error.txt"):
            if (data := _beginning(folder / name)) is not None:
                yield f"visits/{folder.name}/{name}", data


def _beginning(path: Path) -> bytes | None:
    try:
        with path.open("rb") as file:
            return file.read(MAX_FILE)
    except OSError:
        return None


def _versions(facts: _RunFacts) -> JsonObject:
    found: JsonObject = {
        "corral": __version__,
        "python": sys.version,
        "platform": platform.platform(),
        "agent": f"{facts.agent} {facts.init.agent_version if facts.init else ''}".strip(),
    }
    try:
        required = metadata.requires("corral") or []
    except metadata.PackageNotFoundError:
        required = []
    names = {re.split(r"[^\w.-]", requirement, maxsplit=1)[0] for requirement in required}
    for name in sorted(names - {"corral"}):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def _configuration() -> JsonObject:
    """The configuration files, with the values that may be secret left out."""
    found: JsonObject = {}
    for file in config.existing_files():
        try:
            values: Json = as_object(config.read_file(Path(file.path)))
        except CorralError as error:
            values = error.message
        found[file.path] = {"trusted": file.trusted, "content": _without_secrets("", values)}
    return found


def _without_secrets(name: str, value: Json) -> Json:
    if is_object(value):
        if name in ("env", "headers"):
            return dict.fromkeys(value, HIDDEN)
        return {key: _without_secrets(key, each) for key, each in value.items()}
    if is_list(value):
        return [_without_secrets(name, each) for each in value]
    return HIDDEN if isinstance(value, str) and is_secret(name.upper(), value) else value


def _json(value: Json) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"
