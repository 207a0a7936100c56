"""The stored verdicts of probes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from corral import errors
from corral._agents import registry
from corral._agents.proof import PLAN, ProbeCheck, Verdict
from corral._system import paths, proofs
from corral.version import __version__

AGENT = registry.find("codex-cli")
VERDICT = Verdict(
    agent=AGENT.name,
    version="1.2.3",
    program="/bin/codex",
    digest="abc",
    date=0.0,
    seconds=1.0,
    checks=(ProbeCheck("works", True, "it does"),),
    corral=__version__,
)


def test_a_verdict_is_read_as_it_was_written() -> None:
    proofs.write(AGENT, VERDICT)
    assert proofs.read(AGENT, "abc") == VERDICT
    assert proofs.read(AGENT, "abd") is None
    assert proofs.read(registry.find("codex-acp"), "abc") is None


@pytest.mark.parametrize("changed", [{"plan": PLAN + 1}, {"corral": "0.0.1"}, {"digest": "x"}])
def test_a_verdict_of_another_corral_probe_or_program_does_not_count(
    changed: dict[str, object],
) -> None:
    path = paths.home() / "proofs" / AGENT.name / "abc.json"
    data = msgspec.json.encode(msgspec.structs.replace(VERDICT, **changed))
    paths.write_private(path, data)
    assert proofs.read(AGENT, "abc") is None


def test_a_damaged_verdict_does_not_count() -> None:
    paths.write_private(paths.home() / "proofs" / AGENT.name / "abc.json", b'{"agent": ')
    assert proofs.read(AGENT, "abc") is None


async def test_only_one_at_a_time_is_in_the_block() -> None:
    inside: list[int] = []

    async def enter(number: int) -> None:
        async with proofs.locked(AGENT, "abc"):
            inside.append(number)
            await asyncio.sleep(0)
            assert inside[-1] == number

    await asyncio.gather(*map(enter, range(5)))
    assert len(inside) == 5


async def test_a_home_that_cannot_be_written_is_an_error_before_anything_is_probed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CORRAL_HOME", str(tmp_path / "file" / "home"))
    with pytest.raises(errors.StorageFailed, match="cannot be stored") as raised:
        async with proofs.locked(AGENT, "abc"):
            pass
    assert "--probe trust" in (raised.value.hint or "")
    with pytest.raises(errors.StorageFailed):
        proofs.write(AGENT, VERDICT)


def test_the_home_of_a_probe_has_nothing_of_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMINI_API_KEY", "canary-key")
    (Path.home() / ".netrc").write_text("canary")
    with proofs.probe_home() as (folder, variables):
        assert "canary" not in str(variables)
        assert all(variables[name].startswith(folder) for name in ("HOME", "CORRAL_HOME", "TMPDIR"))
        assert not list(Path(variables["HOME"]).iterdir())
    assert not Path(folder).exists()
