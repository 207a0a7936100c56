"""A task of a comparison, however it was written."""

from __future__ import annotations

from typing import Literal

import msgspec


class CompareTask(msgspec.Struct, frozen=True, kw_only=True):
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
