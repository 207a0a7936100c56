"""No public server stops answering, or refuses to end, while clients are hostile.

How long the answers take is printed by ``python -m support.hostile_loads``, in ``tests``.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from support.hostile_loads import LOADS, PATIENCE, WORDS, attacked, health, running


@pytest.mark.deep
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "kind",
    [kind if kind == "serve" else pytest.param(kind, marks=pytest.mark.deep) for kind in WORDS],
)
def test_health_is_answered_under_each_load_and_the_server_ends(kind: str, tmp_path: Path) -> None:
    with running(kind, tmp_path) as target:
        for name, load in LOADS.items():
            with attacked(target, load):
                assert health(target)[0] == 200, name
        with attacked(target, LOADS["half a request line"]):
            target.process.send_signal(signal.SIGTERM)
            target.process.wait(PATIENCE)
        log = target.log.read_text()
        assert "Traceback" not in log
        assert len(log) < 10_000
