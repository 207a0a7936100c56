"""``corral run --dry-run``: print what would be started. Of variables only the names."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from corral.agents.spec import InProcess, Launch
from corral.cli.ui.questions import is_interactive
from corral.cli.ui.tables import policy_table
from corral.cli.ui.terminal import echo, echo_json
from corral.sessions.prepare import prepare, resolve_prompt
from corral.system.paths import sessions


def dry_run(agent: str, options: dict[str, Any], text: str | None, *, as_json: bool) -> int:
    """Make all checks of a real run; write and start nothing."""
    prepared = prepare(agent, options, has_asker=is_interactive())
    prompt = resolve_prompt(prepared, text)
    if isinstance(prepared.agent.transport, InProcess):
        launch = Launch(argv=(), env={}, stdin=b"")
    else:
        place = prepared.launch_context(sessions() / "SESSION")
        launch = prepared.agent.launch(prepared.run, place, prompt, None)
    shown: dict[str, Any] = {
        "agent": prepared.agent.name,
        "version": prepared.program.version,
        "model": prepared.run.model,
        "program": prepared.program.path,
        "cwd": prepared.cwd,
        "argv": list(launch.argv),
        "stdin_bytes": len(launch.stdin),
        "env": sorted(prepared.env(launch)),
        "files": sorted(launch.files),
        "policy": msgspec.to_builtins(prepared.compiled.report),
        "notes": list(launch.notes),
    }
    if as_json:
        echo_json(json.dumps(shown))
        return 0
    for name in ("agent", "version", "model", "program", "cwd", "stdin_bytes"):
        echo(f"{name:12} {shown[name]}")
    echo(f"{'argv':12} {' '.join(shown['argv'])}")
    echo(f"{'env names':12} {' '.join(shown['env'])}")
    echo(f"{'files':12} {' '.join(shown['files'])}")
    for note in shown["notes"]:
        echo(f"{'note':12} {note}")
    echo(policy_table(prepared.compiled.report))
    return 0
