"""Writes the private home of a session: settings, linked credentials, images."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

from corral.agents.spec import AgentSpec, Launch, acp_transport, image_name
from corral.errors import StorageFailed
from corral.sessions.prepare import PreparedRun
from corral.sessions.store import SessionRecord
from corral.system import paths


def write_private_home(launch: Launch, prepared: PreparedRun, record: SessionRecord) -> None:
    """Write the private home. The real home's credentials are linked, never copied."""
    record.make_folders()
    try:
        if launch.report is not None:
            Path(launch.report).unlink(missing_ok=True)  # the one of the turn before
        for name, content in launch.files.items():
            paths.write_private(record.home / name, content.encode())
        for name in prepared.linked:
            link = record.home / name
            link.parent.mkdir(parents=True, exist_ok=True)
            if not link.is_symlink():
                link.unlink(missing_ok=True)
                link.symlink_to(paths.user_home() / name)
        for number, image in enumerate(prepared.run.images):
            record.images.mkdir(mode=0o700, exist_ok=True)
            copy = record.images / image_name(number, image)
            shutil.copy(os.path.join(prepared.cwd, image), copy)
    except OSError as error:
        raise _storage_error(record, error) from error


def make_loadable(agent: AgentSpec, record: SessionRecord) -> None:
    """See that the agent can load the session's conversation now."""
    session = record.meta.session_id
    transport = acp_transport(agent)
    if transport.rename_to_load is None or session is None:
        return
    pattern = transport.conversation_files.format(session[:8])
    found = {file.name: file for file in record.home.glob(pattern)}
    try:
        for old, new in transport.rename_to_load([*found], session, time.time()).items():
            found[old].rename(found[old].with_name(new))
    except OSError as error:
        raise _storage_error(record, error) from error


def _storage_error(record: SessionRecord, error: OSError) -> StorageFailed:
    return StorageFailed(
        f"cannot write the session's folder {record.folder}: {error.strerror}",
        hint="Free some space, or set CORRAL_HOME to a folder that can be written.",
    )
