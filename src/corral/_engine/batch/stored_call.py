"""The call of a durable batch, as ``resume`` makes it again: in its folder in corral's home."""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec

from corral._core.spending import BudgetLimits
from corral._engine.batch.spec import BatchOptions, BatchSpec
from corral._engine.run_options import as_json
from corral._system import fs, paths
from corral.errors import ConfigError, StorageFailed
from corral.values import Json, decode_as

FILE = "call.json"


class StoredCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The arguments of ``corral.batch``, with the tasks as they were read."""

    prompt: str
    tasks: list[dict[str, Json]]
    agent: str | None = None
    schema: Json = None
    results: Path | None = None
    concurrency: int = 4
    in_order: bool = False
    attempts: int = 3
    worktree: bool = False
    patch: bool = False
    simulate: bool = False
    queue: str | None = None
    task_limits: dict[str, float] = {}
    options: dict[str, Json] = {}

    @classmethod
    def of(cls, spec: BatchSpec, prompt: str, options: BatchOptions) -> StoredCall:
        run = options.run.copy()
        run["cwd"] = str(spec.workspace)
        return cls(
            prompt=prompt,
            tasks=[task.fields for task in spec.tasks.values()],
            agent=options.agent,
            schema=None if spec.schema is None else spec.schema.json,
            results=None if options.results is None else Path(options.results).absolute(),
            concurrency=options.concurrency,
            in_order=options.in_order,
            attempts=options.attempts,
            worktree=options.worktree,
            patch=options.patch,
            simulate=options.simulate,
            queue=options.queue,
            task_limits=BudgetLimits(**options.task).as_dict(),
            options=as_json(run),
        )

    def save(self, name: str) -> None:
        """A home that cannot be written costs ``resume``, never the batch."""
        with contextlib.suppress(OSError, StorageFailed):
            data = msgspec.json.encode(self, enc_hook=str)
            paths.write_private(_folder(name) / FILE, data)

    @classmethod
    def read(cls, name: str) -> StoredCall:
        """Raises ``ConfigError``."""
        try:
            return decode_as(fs.read_bytes(_folder(name) / FILE), cls, dec_hook=_path)
        except (OSError, msgspec.MsgspecError) as error:
            raise ConfigError(
                f"how the batch {name} was called is not stored on this machine",
                hint="Run the command or the program that started it again.",
            ) from error


def _folder(name: str) -> Path:
    return paths.home() / "batches" / name


def _path(kind: type, value: object) -> Path:
    return Path(str(value))
