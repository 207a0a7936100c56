"""Merge queues of random repositories that are killed at named points.

``merge_kills.py FOLDER FIRST COUNT``: a scenario is a repository, the state of its checkout, and
calls of the merge queue. A call runs in a forked process, which kills itself with SIGKILL when it
comes to its point for the n-th time; between two calls the user works. What must be true is
computed with git alone, by what is in the files: all that a call has reported, or a queue says, as
merged is in the target or in the branch for a target that is checked out; a branch that has failed
was reported as failed by a call that ended with 1; commits of the user stay. Each scenario that is
wrong is a line of JSON.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

FOLDER, FIRST, COUNT = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
os.environ["CORRAL_HOME"] = str(FOLDER / "home")

import msgspec  # noqa: E402

from corral import merge_queue  # noqa: E402
from corral._merging import merger, queue  # noqa: E402
from corral._system.git import repository, source_repository, tree, worktree  # noqa: E402
from corral.errors import CorralError  # noqa: E402

INTO, STAGING = "main", "corral/merge/main"
GATE = "! test -e broken"
PLACES: dict[str, tuple[Any, str, str]] = {
    "stores": (queue.QueueStore, "write", ""),
    "moves a branch": (source_repository.Repository, "advance", ""),
    "moves the checkout": (worktree, "update_checkout", ""),
    "writes files": (tree, "update", ""),
    "reads the tree": (repository, "run", "read-tree"),
    "moves the branch of the checkout": (repository, "run", "update-ref"),
    "makes a commit": (repository, "commit", ""),
    "runs the gate": (merger.Merger, "_run_gates", ""),
    "puts a branch on the tip": (merger, "rebase", ""),
}
"""What a call does: where the function is, and the first word of git's command."""
POINTS = [(name, after) for name in PLACES for after in (False, True)]
CHECKOUTS = ("clean", "dirty", "elsewhere")


def git(*words: str, check: bool = True) -> str:
    identity = ("-c", "user.name=t", "-c", "user.email=t@localhost")
    done = subprocess.run(
        ["git", *identity, "-C", str(FOLDER / "repo"), *words],
        capture_output=True, text=True, check=check, timeout=60,
    )  # fmt: skip
    return done.stdout.strip()


def kill_at(name: str, after: bool, count: int) -> None:
    """This process kills itself before or after it does this for the n-th time."""
    owner, attribute, word = PLACES[name]
    original: Callable[..., Any] = getattr(owner, attribute)
    left = [count]

    def is_due(words: tuple[object, ...]) -> bool:
        left[0] -= not word or words[1:2] == (word,)
        return not left[0]

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def call(*words: object, **options: object) -> object:
        if (due := is_due(words)) and not after:
            die()
        answer = original(*words, **options)
        if due:
            die()
        return answer

    async def call_later(*words: object, **options: object) -> object:
        if (due := is_due(words)) and not after:
            die()
        answer = await original(*words, **options)
        if due:
            die()
        return answer

    setattr(owner, attribute, call_later if attribute == "_run_gates" else call)


