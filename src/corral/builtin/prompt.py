"""The system prompt of the built-in agent."""

from __future__ import annotations

import platform
import time
from pathlib import Path

from corral.builtin.project_documents import git_branch, project_documents
from corral.models.families import Family
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


def system_prompt(
    *, cwd: Path, model: str, family: Family, policy: Policy, base: str | None, more: str | None
) -> str:
    """Base, environment, permissions, project documents, the user's own text last."""
    sections = [base if base is not None else BASE, _environment(cwd, model), _permissions(policy)]
    for path, text in project_documents(cwd, family.documents):
        sections.append(f'<project-document path="{path}">\n{text}\n</project-document>')
    if more:
        sections.append(more)
    return "\n\n".join(sections)


def _environment(cwd: Path, model: str) -> str:
    branch = git_branch(cwd)
    facts = [
        f"Working directory: {cwd}",
        f"Git branch: {branch}" if branch else "Not a git repository",
        f"Platform: {platform.system()} {platform.machine()}",
        f"Date: {time.strftime('%Y-%m-%d')}",
        f"Model: {model}",
    ]
    return "<environment>\n" + "\n".join(facts) + "\n</environment>"


def _permissions(policy: Policy) -> str:
    """Tells the model its permissions, to save turns; the policy is enforced elsewhere."""
    labels = {"allow": "allowed", "ask": "asks each time", "deny": "not allowed"}
    named: tuple[tuple[str, Capability], ...] = (
        ("reading", "read"),
        ("writing files", "write"),
        ("commands", "shell"),
        ("network", "network"),
    )
    verdicts = ", ".join(f"{name}: {labels[policy.verdict(each)]}" for name, each in named)
    plan = "\nOnly plan: say what you would do, and change nothing."
    return f"Permissions: {verdicts}.{plan if policy.mode == 'plan' else ''}"
