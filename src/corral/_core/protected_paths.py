"""File names that no agent may write unless the policy is unlimited.

Writing one of these is more than an edit: a program executes or follows it later, without any
further action of the user. ``.git/hooks/pre-commit`` runs at the next commit, and
``.claude/settings.json`` can start a command when that agent starts.

This is the only list. Agents whose own rules judge paths derive their rules from it: as globs
(``globs``), as a regular expression (``regex``) or by calling ``protection_of``. Paths are judged
relative to the workspace (or to the writable folder that contains them), after links were
resolved (``corral._system.path_guard``): the workspace itself may be below ``.claude/worktrees``.

Documents that agents read (``AGENTS.md``, ``CLAUDE.md``, ``GEMINI.md``) and files that run only
when the user runs them (``Makefile``, ``package.json``, sources) are ordinary files and not listed.
A patch that no person has seen may not change some of these either (``UNATTENDED``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import TypeAlias

import msgspec


class Protection(msgspec.Struct, frozen=True):
    """A group of protected names, and why they are protected."""

    reason: str
    names: tuple[str, ...]
    """Each is one or more path components, separated by ``/``. ``*`` stands for any characters
    within a component. A name matches at any depth and covers everything below it."""


_Pattern: TypeAlias = tuple[Protection, tuple[str, ...]]

GROUPS: tuple[Protection, ...] = (
    Protection(
        "git runs programs that are named there",
        (".git", ".git.", "git~1", ".gitconfig", ".config/git"),
    ),
    Protection(
        "a coding agent obeys it: settings, hooks, tool servers, saved memory",
        (
            ".agents",
            ".aider*",
            ".claude",
            ".claude.json",
            "CLAUDE.local.md",
            ".cline*",
            ".codex",
            ".continue",
            ".copilot",
            ".cursor",
            ".cursorrules",
            ".gemini",
            ".github/agents",
            ".github/copilot*",
            ".github/hooks",
            ".github/mcp.json",
            ".github/skills",
            ".goose",
            ".goosehints",
            ".kiro",
            ".mcp.json",
            ".opencode",
            "opencode.json",
            "opencode.jsonc",
            ".pi",
            ".qwen",
            ".roo",
            ".roomodes",
            ".windsurf*",
        ),
    ),
    Protection("corral obeys it", ("corral.toml", ".corral")),
    Protection(
        "an editor obeys it when it opens the folder",
        (".vscode", ".idea", ".zed", ".devcontainer", ".devcontainer.json"),
    ),
    Protection("it runs at the next git command", (".husky", ".githooks")),
    Protection(
        "a shell or a login runs or obeys it",
        (
            ".bash_*",
            ".bashrc",
            ".config/fish",
            ".envrc",
            ".kshrc",
            ".login",
            ".profile",
            ".ripgreprc",
            ".ssh",
            ".zlog*",
            ".zprofile",
            ".zshenv",
            ".zshrc",
        ),
    ),
)

UNATTENDED: tuple[Protection, ...] = (
    Protection(
        "a CI system runs or obeys it, with rights of its own",
        (
            ".github",
            ".gitlab",
            "*.gitlab-ci.yml",
            ".forgejo",
            ".gitea",
            ".circleci",
            "circle.yml",
            ".travis.yml",
            "*jenkinsfile*",
            ".azure*",
            "azure-pipelines*",
            ".vsts*",
            "bitbucket-pipelines.yml",
            ".buildkite",
            "buildkite.y*ml",
            ".drone*",
            ".woodpecker*",
            "*appveyor.yml",
            ".cirrus*",
            ".teamcity",
            ".semaphore",
            "wercker.yml",
            "*codefresh*",
            "buildspec*",
            "appspec.y*ml",
            "cloudbuild*",
            "*bitrise.yml",
            "*codemagic.yaml",
            "ci_scripts",
            "buddy.yml",
            ".buddy",
            ".tekton",
            "*.gocd.*",
            "screwdriver.yaml",
            "*zuul.yaml",
            "*zuul.d",
            ".prow*",
            ".ci-operator.yaml",
            ".build.yml",
            ".builds",
            "*shippable.yml",
            ".vela.y*ml",
            "*packit.y*ml",
            ".packit",
            ".copr",
            ".obs",
            ".cirun.yml",
            "dagger.json",
            ".dagger",
            ".rultor.yml",
            ".scrutinizer.yml",
            ".styleci.yml",
            ".hound.yml",
            ".codeclimate.y*ml",
            ".dependabot",
            ".whitesource",
            "bors.toml",
            "*kodiak.toml",
            ".harness",
            "earthfile",
            "netlify.toml",
            "vercel.json",
            "render.yaml",
            "app.json",
            "procfile",
            "fly.toml",
            "wrangler.*",
            ".readthedocs*",
            "atlantis.yaml",
            ".spacelift",
            ".pre-commit-*",
            "*lefthook*",
            ".lintstagedrc*",
            ".overcommit.yml",
            "*renovate*.json*",
            ".renovaterc*",
            ".mergify*",
            "*codecov.y*ml",
            "sonar-project.properties",
            ".sonarcloud.properties",
            ".snyk",
            ".releaserc*",
            ".goreleaser*",
            ".changeset",
            "dangerfile*",
            "codeowners",
        ),
    ),
    Protection(
        "coding agents read it as instructions",
        (
            "agent.md",
            "agents.md",
            "agents.override.md",
            "claude.md",
            "codex.md",
            "copilot.md",
            "crush.md",
            "gemini.md",
            "qwen.md",
            "replit.md",
            "skill.md",
            "warp.md",
        ),
    ),
    Protection(
        "a coding agent or a review service obeys it",
        (
            ".agent",
            ".aiassistant",
            ".amazonq",
            ".amp*",
            ".augment*",
            ".builder*",
            ".codebuddy",
            ".codeium*",
            ".cody",
            ".continue*",
            "*coderabbit*",
            "*crush.json",
            ".crush*",
            ".devin*",
            "*ellipsis.y*ml",
            ".factory",
            ".firebender*",
            ".gitpod*",
            ".goose*",
            "greptile.json",
            ".gptme*",
            "gptme.toml",
            ".idx",
            ".jules",
            ".junie",
            ".kilocode*",
            ".kiro*",
            ".lingma",
            "mcp.json",
            ".mentat*",
            ".ona",
            ".openhands*",
            ".plandex*",
            ".pr_agent.toml",
            ".qoder",
            ".replit",
            ".roo*",
            ".ruler",
            ".rules",
            ".rulesync*",
            ".sourcegraph",
            "*sweep.yaml",
            ".tabnine*",
            ".trae*",
            ".void*",
            ".warp",
            ".zencoder",
        ),
    ),
    Protection(
        "a package manager obeys it, with its credentials",
        (
            ".npmrc",
            ".pnpmfile.cjs",
            ".yarnrc*",
            ".yarn",
            ".bundle",
            ".cargo",
            ".mvn",
            ".pypirc",
            "bunfig.toml",
            "nuget.config",
            "pip.conf",
        ),
    ),
    Protection(
        "git changes how it treats other files",
        (".gitattributes", ".gitmodules", ".lfsconfig"),
    ),
)
"""Further names that a patch which no person has seen may not change."""

NAMES: tuple[str, ...] = tuple(name for group in GROUPS for name in group.names)


class Link(msgspec.Struct, frozen=True):
    """A symbolic link that leads to where an agent may not write, and perhaps not read."""

    path: str
    """Absolute, of the link itself."""
    target: str
    """Where it leads, all links resolved; the file need not exist."""
    readable: bool
    """The target is in the workspace or in a folder that may be read."""


class Links(msgspec.Struct, frozen=True):
    """The links of the workspace and its further folders that lead out of the writable area."""

    found: tuple[Link, ...] = ()
    complete: bool = True
    """False where a folder could not be listed or there were too many files: there may be more."""
    aliases: tuple[str, ...] = ()
    """Links to folders inside the workspace. They give other names to files, by which a rule for
    the path of a link could be evaded."""
    unwritable: frozenset[str] | None = frozenset()
    """The names of the files in protected folders and in folders that may only be read; None if
    there are too many."""

    @property
    def unreadable(self) -> tuple[Link, ...]:
        """The links that lead to where the agent may not read."""
        return tuple(link for link in self.found if not link.readable)


def protection_of(path: str) -> Protection | None:
    """The group that protects this path, or None. ``path`` is relative to the workspace or
    absolute; its components are compared without regard to case, as some file systems do."""
    return _find(path, _PATTERNS)


def unattended_protection_of(path: str) -> Protection | None:
    """As ``protection_of``, for a change that no person has seen: also ``UNATTENDED``."""
    return _find(path, (*_PATTERNS, *_UNATTENDED_PATTERNS))


def is_instruction(path: str) -> bool:
    """Whether coding agents read a file of this name as instructions."""
    return path.rpartition("/")[2].casefold() in _INSTRUCTIONS


def _find(path: str, patterns: Iterable[_Pattern]) -> Protection | None:
    parts = [part for part in path.casefold().split("/") if part not in ("", ".")]
    for group, pattern in patterns:
        size = len(pattern)
        for at in range(len(parts) - size + 1):
            if all(map(fnmatchcase, parts[at : at + size], pattern)):
                return group
    return None


def is_protected(path: str) -> bool:
    """Whether a protected name is a component of this path."""
    return protection_of(path) is not None


def globs(*, below: bool = True, any_case: bool = False) -> tuple[str, ...]:
    """``**/.git`` and, with ``below``, ``**/.git/**`` for each name. ``any_case`` writes each
    letter as a class (``[gG]``), for matchers that regard case."""
    found: list[str] = []
    for name in NAMES:
        pattern = _in_any_case(name) if any_case else name
        found.append(f"**/{pattern}")
        if below:
            found.append(f"**/{pattern}/**")
    return tuple(found)


def regex() -> str:
    """A regular expression for a path of which a component is protected, to be searched for:
    ``(?:^|/)(?:…)(?:/|$)``. It uses only what Python, JavaScript, Go and Rust agree on, and needs
    no flag for case. ``^`` and ``$`` are the ends of the path; replace them to find a path in a
    longer text."""
    # Not re.escape: in JavaScript it is an error to escape what needs no escape.
    names = "|".join(_in_any_case(name, {"*": "[^/]*", ".": r"\."}) for name in NAMES)
    return f"(?:^|/)(?:{names})(?:/|$)"


def _in_any_case(name: str, special: Mapping[str, str] = {}) -> str:
    return "".join(f"[{c.lower()}{c.upper()}]" if c.isalpha() else special.get(c, c) for c in name)


def _patterns(groups: Iterable[Protection]) -> tuple[_Pattern, ...]:
    return tuple(
        (group, tuple(name.casefold().split("/"))) for group in groups for name in group.names
    )


_INSTRUCTIONS = {name for name in UNATTENDED[1].names if name.endswith(".md")}
_PATTERNS = _patterns(GROUPS)
_UNATTENDED_PATTERNS = _patterns(UNATTENDED)
