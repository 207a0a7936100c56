"""What a run leaves for others: the files of its ``artifacts/``, put where all can get them.

The place is a URL of any file system that fsspec knows: ``file:///shared``, ``s3://bucket``,
``memory://`` … Each run has its folder there.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from corral.durable.dbos.adapter import INSTALL
from corral.errors import ConfigError, StorageFailed
from corral.pipelines.execution.run_dir import file_name
from corral.system.git import source_repository


def put(folder: Path, url: str, run_id: str, *, since: float = 0.0) -> list[str]:
    """Copy the files of this folder to the run's place, those that were written since then;
    returns their names. A file that is there is replaced. Blocking. Raises ``StorageFailed``."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    files = sorted(path for path in files if path.stat().st_mtime >= since)
    if not files:
        return []
    system, place = _open(url, run_id)
    names: list[str] = []
    try:
        for file in files:
            name = file.relative_to(folder).as_posix()
            target = f"{place}/{name}"
            system.makedirs(target.rpartition("/")[0], exist_ok=True)
            # Under another name first: a reader never sees half a file.
            system.put_file(str(file), f"{target}.part")
            system.mv(f"{target}.part", target)
            names.append(name)
    except Exception as error:  # whatever that file system raises
        raise StorageFailed(f"artefacts cannot be put to {url}: {error}") from error
    return names


def get(url: str, run_id: str, folder: Path) -> list[str]:
    """Copy the run's files from there into this folder; returns their names. Blocking. Raises
    ``StorageFailed``."""
    system, place = _open(url, run_id)
    names: list[str] = []
    try:
        for found in sorted(system.find(place)):
            name = str(found).removeprefix(place).lstrip("/")
            target = folder / name
            if not target.resolve().is_relative_to(folder.resolve()):
                raise StorageFailed(f"{name!r} would lie outside {folder}")
            target.parent.mkdir(parents=True, exist_ok=True)
            system.get_file(found, str(target))
            names.append(name)
    except StorageFailed:
        raise
    except Exception as error:  # whatever that file system raises
        raise StorageFailed(f"artefacts cannot be got from {url}: {error}") from error
    return names


def check(url: str) -> None:
    """That there is such a file system here, and no password in its URL. Raises
    ``ConfigError``."""
    source_repository.refuse_secrets(
        url, "It would be kept with the run: give it in fsspec's own ways."
    )
    _open(url, "check")


def _open(url: str, run_id: str) -> tuple[Any, str]:
    try:
        library: Any = importlib.import_module("fsspec.core")  # it has no types
    except ImportError as error:
        raise ConfigError("artefacts need fsspec, which is not installed", hint=INSTALL) from error
    try:
        system, place = library.url_to_fs(url)
    except Exception as error:  # whatever that file system raises
        raise ConfigError(f"no file system for {url!r}: {error}") from error
    # A pipeline within another has its folder in that one's.
    names = "/".join(file_name(part) for part in run_id.split("/"))
    return system, f"{str(place).rstrip('/')}/{names}"
