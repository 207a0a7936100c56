"""Which run an argument of a command names."""

from __future__ import annotations

from pathlib import Path

import msgspec

from corral.errors import ConfigError
from corral.values import Json


def run_id(name: str, db: str | None) -> str:
    """The id of a run that is named by its id, a unique beginning of it, ``last``, or its run
    folder. Raises ``ConfigError``."""
    from corral.pipelines.execution.run_dir import MANIFEST

    folder = Path(name)
    if not folder.is_dir():
        from corral.durable import query
        from corral.system import threads

        return threads.run_event_loop(query.find_run(name, db=db))
    try:
        manifest: dict[str, Json] = msgspec.json.decode(
            (folder / MANIFEST).read_bytes(), type=dict[str, Json]
        )
        return str(manifest["run_id"])
    except (OSError, msgspec.MsgspecError, KeyError) as error:
        raise ConfigError(
            f"{folder} is not a run folder: it has no {MANIFEST} with a run_id",
            hint="Give the id of a run: corral pipeline runs.",
        ) from error
