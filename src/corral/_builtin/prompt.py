"""The system prompt of the built-in agent, with the instructions of the project for agents."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from corral._models.registry import Family
from corral._system import fs
from corral._system.clock import today
from corral._system.git import scan
from corral.policy import Capability, Policy

BASE = """\
You are a coding agent. You work in the user's workspace with the tools you are given, until the \
task is done, and then answer in a few plain words.

- Look before you change: read the files that matter, search instead of guessing.
- Make the smallest change that does the whole task, in the style of the code around it.
- After a change, check it where you can: run the tests, or read the result.
- When a tool refuses or fails, read what it says. A refused permission is final: do not try to \
get around it; do what you can without it, and say what is missing.
- Do not invent results. If something could not be done, say so.
- Several independent calls belong in one answer: they run at the same time.
- You cannot ask the user questions: decide sensibly, and say what you decided."""

CAPABILITIES: tuple[tuple[str, Capability], ...] = (
    ("reading", "read"),
    ("writing files", "write"),
    ("commands", "shell"),
    ("network", "network"),
)
ALWAYS_READ = "AGENTS.md"
LARGEST_DOCUMENTS = 32 * 1024
"""Bytes of all project documents together."""


def system_prompt(
    *, cwd: Path, model: str, family: Family, policy: Policy, base: str | None, more: str | None
) -> str:
    """The base text, the environment, the permissions, the project documents, the user's text."""
    branch = git_branch(cwd)
    facts = [
        f"Working directory: {cwd}",
        f"Git branch: {branch}" if branch else "Not a git repository",
        f"Platform: {platform.system()} {platform.machine()}",
        f"Date: {today()}",
        f"Model: {model}",
    ]
    labels = {"allow": "allowed", "ask": "asks each time", "deny": "not allowed"}
    permissions = [f"{title}: {labels[policy.verdict(name)]}" for title, name in CAPABILITIES]
    plan = "\nOnly plan: say what you would do, and change nothing." * (policy.mode == "plan")
    sections = [
        base if base is not None else BASE,
        ("<environment>\n" + "\n".join(facts) + "\n</environment>"),
        # To save turns; the policy is enforced elsewhere.
        f"Permissions: {', '.join(permissions)}.{plan}",
    ]
    for path, text in project_documents(cwd, family.documents):
        sections.append(f'<project-document path="{path}">\n{text}\n</project-document>')
    if more:
        sections.append(more)
    return "\n\n".join(sections)


def project_root(cwd: Path) -> Path:
    """The root of the repository; the folder itself if there is no repository."""
    for folder in (cwd, *cwd.parents):
        if fs.exists(folder / ".git"):
            return folder
    return cwd


def project_documents(cwd: Path, names: tuple[str, ...]) -> list[tuple[str, str]]:
    """(path from the root, text) of each document, the outermost first. Unreadable ones are
    skipped; text over the limit is cut and marked."""
    root = project_root(cwd)
    inside = fs.real_path(root) + os.sep
    steps = cwd.relative_to(root).parts
    folders = [root.joinpath(*steps[:depth]) for depth in range(len(steps) + 1)]
    documents: list[tuple[str, str]] = []
    seen: set[str] = set()
    left = LARGEST_DOCUMENTS
    for folder in folders:
        for name in (ALWAYS_READ, *names):
            real = fs.real_path(folder / name)
            # A link out of the repository could put any file of the user into the prompt. A link
            # inside it would repeat a document.
            if real in seen or not real.startswith(inside) or not fs.is_file(real):
                continue
            seen.add(real)
            try:
                with fs.open_regular(real) as file:
                    data = file.read(left + 1)
            except OSError:
                continue
            text = data[:left].decode("utf-8", "ignore").strip()
            if len(data) > left:
                text += f"\n[cut here: over {LARGEST_DOCUMENTS:,} bytes]"
            if text:
                documents.append((str((folder / name).relative_to(root)), text))
                left -= len(text.encode())
            if left <= 0:
                return documents
    return documents


def git_branch(cwd: Path) -> str | None:
    """The branch that is checked out, or the start of a commit's id. git is not started, because it
    would obey the repository's settings."""
    repository = scan.find_repository(cwd)
    if repository is None or repository.head is None:
        return None
    head = repository.head
    return head.removeprefix("refs/heads/") if head.startswith("refs/") else head[:12]
