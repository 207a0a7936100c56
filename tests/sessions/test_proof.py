"""What is known about a program before it is used: stored verdicts and the options."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from support.sandbox import needs_sandbox
from support.scripted_agent import GOOD as GOOD_RUN
from support.scripted_agent import PROGRAM, scripted_options

import corral
from corral import errors
from corral._agents import registry
from corral._agents.proof import ProbeCheck, ProbeRow, Verdict
from corral._agents.spec import AgentSpec
from corral._sessions.prepare import prepare
from corral._sessions.prepared_run import PreparedRun
from corral._system import program_files, programs, proofs
from corral.policy import Policy
from corral.version import __version__

AGENT = "gemini-cli"
GOOD = ProbeCheck("works", True, "it does")


@pytest.fixture(autouse=True)
def _probes_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CORRAL_PROBE")


def store(*checks: ProbeCheck) -> None:
    """The verdict of a probe of the scripted program."""
    agent = registry.find(AGENT)
    found = programs.locate(agent, str(PROGRAM))
    verdict = Verdict(
        agent=AGENT,
        version=found.version,
        program=found.path,
        digest=program_files.digest(agent, found),
        date=0.0,
        seconds=1.0,
        checks=(GOOD, *checks),
        corral=__version__,
    )
    proofs.write(agent, verdict)


def prepared(workspace: Path, **options: object) -> PreparedRun:
    given: dict[str, object] = {**scripted_options(workspace), "sandbox": "off", **options}
    return prepare(AGENT, given)


def failed(row: ProbeRow) -> ProbeCheck:
    return ProbeCheck("held", False, "shell.txt was made", row)


def test_a_program_that_was_not_tested_needs_a_probe_once(workspace: Path) -> None:
    before = prepared(workspace).proof
    assert (before.proof, before.needs_probe) == ("untested", True)
    store()
    after = prepared(workspace).proof
    assert (after.proof, after.needs_probe) == ("probed", False)


def test_a_program_that_changes_needs_another_probe(workspace: Path, tmp_path: Path) -> None:
    store()
    copy = tmp_path / "gemini"
    copy.write_bytes(PROGRAM.read_bytes() + b"\n")
    copy.chmod(0o755)
    assert prepared(workspace, program=str(copy)).proof.needs_probe


def test_require_refuses_what_was_not_probed(workspace: Path) -> None:
    with pytest.raises(errors.NotProven, match=r"0\.61\.0 at .* was not tested") as raised:
        prepared(workspace, probe="require")
    assert "corral agents probe gemini-cli" in (raised.value.hint or "")
    assert "corral agents install" in (raised.value.hint or "")
    store()
    assert prepared(workspace, probe="require").proof.proof == "probed"


def test_never_makes_no_probe_and_obeys_one_that_is_stored(workspace: Path) -> None:
    proof = prepared(workspace, probe="never").proof
    assert (proof.proof, proof.needs_probe) == ("untested", False)
    store(ProbeCheck("the answer arrives complete", False, "it is empty"))
    with pytest.raises(errors.NotProven, match="did not pass"):
        prepared(workspace, probe="never")


def test_the_environment_sets_the_option_and_the_caller_wins(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CORRAL_PROBE", "require")
    with pytest.raises(errors.NotProven):
        prepared(workspace)
    assert prepared(workspace, probe="once").proof.needs_probe
    monkeypatch.setenv("CORRAL_PROBE", "sometimes")
    with pytest.raises(
        errors.ConfigError, match="CORRAL_PROBE must be one of never, once, require, trust"
    ):
        prepared(workspace)


def test_a_program_that_did_not_pass_is_refused_with_its_version_and_the_command(
    workspace: Path,
) -> None:
    store(ProbeCheck("the answer arrives complete", False, "it ends: ''"))
    with pytest.raises(errors.NotProven) as raised:
        prepared(workspace)
    assert "Gemini CLI 0.61.0" in raised.value.message
    assert "the answer arrives complete: it ends: ''" in raised.value.message
    assert "corral agents install gemini" in (raised.value.hint or "")
    assert raised.value.agent_version == "0.61.0"
    assert prepared(workspace, probe="trust").proof.proof == "trusted"


def test_a_row_that_the_program_does_not_enforce_is_refused(workspace: Path) -> None:
    store(failed("shell"))
    with pytest.raises(errors.PolicyNotEnforceable, match="shell=deny") as raised:
        prepared(workspace, policy="edits")
    assert "when it was probed: shell.txt was made" in raised.value.message
    run = prepared(workspace, policy="edits", strict=False)
    rows = {row.capability: row for row in run.compiled.report}
    assert (rows["shell"].enforcer, rows["mcp"].enforcer) == ("impossible", "native")


@needs_sandbox
async def test_a_row_that_the_program_does_not_enforce_is_left_to_the_sandbox(
    workspace: Path,
) -> None:
    store(failed("write"))
    script = "init\nsh touch made.txt || true\ntext hello\nresult"
    options = scripted_options(workspace, policy="reads")
    result = await corral.run(AGENT, script, **options)
    assert result.ok, result
    assert result.sandbox == "bubblewrap"
    assert result.sandbox_reason == "gemini-cli alone cannot enforce write=deny"
    assert not (workspace / "made.txt").exists()
    options["probe"] = "trust"
    alone = await corral.run(AGENT, script, **options)
    assert (alone.ok, alone.sandbox) == (True, None)
    assert (workspace / "made.txt").exists()


def test_what_is_allowed_without_a_limit_needs_no_one_who_enforces_it(workspace: Path) -> None:
    store(failed("shell"), failed("write"), failed("mcp"))
    assert prepared(workspace, policy="all").proof.failed.keys() == {"shell", "write", "mcp"}
    with pytest.raises(errors.PolicyNotEnforceable, match="write=allow"):
        prepared(workspace, policy=Policy(write="allow", shell="deny"))


def test_a_failed_rule_counts_only_in_a_policy_with_rules(workspace: Path) -> None:
    store(failed("shell rules"))
    assert prepared(workspace, policy="edits").proof.proof == "probed"
    with pytest.raises(errors.PolicyNotEnforceable, match="shell"):
        prepared(workspace, policy=Policy(shell_rules=("allow git status",)))


def test_another_default_model_must_be_named(workspace: Path) -> None:
    store(ProbeCheck("default", False, "gemini-dear (known: gemini-cheap)", "default model"))
    with pytest.raises(errors.NotProven, match="gemini-dear"):
        prepared(workspace)
    assert prepared(workspace, model="gemini-2.5-flash").proof.proof == "probed"


def test_files_that_were_tested_need_no_probe(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = registry.find(AGENT)
    digest = program_files.digest(agent, programs.locate(agent, str(PROGRAM)))
    package = msgspec.structs.replace(agent.package, digests={digest: "0.61.0"})

    def find(_name: str) -> AgentSpec:
        return msgspec.structs.replace(agent, package=package)

    monkeypatch.setattr("corral._system.config.find_agent", find)
    assert prepared(workspace, probe="require").proof.proof == "tested"


def test_a_command_of_ones_own_cannot_be_probed(workspace: Path) -> None:
    plain = Path(__file__).parents[1] / "programs" / "plain_acp.py"
    proof = prepare(f"{plain}", {"cwd": workspace, "sandbox": "off"}).proof
    assert (proof.proof, proof.needs_probe) == ("untested", False)


async def test_the_result_says_what_is_known(workspace: Path) -> None:
    store()
    options = scripted_options(workspace)
    result = await corral.run(AGENT, GOOD_RUN, **options)
    assert result.proof == "probed"
    options["probe"] = "trust"
    trusted = await corral.run(AGENT, GOOD_RUN, **options)
    assert trusted.proof == "trusted"
