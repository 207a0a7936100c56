"""Traps in git folders: each leaves a file that names it if git obeys it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

HOOKS = (
    *("applypatch-msg", "pre-commit", "prepare-commit-msg", "commit-msg", "post-commit"),
    *("post-checkout", "post-merge", "pre-push", "pre-receive", "update", "post-receive"),
    *("post-update", "reference-transaction", "post-index-change", "fsmonitor-watchman"),
    *("proc-receive", "push-to-checkout", "pre-auto-gc", "post-rewrite"),
)


def git(folder: Path, *words: str) -> str:
    """As the user calls it."""
    who = ("-c", "user.name=t", "-c", "user.email=t@localhost")
    done = subprocess.run(["git", *who, *words], cwd=folder, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode("utf-8", "surrogateescape").strip()


def make_repository(folder: Path) -> Path:
    """With two files and an ignore file, committed."""
    folder.mkdir(parents=True, exist_ok=True)
    git(folder, "init", "-q", "-b", "main")
    (folder / "file").write_text("one\n")
    (folder / "dir").mkdir()
    (folder / "dir" / "inner").write_text("inner\n")
    (folder / ".gitignore").write_text("*.log\nbuild/\n")
    git(folder, "add", "--all")
    git(folder, "commit", "-q", "-m", "first")
    return folder


class Traps:
    """Programs that note that they ran."""

    def __init__(self, place: Path) -> None:
        self.programs = place / "programs"
        self.marks = place / "marks"
        self.programs.mkdir(parents=True)
        self.marks.mkdir()

    def program(self, name: str, *, copies: bool = True) -> str:
        """``copies``: it gives back what it reads, as a filter does."""
        path = self.programs / name
        path.write_text(f"#!/bin/sh\ntouch '{self.marks}/{name}'\n{'cat' if copies else ''}\n")
        path.chmod(0o755)
        return str(path)

    @property
    def ran(self) -> list[str]:
        return sorted(os.listdir(self.marks))

    def forget(self) -> None:
        for each in self.marks.iterdir():
            each.unlink()

    def settings(self) -> str:
        """A configuration in which everything that can be a program is one."""
        run = self.program
        return f"""
[core]
    fsmonitor = {run("fsmonitor")}
    hooksPath = {self._hooks()}
    sshCommand = {run("ssh")}
    pager = {run("pager")}
    editor = {run("editor")}
    askPass = {run("askpass")}
    gitProxy = {run("proxy")}
    alternateRefsCommand = {run("alternates")}
    attributesFile = {self._attributes()}
[filter "evil"]
    clean = {run("clean")}
    smudge = {run("smudge")}
    required = true
[filter "slow"]
    process = {run("process")}
[diff]
    external = {run("diff")}
[diff "evil"]
    textconv = {run("textconv")}
    command = {run("diff-driver")}
[merge "evil"]
    driver = {run("merge-driver")} %A
[gpg]
    program = {run("gpg")}
[commit]
    gpgSign = true
[gc]
    auto = 1
    recentObjectsHook = {run("gc")}
[credential]
    helper = {run("credential")}
[uploadpack]
    packObjectsHook = {run("pack-objects")}
[protocol]
    allow = always
[protocol "ext"]
    allow = always
[alias]
    add = !{run("alias")}
[remote "origin"]
    url = ext::{run("remote-url")}
    uploadpack = {run("uploadpack")}
    receivepack = {run("receivepack")}
    promisor = true
[submodule]
    recurse = true
[include]
    path = {self._included()}
"""

    def plant(self, git_dir: Path) -> None:
        """Into a git folder that is there."""
        config = git_dir / "config"
        config.write_text(config.read_text() + self.settings())
        (git_dir / "config.worktree").write_text(self.settings())
        (git_dir / "info").mkdir(exist_ok=True)
        (git_dir / "info" / "attributes").write_text("* filter=evil diff=evil merge=evil\n")
        (git_dir / "hooks").mkdir(exist_ok=True)
        for name in HOOKS:
            (git_dir / "hooks" / name).write_text(Path(self.program(f"hook-{name}")).read_text())
            (git_dir / "hooks" / name).chmod(0o755)

    def embed(self, folder: Path) -> None:
        """An embedded repository made of plain files. Its HEAD is a commit that is missing, so
        that git fetches it by running a command."""
        inner, fetch = folder / ".git", self.program("embedded-fetch", copies=False)
        for name in ("objects", "refs/heads"):
            (inner / name).mkdir(parents=True)
        (inner / "HEAD").write_text("1" * 40 + "\n")
        (inner / "config").write_text(
            "[core]\n\trepositoryformatversion = 1\n\tbare = false\n"
            f"\tfsmonitor = {self.program('embedded-fsmonitor', copies=False)}\n"
            "[extensions]\n\tpartialClone = o\n[protocol]\n\tallow = always\n"
            '[protocol "ext"]\n\tallow = always\n'
            f'[remote "o"]\n\turl = "ext::{fetch}"\n\tpromisor = true\n'
        )

    def _hooks(self) -> str:
        place = self.programs / "hooks"
        place.mkdir(exist_ok=True)
        for name in HOOKS:
            (place / name).write_text(Path(self.program(f"hooksPath-{name}")).read_text())
            (place / name).chmod(0o755)
        return str(place)

    def _attributes(self) -> str:
        place = self.programs / "attributes"
        place.write_text("* filter=evil diff=evil merge=evil\n")
        return str(place)

    def _included(self) -> str:
        place = self.programs / "included"
        place.write_text(f"[core]\n\tfsmonitor = {self.program('included-fsmonitor')}\n")
        return str(place)
