"""The list of protected names: as a predicate, as globs and as a regular expression."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.goldens import check_golden

from corral._core.protected_paths import GROUPS, NAMES, globs, is_protected, protection_of, regex

PROTECTED = [
    ".git",
    ".git/config",
    ".git/hooks/pre-commit",
    "sub/.git",
    "sub/deep/.git/HEAD",
    ".GIT/config",
    "./.git/config",
    "sub//.git//config",
    "/work/repo/.git/config",
    ".gemini/settings.json",
    ".claude/settings.local.json",
    "CLAUDE.local.md",
    ".codex/config.toml",
    ".opencode/plugin/x.js",
    "opencode.json",
    "sub/opencode.jsonc",
    ".qwen/settings.json",
    ".clinerules",
    ".clinerules/rule.md",
    ".cline/x",
    ".copilot/config.json",
    ".github/copilot-instructions.md",
    ".github/hooks/x.json",
    ".mcp.json",
    ".pi/extensions/x.ts",
    "corral.toml",
    ".envrc",
    ".vscode/tasks.json",
    ".husky/pre-commit",
    ".bashrc",
    ".ssh/authorized_keys",
    ".config/fish/config.fish",
]
ORDINARY = [
    "",
    ".",
    "a.txt",
    "git/config",
    ".gitignore",
    ".gitattributes",
    ".github/workflows/ci.yml",
    "AGENTS.md",
    "CLAUDE.md",
    "GEMINI.md",
    "docs/.gitkeep",
    "x.git/config",
    "src/hooks/pre-commit",
    "config/fish",
    ".config/app.toml",
    "my.claude",
    ".env",
    "Makefile",
]


@pytest.mark.parametrize("path", PROTECTED)
def test_a_protected_name_protects_itself_and_all_below(path: str) -> None:
    assert is_protected(path)
    assert is_protected(f"some/folder/{path.lstrip('/')}")
    assert is_protected(f"{path}/below")
    assert re.search(regex(), path)


@pytest.mark.parametrize("path", ORDINARY)
def test_other_files_are_not_protected(path: str) -> None:
    assert not is_protected(path)
    assert not re.search(regex(), path)


def test_every_group_has_a_reason() -> None:
    assert all(group.reason and group.names for group in GROUPS)
    found = protection_of("sub/.git/config")
    assert found is not None
    assert "git runs" in found.reason


paths = st.lists(
    st.sampled_from([*NAMES, ".Git", "a", ".gi", "t", ".github", "hooks", ".config", "git", "x."]),
    min_size=1,
    max_size=4,
).map("/".join)


@given(paths)
def test_regex_and_globs_agree_with_the_predicate(path: str) -> None:
    wanted = is_protected(path)
    assert bool(re.search(regex(), path)) == wanted
    # fnmatch's * crosses a slash: that only makes the globs wider, so test the depth by hand.
    patterns = globs(any_case=True)
    assert any(fnmatchcase(f"/{path}", f"/{p[3:]}") or fnmatchcase(f"/{path}", f"*/{p[3:]}")
               for p in patterns) >= wanted  # fmt: skip


def test_the_regex_means_the_same_in_javascript() -> None:
    node = shutil.which("node")
    assert node, "node is needed: the agents are node programs"
    code = (
        "const [re, ...paths] = JSON.parse(require('fs').readFileSync(0));"
        "console.log(JSON.stringify(paths.map(p => new RegExp(re, 'u').test(p))))"
    )
    done = subprocess.run(
        [node, "-e", code],
        input=json.dumps([regex(), *PROTECTED, *ORDINARY]),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [True] * len(PROTECTED) + [False] * len(ORDINARY)


def test_the_documentation_lists_every_name_and_reason() -> None:
    path = Path(__file__).parents[2] / "docs" / "protected-paths.md"
    page, begin = path.read_text("utf-8"), "<!-- made of the protected paths -->"
    names = (", ".join(f"`{name}`" for name in group.names) for group in GROUPS)
    rows = [f"| {listed} | {group.reason} |" for listed, group in zip(names, GROUPS, strict=True)]
    table = "\n".join(["| names | why |", "|---|---|", *rows])
    before, _, rest = page.partition(begin)
    check_golden(
        path, f"{before}{begin}\n\n{table}\n\n<!-- end -->{rest.partition('<!-- end -->')[2]}"
    )
