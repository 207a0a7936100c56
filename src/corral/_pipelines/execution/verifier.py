"""The verifier of an attempt: what decides whether the agent has done its task.

It is a check of ``corral._verification``: it runs when the agent and all its processes have ended,
in a clean tree of what the agent left. Files that judge are as before the run, unless the task
brings its own. Those are put into the clean tree only, so an agent cannot read or change them. It
is a command: exit code 0 passes, any other one fails. ``CORRAL_ANSWER`` names a file with the
agent's answer.

Held-out scenarios may be added. If a check cannot be made, there is no verdict: the shell does not
find the command (exit code 127 or 126), or a signal kills it. A verifier that does not end in its
time is ended, and the attempt has failed: programs that never end are wrong.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

import msgspec

from corral._pipelines.attempts import Verdict, Verifier
from corral._pipelines.execution import node_options
from corral._pipelines.execution.handlers import NodeContext
from corral._pipelines.execution.node_options import sandbox_for
from corral._system import fs
from corral._system.clock import Stopwatch
from corral._system.environment import QUIET
from corral._system.sandbox.sandbox import Sandbox
from corral._system.threads import in_thread
from corral._verification.check import Check, CheckContext
from corral._verification.command_check import CommandCheck
from corral._verification.verification import (
    CheckSetting,
    Verification,
    VerifyOptions,
    find_gaps,
)
from corral.errors import StorageFailed
from corral.policy import Policy
from corral.receipt import CheckKind, Evidence, Outcome, Receipt, RunFacts
from corral.result import Result
from corral.values import JsonObject

MAX_OUTPUT = 200_000
"""Characters of the verifier's output that are stored."""


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """What the checks of an attempt have found."""

    verdict: Verdict
    reason: str = ""
    exit_code: int | None = None
    output: str = ""
    seconds: float = 0.0


def digest_of(path: Path) -> str:
    """The digest of a file, or of the files of a folder with their names. Raises ``OSError``, also
    for what is neither a regular file nor a link."""
    digest = blake2b(digest_size=12)
    for file in _files(path):
        name = file.relative_to(path) if file != path else Path(path.name)
        if file.is_symlink():
            content = os.readlink(file).encode()
        else:
            with fs.open_regular(file) as opened:
                content = opened.read()
        digest.update(f"{name}\0{len(content)}\0".encode("utf-8", "surrogateescape") + content)
    return digest.hexdigest()


def _files(path: Path) -> Iterator[Path]:
    if not path.is_dir() or path.is_symlink():
        yield path
        return
    for folder, names, files in os.walk(path):
        links = [name for name in names if Path(folder, name).is_symlink()]
        names[:] = sorted(name for name in names if name not in links and name != "__pycache__")
        yield from (Path(folder, name) for name in sorted([*files, *links]))


class AttemptCheck(msgspec.Struct, frozen=True, kw_only=True):
    """The verifier as a check."""

    verifier: Verifier
    own: Path
    """An empty folder for its files."""

    @property
    def kind(self) -> CheckKind:
        return "command"

    @property
    def name(self) -> str:
        return self.verifier.command

    @property
    def reads_files(self) -> bool:
        return True

    def describe(self) -> JsonObject:
        return {}

    async def run(self, context: CheckContext) -> Evidence:
        """Raises ``StorageFailed`` if its files cannot be copied."""
        verifier, own = self.verifier, self.own
        answer = "" if context.result is None else context.result.text
        if not await in_thread(_put_files, verifier, context.host_folder, answer, own):
            reason = f"{verifier.tests} has changed since the comparison was started"
            return Evidence(kind=self.kind, name=self.name, outcome="missing", reason=reason)
        check = CommandCheck(
            argv=("sh", "-c", verifier.command),
            command=verifier.command,
            timeout=verifier.timeout,
            env={**QUIET, "CORRAL_ANSWER": str(own / "answer.txt")},
            tail=MAX_OUTPUT,
        )
        found = await check.run(context)
        if found.reason:
            found = msgspec.structs.replace(found, reason=f"the verifier {found.reason}")
        return found


def verification_of(work: NodeContext, verifier: Verifier, own: Path, trees: Path) -> Verification:
    """What verifies an attempt. ``own`` and ``trees`` are empty folders: for the verifier's files,
    and the states of the workspace. Raises ``ConfigError`` for scenarios that cannot be read."""
    checks: list[Check] = []
    if verifier.command:
        checks.append(AttemptCheck(verifier=verifier, own=own))
    if verifier.scenarios:
        from corral._verification.scenarios.scenario_check import scenarios

        judge = verifier.judge or None
        checks.append(scenarios(verifier.scenarios, threshold=verifier.threshold, judge=judge))
    options = VerifyOptions(
        checks=tuple(checks),
        verify_from=verifier.verify_from,
        work=verifier.work,
        judge_files=verifier.judge_files,
        put_back=verifier.put_back,
        verify_with=verifier.verify_with,
        timeout=verifier.timeout,
        commands=(verifier.command,) if verifier.command else (),
        provides_all=True,  # a worktree has no dependencies before the agent installs them
    )
    return Verification(options, str(work.workspace), trees)


