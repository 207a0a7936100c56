"""Repositories with branches for merge queues, and the agent that repairs them."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

from support.repositories import git

PROGRAM = Path(__file__).parents[1] / "programs" / "repairing_acp.py"
GATE = "test -e list && ! cat ids/* | sort | uniq -d | grep ."
"""No id occurs twice."""


def repairing_agent(log: Path, *how: str) -> str:
    """The command line of the agent, which is its name."""
    return shlex.join([sys.executable, "-S", "-E", str(PROGRAM), str(log), *how])


def make_repository(folder: Path) -> Path:
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    (folder / "list").write_text("")
    (folder / "ids").mkdir()
    (folder / "ids" / "main").write_text("main\n")
    git(folder, "add", "--all")
    git(folder, "commit", "-q", "-m", "first")
    return folder


def add_branch(folder: Path, name: str, files: dict[str, str], start: str = "main") -> str:
    """Make a branch with these files in one commit, without touching the work tree; returns the
    commit."""
    index = folder / ".git" / f"index-{name.replace('/', '-')}"
    env = {"GIT_INDEX_FILE": str(index), "PATH": "/usr/bin:/bin:/usr/local/bin"}
    env |= {f"GIT_{who}_{what}": "t" for who in ("AUTHOR", "COMMITTER") for what in ("NAME",)}
    env |= {f"GIT_{who}_EMAIL": "t@localhost" for who in ("AUTHOR", "COMMITTER")}

    def run(*words: str, data: str | None = None) -> str:
        done = subprocess.run(
            ["git", "-C", str(folder), *words],
            env=env, input=data, capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
        return done.stdout.strip()

    run("read-tree", start)
    for path, text in files.items():
        blob = run("hash-object", "-w", "--stdin", data=text)
        run("update-index", "--add", "--cacheinfo", f"100644,{blob},{path}")
    commit = run("commit-tree", run("write-tree"), "-p", start, "-m", f"work of {name}")
    run("update-ref", f"refs/heads/{name}", commit)
    index.unlink()
    return commit


def add_branches(folder: Path, clean: int, textual: int, semantic: int) -> list[str]:
    """Branches that all start at main, which then gets a commit with which they conflict: in the
    text of ``list``, or in the ids. Main is checked out nowhere afterwards."""
    names: list[str] = []
    for number in range(clean):
        names.append(f"work/clean-{number}")
        add_branch(folder, names[-1], {f"files/{number}": f"{number}\n"})
    for number in range(textual):
        names.append(f"work/text-{number}")
        add_branch(folder, names[-1], {"list": f"text-{number}\n"})
    for number in range(semantic):
        names.append(f"work/id-{number}")
        add_branch(folder, names[-1], {f"ids/id-{number}": "taken\n"})
    add_branch(folder, "main", {"list": "main\n", "ids/taken": "taken\n"})
    git(folder, "reset", "-q", "--hard")
    git(folder, "checkout", "-q", "--detach", "main")
    return sorted(names)


def check_result(folder: Path, start: str, names: list[str]) -> None:
    """Every commit of main passes the gate, every branch is there, and its work is on main."""
    commits = git(folder, "rev-list", "--reverse", f"{start}..main").split()
    assert len(commits) == len(names)
    for commit in commits:
        ids = git(folder, "ls-tree", "-r", commit, "ids/").splitlines()
        blobs = [line.split()[2] for line in ids]
        assert len(blobs) == len(set(blobs)), f"{commit} has an id twice"
    listed = git(folder, "for-each-ref", "--format=%(refname:short)", "refs/heads/").split()
    assert sorted(name for name in listed if name != "main") == names
    lines = git(folder, "show", "main:list").splitlines()
    files = git(folder, "ls-tree", "-r", "--name-only", "main").splitlines()
    for name in names:
        kind, _, number = name.removeprefix("work/").rpartition("-")
        found = {
            "clean": f"files/{number}" in files,
            "text": f"text-{number}" in lines,
            "id": f"ids/id-{number}" in files,
        }
        assert found[kind], name
