"""Adding an agent is as little work as ``docs/adding-agents.md`` says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from corral._agents import cline, pi

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "adding-agents.md").read_text()
ACP_FILE, *_ = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
[ENTRY] = re.findall(r"^mine = \"(.*)\"$", PAGE, re.MULTILINE)


def test_one_json_stream_agent_is_one_file() -> None:
    """Including its policy: pi has no rules, so an extension of corral is part of it."""
    file = Path(pi.__file__)
    assert len(file.read_text().splitlines()) <= 385
    assert [*file.parent.glob("pi_*")] == []


def test_one_real_acp_agent_is_one_file_and_a_recording() -> None:
    """Including its policy: which of its tools are offered."""
    file = Path(cline.__file__)
    assert len(file.read_text().splitlines()) <= 180
    assert [*file.parent.glob("cline_*")] == []
    recorded = [*(ROOT / "tests" / "recordings" / "cline").iterdir()]
    assert [path.name for path in recorded] == ["work.ndjson"]


def test_one_acp_agent_is_one_file_of_40_lines_that_a_package_outside_brings(
    tmp_path: Path,
) -> None:
    assert len(ACP_FILE.splitlines()) <= 40
    module, _, _ = ENTRY.partition(":")
    (tmp_path / f"{module}.py").write_text(ACP_FILE)
    info = tmp_path / "mine_corral-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine-corral\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[corral.agents]\nmine = {ENTRY}\n")
    program = tmp_path / "bin" / "mine"
    program.parent.mkdir()
    peer = ROOT / "tests" / "programs" / "plain_acp.py"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {peer} "$@"\n')
    program.chmod(0o700)

    def corral(*words: str) -> str:
        env = {**os.environ, "PYTHONPATH": str(tmp_path)}
        env["PATH"] = f"{program.parent}{os.pathsep}{env['PATH']}"
        command = [str(Path(sys.executable).parent / "corral"), *words]
        done = subprocess.run(
            command, env=env, cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert re.search(r"^mine-acp .* yes .* mine$", corral("agents", "list"), re.M)
    assert "brokered" in corral("agents", "policy", "mine")
    assert corral("run", "--agent", "mine", "hello").strip()