async def judge(
    work: NodeContext, verifier: Verifier, verification: Verification, result: Result, own: Path
) -> Judgement:
    """Run the checks: in the sandbox if the agent was, or if the options ask for it. Raises
    ``CorralError`` if that is not possible."""
    stopwatch = Stopwatch()
    resources = work.resources
    setting = CheckSetting(
        sandbox=_sandbox(work, verifier, result, own),
        budget=node_options.budget_of(work),
        env=resources.command_env(work),
        pass_env=resources.pass_env(work),
        secrets=resources.secrets,
    )
    facts = RunFacts(run_id=result.run_id, agent=result.agent, status=result.status)
    receipt = await verification.conclude(result, facts, setting)
    evidence = receipt.evidence
    return Judgement(
        verdict=_verdict(receipt),
        reason=_reason(receipt),
        output="".join(f"{each.output}\n" for each in evidence if each.output),
        exit_code=evidence[0].exit_code,
        seconds=round(stopwatch.seconds, 3),
    )


def _verdict(receipt: Receipt) -> Verdict:
    outcomes = {_outcome(each) for each in receipt.evidence}
    if "failed" in outcomes:
        return "failed"
    if "missing" in outcomes:
        return "missing"
    return "failed" if _other_gaps(receipt) else "passed"


def _outcome(evidence: Evidence) -> Outcome:
    """A command that exits with 0, and shows too few tests that passed, is not missing: the work
    may have made it so."""
    is_shown = evidence.outcome == "missing" and evidence.exit_code == 0
    return "failed" if is_shown else evidence.outcome


def _other_gaps(receipt: Receipt) -> list[str]:
    """What is missing besides the evidence: a program that the run changed, a link that leads out
    of the tree."""
    of_evidence = find_gaps(receipt.evidence)
    return [gap for gap in receipt.gaps if gap not in of_evidence]


def _reason(receipt: Receipt) -> str:
    reasons: list[str] = []
    for each in receipt.evidence:
        if not each.passed:
            end = each.output[-300:] if _outcome(each) == "missing" else ""
            reasons.append(f"{each.reason}: {end}" if end else each.reason)
    return "; ".join([*reasons, *_other_gaps(receipt)])


def _put_files(verifier: Verifier, workspace: Path, answer: str, own: Path) -> bool:
    """Copy the verifier's files. False: they have changed since the comparison was started."""
    tests = Path(verifier.tests)
    try:
        if verifier.tests and digest_of(tests) != verifier.digest:
            return False
    except OSError as error:
        raise StorageFailed(f"the tests cannot be read: {error}") from error
    try:
        own.mkdir(parents=True, exist_ok=True)
        (own / "answer.txt").write_text(answer, "utf-8", "replace")
        if verifier.tests:
            copy_into(tests, workspace / verifier.target, workspace)
    except OSError as error:
        raise StorageFailed(f"the verifier cannot be copied: {error}") from error
    return True


def _sandbox(work: NodeContext, verifier: Verifier, result: Result, own: Path) -> Sandbox | None:
    """The sandbox of the verifier; None if it runs without one. Raises ``SandboxFailed``."""
    if not verifier.is_confined:
        return sandbox_for(work, (str(own),), default="auto" if result.sandbox else None)
    policy = node_options.policy_of(work) or Policy()
    # A stranger's command gets the workspace and the permitted network, and nothing else of the
    # policy: neither the repository's .git nor further folders.
    network, hosts = policy.network, policy.network_hosts
    policy = Policy(write="allow", shell="allow", network=network, network_hosts=hosts)
    return sandbox_for(work, (str(own),), forced="require", policy=policy)


def copy_into(source: Path, target: Path, root: Path) -> None:
    """Copy a file or the files of a folder to ``target``, which is in the folder ``root``. What is
    there is replaced. Links that an agent made in the way are removed, never followed. Raises
    ``OSError``, also for a path that leads out of ``root``."""
    for file in _files(source):
        copy = target if file == source else target / file.relative_to(source)
        if ".." in copy.relative_to(root).parts:
            raise OSError(errno.EINVAL, "leads out of the workspace", str(copy))
        folder = root
        for part in copy.relative_to(root).parts[:-1]:
            folder = folder / part
            if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
                folder.unlink()
            folder.mkdir(exist_ok=True)
        if copy.is_dir() and not copy.is_symlink():
            shutil.rmtree(copy)
        else:
            copy.unlink(missing_ok=True)
        shutil.copy2(file, copy, follow_symlinks=False)
