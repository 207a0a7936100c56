"""The receipt of a run: the evidence that its work is done, made by corral and not by the agent.

A receipt is one JSON object. Its ``hash`` is the SHA-256 of its canonical JSON without that field:
keys sorted, no spaces, UTF-8. Who edits a receipt and computes the hash again has made another
receipt: ``corral verify`` repeats the checks, and then says what differs.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from corral.values import Cost, Json, JsonObject, Usage, UsageSource

__all__ = [
    "CheckKind", "CleanTreeFacts", "Evidence", "LeftOut", "Outcome", "Receipt", "ReceiptFile",
    "RunFacts", "Scope", "TreeState", "Verdict", "VerifyFrom",
]  # fmt: skip

Verdict: TypeAlias = Literal["verified", "gaps", "unverified"]
"""``gaps``: something is missing or wrong, and the receipt says what. ``unverified``: no evidence
was asked for, or the run failed before any could be made."""
VERDICTS: tuple[Verdict, ...] = ("verified", "gaps", "unverified")
VerifyFrom: TypeAlias = Literal["before", "after"]
"""Where the files that judge the work come from: from before the run, or as the agent left them."""
Scope: TypeAlias = Literal["work", "names"]
"""Which files are as before the run: all that the option ``work`` does not name, or those that
judge by their names."""
CheckKind: TypeAlias = Literal["command", "files", "function", "schema", "scenarios"]
Outcome: TypeAlias = Literal["passed", "failed", "missing"]
"""``missing``: the check could not be made, so it says nothing about the work."""


class Evidence(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one check has found.

    ::

        for evidence in result.receipt.evidence:
            print(evidence.name, evidence.outcome, evidence.reason)
    """

    kind: CheckKind
    name: str
    """What was checked, for a person: ``pytest -q``."""
    outcome: Outcome
    reason: str = ""
    """Why it did not pass: ``exited with 1``."""
    exit_code: int | None = None
    """Of a command; None if a signal or corral ended it."""
    seconds: float = 0.0
    output_hash: str = ""
    """``sha256:…`` of everything that a command wrote to stdout."""
    errors_hash: str = ""
    """The same of stderr."""
    output_bytes: int = 0
    """Bytes of both together."""
    output: str = ""
    """The end of the output, redacted."""
    passed_before: bool | None = None
    """Whether the same check would have passed before the run; None if that is not known."""
    details: JsonObject = {}
    """What else a check of this kind knows."""

    @property
    def passed(self) -> bool:
        return self.outcome == "passed"

    @property
    def complaint(self) -> str | None:
        """What a model reads of a check that did not pass; None if it passed."""
        if self.passed:
            return None
        what = f"`{self.name}` {self.reason}" if self.kind == "command" else self.reason
        if self.output:
            return f"{what}:\n\n```\n{self.output}\n```"
        return f"{what}, without output" if self.kind == "command" else what or self.name


class ReceiptFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file that differs between two states: its mode and the id of its content, as in git.

    ::

        print([file.path for file in result.receipt.changed])
    """

    path: str
    """From the root of the tree. Quoted if it is not UTF-8 (``corral.values.printable_path``)."""
    before: str | None = None
    """None: there was no such file."""
    after: str | None = None
    """None: there is no such file any more."""


class TreeState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The files of the workspace at one moment. Files that git ignores do not count.

    ::

        print(result.receipt.before.commit, result.receipt.after.tree)
    """

    tree: str
    """The id of the git tree."""
    commit: str = ""
    """The current commit of the repository; empty if there is none."""
    uncommitted: tuple[ReceiptFile, ...] = ()
    """How the files differ from that commit."""


class LeftOut(msgspec.Struct, frozen=True):
    """A file or folder that the checks did not see.

    ::

        print([(each.path, each.reason) for each in result.receipt.clean.left_out])
    """

    path: str
    reason: str


class CleanTreeFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The tree in which the checks ran.

    ::

        print(result.receipt.clean.restored, result.receipt.clean.provided)
    """

    tree: str
    """The id of the git tree."""
    restored: tuple[str, ...] = ()
    """Files that judge the work and that the run had changed: they are as before the run. With
    ``put_back``, in the workspace too."""
    left_out: tuple[LeftOut, ...] = ()
    """What the run left and the checks did not see."""
    provided: tuple[str, ...] = ()
    """Ignored folders, such as installed dependencies, that were the same before and after the
    run."""


class RunFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The run that a receipt is about.

    ::

        print(result.receipt.run.agent, result.receipt.run.model, result.receipt.run.seconds)
    """

    run_id: str
    agent: str
    status: str
    agent_version: str | None = None
    model: str | None = None
    """The model that was used, if the agent reports it; else the one that was asked for."""
    prompt_hash: str = ""
    """``sha256:…`` of the prompt."""
    policy: tuple[JsonObject, ...] = ()
    """What was permitted, and what enforced it: the rows of the policy report."""
    sandbox: str | None = None
    """The sandbox of the agent and of the checks."""
    usage: Usage = Usage()
    usage_source: UsageSource = "unknown"
    cost: Cost = Cost()
    seconds: float = 0.0


class Receipt(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was checked when a run had ended, and what was found.

    ::

        result = corral.run_sync(
            "gemini-cli", "Fix the failing test", policy="edits", verify="pytest -q"
        )
        print(result.verdict, result.gaps)
    """

    format: int
    """``stored_formats.RECEIPT``."""
    verdict: Verdict
    gaps: tuple[str, ...] = ()
    """What is missing for ``verified``, one sentence each."""
    created: float
    """Seconds since the epoch."""
    corral: str
    """The version of corral."""
    run: RunFacts
    folder: Literal["repository", "folder"] = "repository"
    """Whether the workspace is in a git repository."""
    inside: str = ""
    """The working directory, from the root of the tree."""
    verify_from: VerifyFrom = "before"
    scope: Scope | None = None
    """None if all files are as the agent left them, or no check reads files."""
    work: tuple[str, ...] = ()
    """The patterns of what the run may have changed, from the working directory."""
    judge_files: tuple[str, ...] = ()
    """The patterns of files that judge, besides corral's own."""
    before: TreeState | None = None
    after: TreeState | None = None
    changed: tuple[ReceiptFile, ...] = ()
    """What differs between them."""
    clean: CleanTreeFacts | None = None
    """None if no check reads files."""
    checks: tuple[JsonObject, ...] = ()
    """With what each check can be repeated, in the order of ``evidence``."""
    evidence: tuple[Evidence, ...] = ()
    hash: str = ""
    """``sha256:…`` of all of this."""


def canonical_json(value: Json) -> bytes:
    """The JSON form that is hashed: the same for equal values."""
    import json  # sorts keys at all depths

    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode("utf-8", "surrogatepass")


def receipt_hash(value: JsonObject) -> str:
    """What the ``hash`` of a receipt with these fields must be."""
    from hashlib import sha256

    rest: JsonObject = {name: each for name, each in value.items() if name != "hash"}
    return f"sha256:{sha256(canonical_json(rest)).hexdigest()}"


def with_hash(receipt: Receipt) -> Receipt:
    fields: JsonObject = msgspec.to_builtins(receipt)
    return msgspec.structs.replace(receipt, hash=receipt_hash(fields))
