"""The files of a run's ``artifacts/`` directory, uploaded to where others can get them.

The target is a URL of any file system that fsspec knows: ``file:///shared``, ``s3://bucket``,
``memory://`` … Each run has its own directory there.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from corral._engine.dbos.database import INSTALL
from corral._pipelines.execution.run_dir import file_name
from corral._system import fs
from corral.errors import ConfigError, StorageFailed


def upload(folder: Path, url: str, run_id: str, *, since: float = 0.0) -> list[str]:
    """Copy the files of this directory to the run's directory at the URL; with ``since`` only
    those written after that time. Existing files are replaced. Returns the names. Blocking. Raises
    ``StorageFailed``."""
    files = sorted(path for path in fs.files_below(folder) if path.stat().st_mtime >= since)
    if not files:
        return []
    system, place = _open(url, run_id)
    names: list[str] = []
    try:
        for file in files:
            name = file.relative_to(folder).as_posix()
            target = f"{place}/{name}"
            system.makedirs(target.rpartition("/")[0], exist_ok=True)
            # Renamed at the end: a reader never sees an incomplete file.
            system.put_file(str(file), f"{target}.part")
            system.mv(f"{target}.part", target)
            names.append(name)
    except Exception as error:  # whatever that file system raises
        raise StorageFailed(f"cannot upload artifacts to {url}: {error}") from error
    return names


def check(url: str) -> None:
    """Raises ``ConfigError`` if the URL has no installed file system, or contains a password."""
    from corral._system.git import source_repository

    source_repository.refuse_secrets(
        url, "It would be stored with the run: configure credentials in fsspec."
    )
    _open(url, "check")


def _open(url: str, run_id: str) -> tuple[Any, str]:
    try:
        library: Any = importlib.import_module("fsspec.core")  # it has no types
    except ImportError as error:
        raise ConfigError("artifacts need fsspec, which is not installed", hint=INSTALL) from error
    try:
        system, place = library.url_to_fs(url)
    except Exception as error:  # whatever that file system raises
        raise ConfigError(f"no file system for {url!r}: {error}") from error
    # A nested run has its directory inside that of its parent.
    names = "/".join(file_name(part) for part in run_id.split("/"))
    return system, f"{str(place).rstrip('/')}/{names}"
