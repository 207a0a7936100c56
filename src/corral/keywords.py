"""What ``corral.run`` and ``corral.session`` take by name, for type checkers.

Apart from ``options.py`` because a TypedDict compiles each of its annotations
when it is made, and no run needs it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from corral.content import Effort, McpServer
from corral.options import ApprovalMode, Inherit, PermissionMode, Via
from corral.policy import Policy, Preset


class Options(TypedDict, total=False):
    """Everything ``corral.run`` and ``corral.session`` take by name."""

    cwd: str | os.PathLike[str] | None
    model: str | None
    policy: Policy | Preset | None
    approval_mode: ApprovalMode | None
    allowed_tools: Sequence[str] | None
    system_prompt: str | None
    replace_system_prompt: str | None
    prompt_file: str | os.PathLike[str] | None
    images: Sequence[str | os.PathLike[str]]
    expand_files: bool
    sandbox: bool
    include_directories: Sequence[str | os.PathLike[str]]
    timeout: float
    idle_timeout: float
    startup_timeout: float
    grace: float
    max_turns: int | None
    max_tool_rounds: int | None
    reasoning_effort: Effort | None
    retries: int
    mcp_servers: Sequence[McpServer | Mapping[str, Any]]
    resume: str | None
    fork: bool
    max_budget_usd: float | None
    output_schema: Mapping[str, Any] | None
    env: Mapping[str, str]
    pass_env: Sequence[str]
    inherit: Inherit
    program: str | os.PathLike[str] | None
    strict: bool
    track_files: bool
    allow_file_reads: bool
    allow_file_writes: bool
    auth: Literal["api_key", "subscription", "inherit"] | None
    auth_method: str | None
    thinking: bool
    permission_mode: PermissionMode
    quiet_period: float | None
    session_mode: str | None
    audio: Sequence[str | os.PathLike[str]]
    attachments: Sequence[str | os.PathLike[str]]
    via: Via | None
    record_to: str | os.PathLike[str] | None
    replay: str | os.PathLike[str] | None
    record: bool
    keep: bool
    label: str | None
    config: Mapping[str, Any]
