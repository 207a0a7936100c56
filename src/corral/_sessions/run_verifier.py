"""The verification of a run of a session: what ``corral._verification`` needs to know of it, and
where its receipt is stored."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from hashlib import sha256
from typing import TYPE_CHECKING, TypeVar

import msgspec

from corral._core.nesting import decode_json
from corral._sessions.sandbox import command_sandbox
from corral._system import fs, paths
from corral._system.environment import redactor_of
from corral._system.paths import is_inside
from corral._verification.check import judging_of
from corral._verification.verification import CheckSetting, Verification, VerifyOptions
from corral.errors import CorralError
from corral.events import Done
from corral.receipt import Evidence, Receipt, RunFacts, with_hash
from corral.result import Result
from corral.values import Cost, JsonObject, Usage, add_by_model, as_object, convert_to

if TYPE_CHECKING:
    from corral._sessions.prepared_run import PreparedRun
    from corral._sessions.store import SessionRecord
    from corral._sessions.structured_output import TypedAnswer

TREES = "trees"
"""Where the states of the workspace are stored, in the session's folder."""


class RunVerifier:
    """Of one run, which may be several turns, also of several agents."""

    def __init__(self, prepared: PreparedRun, record: SessionRecord, prompt: str) -> None:
        run = prepared.run
        options = VerifyOptions(
            checks=prepared.checks,
            verify_from=run.verify_from,
            work=run.work,
            judge_files=run.judge_files,
            put_back=run.put_back,
            verify_with=run.verify_with,
            timeout=run.verify_timeout,
            writable=_outside(prepared),
        )
        self._prompt_hash = f"sha256:{sha256(prompt.encode('utf-8', 'replace')).hexdigest()}"
        self._verification = Verification(options, prepared.cwd, record.folder / TREES)
        self.is_concluded: bool = False

    async def begin(self) -> None:
        """Before the agent may change anything. Further calls do nothing."""
        await self._verification.begin()

    async def conclude(
        self,
        prepared: PreparedRun,
        record: SessionRecord,
        result: Result,
        typed: TypedAnswer | None = None,
    ) -> Receipt:
        """The receipt of a run whose last turn has ended. It is stored with the session."""
        return self.keep(prepared, record, await self.judge(prepared, result, typed))

    def keep(self, prepared: PreparedRun, record: SessionRecord, receipt: Receipt) -> Receipt:
        """Store the receipt as that of the run."""
        self.is_concluded = True
        return store_receipt(prepared, record, receipt)

    async def restore(self, receipt: Receipt) -> frozenset[str]:
        """Put the files back to those that a receipt is about. Returns the paths of those that
        differed, from the working directory. Raises ``StorageFailed``."""
        if receipt.after is None:
            return frozenset()
        return await self._verification.restore(receipt.after.tree)

    async def judge(
        self, prepared: PreparedRun, result: Result, typed: TypedAnswer | None = None
    ) -> Receipt:
        """The receipt of the work as it is now. It is not stored."""
        run = _facts(prepared, result, self._prompt_hash)
        if not result.ok:
            return self._verification.unverified(run, f"the run ended as {result.status}")
        setting = CheckSetting(
            sandbox=command_sandbox(prepared),
            budget=prepared.budget,
            env=prepared.run.env,
            pass_env=prepared.run.pass_env,
            secrets=prepared.environment.redacted,
        )
        return await self._verification.conclude(result, run, setting, _schema(typed))


Ended = TypeVar("Ended", Done, Result)


def with_judging(ended: Ended, receipts: Iterable[Receipt]) -> Ended:
    """The same, with what the judging models of these receipts used."""
    for receipt in receipts:
        for spent in judging_of(receipt):
            usage = Usage(input=spent.input_tokens, output=spent.output_tokens)
            by_model = {spent.model: usage} if ended.usage_by_model else {}
            ended = msgspec.structs.replace(
                ended,
                usage=ended.usage + usage,
                usage_by_model=add_by_model(ended.usage_by_model, by_model),
                cost=ended.cost + Cost(usd=spent.cost, source="computed"),
            )
    return ended


def store_receipt(prepared: PreparedRun, record: SessionRecord, receipt: Receipt) -> Receipt:
    """The receipt without secrets and with its hash, which is stored if the session is kept."""
    redactor = redactor_of(prepared.environment)
    if redactor.values:
        data = redactor.clean(msgspec.json.encode(receipt))
        receipt = convert_to(as_object(decode_json(data)), Receipt)
    receipt = with_hash(receipt)
    if prepared.run.keep and not record.is_temporary:
        file = record.receipt_file(receipt.run.run_id)
        with contextlib.suppress(OSError, CorralError):  # the result has it
            paths.write_private(file, msgspec.json.format(msgspec.json.encode(receipt)))
    return receipt


def _outside(prepared: PreparedRun) -> tuple[str, ...]:
    """The policy's folders outside of the workspace, but for the one in which a pipeline stores
    what its node does."""
    folders = [os.path.join(prepared.cwd, path) for path in prepared.run.policy.writable]
    own = prepared.run.env.get("ATTRACTOR_STAGE_DIR")
    folders = [path for path in folders if path != own]
    root = fs.real_path(prepared.cwd)
    return tuple(path for path in folders if not is_inside(fs.real_path(path), root))


def _facts(prepared: PreparedRun, result: Result, prompt_hash: str) -> RunFacts:
    rows: list[JsonObject] = msgspec.to_builtins(prepared.compiled.report)
    return RunFacts(
        run_id=result.run_id,
        agent=result.agent,
        status=result.status,
        agent_version=result.agent_version,
        model=result.model or prepared.run.model,
        prompt_hash=prompt_hash,
        policy=tuple(rows),
        sandbox=result.sandbox,
        usage=result.usage,
        usage_source=result.usage_source,
        cost=result.cost,
        seconds=round(result.duration, 3),
    )


def _schema(typed: TypedAnswer | None) -> Evidence | None:
    if typed is None:
        return None
    name = typed.schema.name
    if typed.is_found:
        return Evidence(kind="schema", name=name, outcome="passed")
    reason = "the answer has no value that fits"
    return Evidence(kind="schema", name=name, outcome="failed", reason=reason)