class Scenario:
    """A random repository, and what its branches change."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.name, self.after = POINTS[seed % len(POINTS)]
        self.checkout = CHECKOUTS[seed // len(POINTS) % len(CHECKOUTS)]
        self.count = self.chance.choice((1, 1, 1, 2, 2, 3, 4, 6))
        self.changes: dict[str, dict[str, str]] = {}
        self.failing: set[str] = set()
        self.reports: list[merge_queue.MergeReport] = []
        self.wrong: list[str] = []
        self.own_commits: list[str] = []
        self.seen: list[str] = []
        self.killed = False

    def prepare(self) -> None:
        shutil.rmtree(FOLDER, ignore_errors=True)
        (FOLDER / "repo").mkdir(parents=True)
        git("init", "-q", "-b", INTO)
        for path in ("shared", "own"):
            (FOLDER / "repo" / path).write_text("0\n")
        git("add", "--all")
        git("commit", "-qm", "first")
        for number in range(self.chance.randint(2, 4)):
            kind = self.chance.choice(("own", "own", "same", "broken", "merged"))
            files = {f"file-{number}": f"{number}\n"}
            if kind == "same":
                files = {"same": "same\n"}  # the change of another branch, too
            elif kind == "broken":
                files["broken"] = "x\n"
            self.add(f"work/{number}", files, fails=kind == "broken")
        if self.chance.random() < 0.3:
            for number in (8, 9):
                self.add(f"work/{number}", {"shared": f"{number}\n"}, fails=number == 9)
        if self.checkout == "elsewhere":
            git("checkout", "-q", "-b", "other")
        elif self.checkout == "dirty":
            (FOLDER / "repo" / "own").write_text("mine\n")

    def add(self, branch: str, files: dict[str, str], *, fails: bool) -> None:
        git("checkout", "-q", "-b", branch, INTO)
        for path, text in files.items():
            (FOLDER / "repo" / path).write_text(text)
            git("add", path)
        git("commit", "-qm", f"work of {branch}")
        git("checkout", "-q", INTO)
        self.changes[branch] = files
        if fails:
            self.failing.add(branch)

    def call(self, branches: list[str], *, kill: bool) -> None:
        """A call of the merge queue in its own process, and what it reports."""
        output = FOLDER / "report.json"
        output.unlink(missing_ok=True)
        child = os.fork()
        if not child:
            code = 70
            try:
                if kill:
                    kill_at(self.name, self.after, self.count)
                report = merge_queue.run_sync(
                    branches, into=INTO, gates=[GATE] if branches else [], cwd=FOLDER / "repo"
                )
                output.write_bytes(msgspec.json.encode(report))
                code = 0
            except CorralError as error:
                output.write_text(f"{error.code}: {error.message}")
                code = 2
            finally:
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        self.seen.append(f"call {code}")
        if code == -signal.SIGKILL:
            self.killed = True
        elif code == 0:
            report = msgspec.json.decode(output.read_bytes(), type=merge_queue.MergeReport)
            self.reports.append(report)
            self.check(report)
        else:
            text = output.read_text() if output.exists() else ""
            if "nothing is queued" not in text:
                self.wrong.append(f"a call ended with {code}: {text}")

    def has(self, reference: str, branch: str) -> bool:
        """Whether a commit has the change of a branch."""
        return all(
            git("show", f"{reference}:{path}", check=False) == text.strip()
            for path, text in self.changes[branch].items()
        )

    def is_there(self, branch: str) -> bool:
        return self.has(INTO, branch) or self.has(STAGING, branch)

    def check(self, report: merge_queue.MergeReport) -> None:
        for entry in report.entries:
            if entry.state == "merged" and not self.is_there(entry.branch):
                self.wrong.append(f"{entry.branch} is reported as merged, and is not there")
            elif entry.state == "failed" and entry.branch not in self.failing:
                self.wrong.append(f"{entry.branch} failed: {entry.reason}")
            elif entry.is_open:
                self.wrong.append(f"{entry.branch} is {entry.state} at the end")

    def act(self) -> None:
        """What the user does between two calls."""
        own, kind = FOLDER / "repo" / "own", self.chance.randrange(8)
        if kind == 0:
            self.commit()
        elif kind == 1:
            git("checkout", "-q", "--", "own")
        elif kind == 2:
            own.write_text(f"{self.chance.random()}\n")
        elif kind == 3:
            git("branch", "-D", STAGING, check=False)
        elif kind == 4:
            git("stash", "-q", check=False)
            git("checkout", "-q", INTO, check=False)
        elif kind == 5:
            own.write_text(f"{self.chance.random()}\n")
            self.commit()
        elif kind == 6:
            git("checkout", "-q", "--detach", check=False)
        self.seen.append(f"user {kind}")

    def commit(self) -> None:
        git("commit", "-qam", "mine", check=False)
        if git("symbolic-ref", "-q", "HEAD", check=False) == f"refs/heads/{INTO}":
            self.own_commits.append(git("rev-parse", "HEAD"))

    def run(self) -> None:
        self.prepare()
        names = [*self.changes]
        self.call(names, kill=True)
        queued = (FOLDER / "home" / "merges").exists()
        remaining = [] if queued and [*(FOLDER / "home" / "merges").glob("*/queue.json")] else names
        for _ in range(self.chance.randint(0, 3)):
            self.act()
            if self.chance.random() < 0.6:
                self.call(remaining, kill=self.chance.random() < 0.3)
        # The user puts the own work away, and calls until all is done.
        git("checkout", "-q", "--", ".", check=False)
        git("checkout", "-q", INTO, check=False)
        if git("status", "--porcelain", "--untracked-files=no"):
            self.commit()
        for _ in range(2):
            self.call(remaining, kill=False)
        self.check_end()

    def check_end(self) -> None:
        for commit in self.own_commits:
            if git("merge-base", commit, INTO, check=False) != commit:
                self.wrong.append(f"the user's commit {commit[:12]} is lost")
        failed = {
            entry.branch for report in self.reports for entry in report.entries
            if entry.state == "failed" and not report.ok
        }  # fmt: skip
        for stored in filter(None, (store.read() for store in queue.all_queues())):
            for entry in stored.entries:
                if entry.state == "merged" and not self.has(INTO, entry.branch):
                    self.wrong.append(f"{entry.branch} is merged in the queue only")
                elif entry.is_open:
                    self.wrong.append(f"{entry.branch} is {entry.state}")
        for branch in self.changes:
            if branch in self.failing:
                if branch not in failed:
                    self.wrong.append(f"{branch} has failed, and no call has said so")
            elif not self.has(INTO, branch):
                self.wrong.append(f"{branch} is lost")


def main() -> None:
    killed = 0
    for seed in range(FIRST, FIRST + COUNT):
        scenario = Scenario(seed)
        scenario.run()
        killed += scenario.killed
        if scenario.wrong:
            place = f"{'after' if scenario.after else 'before'} it {scenario.name}"
            facts = {"seed": seed, "killed": f"{place}, time {scenario.count}"}
            facts |= {"checkout": scenario.checkout, "calls": " · ".join(scenario.seen)}
            print(json.dumps({**facts, "wrong": scenario.wrong}), flush=True)
    print(json.dumps({"scenarios": COUNT, "killed": killed}))


if __name__ == "__main__":
    main()
