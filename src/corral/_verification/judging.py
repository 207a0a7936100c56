"""Which files judge the work: tests, and what decides how checks run.

An agent that may change them decides itself whether it has done its task. So with
``verify_from="before"`` the checks see them as they were before the run, and none that the run has
added. A file judges if

* a pattern names it: ``PATTERNS`` below, and those of the option ``judge_files``. The patterns are
  those of ``.gitignore``; the last one that matches decides, and ``!pattern`` takes a file out;
* a command executes it: ``check.py`` in ``python check.py``, if it existed before the run;
* the run has added it, and it has the name of a target of ``make`` that a command names: ``make
  test`` does nothing if there is a file ``test``;
* the run has added it, and it takes the place of a module that a test runner imports, such as
  ``pytest.py`` or ``json.py`` beside the tests.

What is not known: a file that only the tests themselves read, by a name that no pattern has. Such
files are named with ``judge_files``.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterable, Iterator
from pathlib import PurePath

from corral._system.git import scan
from corral._system.git.scan import Rules

PATTERNS = (
    # Tests and what they compare with.
    *("test/", "tests/", "__tests__/", "spec/", "specs/", "e2e/", "testing/", "fixtures/"),
    *("__fixtures__/", "testdata/", "test-data/", "test_data/", "snapshots/", "__snapshots__/"),
    *("goldens/", "golden/", "__mocks__/", "cypress/", "*.feature"),
    *("test_*.py", "*_test.py", "tests.py", "test.py", "*_test.go", "*_test.rb", "*_spec.rb"),
    *("*.test.*", "*.spec.*", "*.snap", "*_test.exs", "*_test.dart", "*_test.c", "*_test.cc"),
    *("*_test.cpp", "*Test.java", "*Tests.java", "*IT.java", "*Test.kt", "*Tests.cs"),
    "*Test.php",
    *("test_*.sh", "*_test.sh", "*.bats", "test.sh", "runtests*", "run_tests*", "run-tests*"),
    # Python: settings of test runners and linters, and what is imported at the start.
    *("conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini"),
    *("tox.toml", "noxfile.py", "setup.cfg", "setup.py", "pyproject.toml", ".coveragerc"),
    *("mypy.ini", ".mypy.ini", "ruff.toml", ".ruff.toml", ".flake8", ".pylintrc", "pylintrc"),
    *("pyrightconfig.json", "sitecustomize.py", "usercustomize.py", "*.pth", "pyvenv.cfg"),
    # JavaScript.
    *("package.json", ".npmrc", ".yarnrc*", ".pnpmfile.*", "jest.config.*", "jest.setup.*"),
    *("vitest.*", "vite.config.*", "playwright.config.*", "cypress.config.*", "karma.conf.*"),
    *(".mocharc*", "ava.config.*", "tsconfig*.json", "babel.config.*", ".babelrc*", ".swcrc"),
    *(
        "eslint.config.*",
        ".eslintrc*",
        ".eslintignore",
        "biome.json*",
        ".prettierrc*",
        "deno.json*",
    ),
    *("bunfig.toml", "nx.json", "turbo.json"),
    # Other languages, and what builds.
    *("Makefile", "makefile", "GNUmakefile", "*.mk", "justfile", "Justfile", ".justfile"),
    *("Taskfile.y*ml", "Rakefile", ".rspec", "Cargo.toml", ".cargo/", "build.rs", "go.mod"),
    *("go.work", "phpunit.xml*", "composer.json", "pom.xml", "build.gradle*", "settings.gradle*"),
    *("gradle.properties", "gradlew*", "mvnw*", "CMakeLists.txt", "CTest*.cmake", "*.csproj"),
    *("Directory.Build.*", "mix.exs", "BUILD", "BUILD.bazel", "WORKSPACE*", "MODULE.bazel"),
    # What runs elsewhere, and what chooses programs.
    *(".github/", ".gitlab-ci.yml", ".circleci/", "Jenkinsfile", "azure-pipelines.yml"),
    *(".pre-commit-config.yaml", ".husky/", ".gitattributes", ".python-version", ".node-version"),
    *(".nvmrc", ".tool-versions", "mise.toml", ".mise.toml", ".envrc", ".env", ".env.*"),
    "rust-toolchain*",
)

_RUNNERS = frozenset(
    (
        *("pytest", "_pytest", "py", "pluggy", "iniconfig", "packaging", "exceptiongroup"),
        *("tomli", "nose", "nose2", "hypothesis", "coverage", "xdist", "pytest_cov"),
        *("pytest_asyncio", "anyio", "execnet", "tox", "nox", "mypy", "mypyc", "ruff"),
        *("flake8", "pylint", "astroid", "pyflakes", "pycodestyle", "attr", "attrs"),
        *("colorama", "pygments", "setuptools", "pkg_resources", "_distutils_hack"),
    )
)
"""Modules that Python's test runners and linters import."""
_IMPORTED = (".py", ".pyc", ".so", ".pyd")
"""How the names of files end that Python imports."""
_ROOTS = ("src/", "lib/", "python/")
"""Folders in which imports begin, besides the working directory."""
_INTERPRETERS = re.compile(
    r"(?:ba|da|z|k|fi)?sh|python[\d.]*|pypy[\d.]*|node|nodejs|deno|bun|tsx|ts-node|ruby|perl|php|lua"
    r"|Rscript|pwsh|source|\.\Z"
)
"""Programs whose first argument is what they execute."""
_BEFORE = frozenset(
    (
        *("env", "time", "nice", "nohup", "exec", "command", "sudo", "xvfb-run", "uv"),
        *("poetry", "pipenv", "pdm", "hatch", "rye", "npx", "pnpm", "yarn", "bundle"),
        *("coverage", "run", "then", "do", "!", "{", "("),
    )
)
"""Words that may stand before the program."""
_MAKES = frozenset(("make", "gmake", "bmake", "just", "task", "rake", "ninja"))
"""Programs that do nothing for a target that exists as a file."""


class Judges:
    """Decides which files judge."""

    def __init__(
        self, patterns: Iterable[str] = (), commands: Iterable[str] = (), inside: str = ""
    ) -> None:
        """``commands`` are those that are run, in the folder ``inside`` of the tree."""
        text = "\n".join((*PATTERNS, *patterns))
        self._rules = Rules(text.encode("utf-8", "surrogateescape"))
        self._inside = f"{inside}/" if inside else ""
        self._executed: set[str] = set()
        self._targets: set[str] = set()
        for command in commands:
            for folder, words in _simple_commands(command):
                self._add(os.path.join(inside, folder), words)

    def _add(self, folder: str, words: list[str]) -> None:
        program, arguments = _program_of(words)
        if os.path.basename(program) in _MAKES:
            self._targets |= {os.path.normpath(os.path.join(folder, each)) for each in arguments}
        scripts = [program] if "/" in program else []
        if _INTERPRETERS.fullmatch(os.path.basename(program)):
            scripts += [each for each in arguments if not each.startswith("-")][:1]
        self._executed |= {os.path.normpath(os.path.join(folder, each)) for each in scripts}

    def decides(self, path: bytes, *, is_new: bool) -> bool:
        """Whether the file judges. ``path`` is from the root of the tree, ``is_new``: the run has
        added it."""
        verdict = scan.verdict_below(self._rules, path)
        if verdict is not None:
            return verdict
        name = os.fsdecode(path)
        if not is_new:
            return name in self._executed
        above = (name, *map(str, PurePath(name).parents))
        return not self._targets.isdisjoint(above) or self._shadows(name)

    def _shadows(self, name: str) -> bool:
        """Whether a new file has the name of a module that a runner imports, or is in a package
        with such a name. Only where imports begin: a package may have a module of any name."""
        if not name.startswith(self._inside) or not name.endswith(_IMPORTED):
            return False
        beside = name.removeprefix(self._inside)
        roots = (beside, *(beside.removeprefix(each) for each in _ROOTS))
        names = {re.split(r"[/.]", each, maxsplit=1)[0] for each in roots}
        return bool(names & (_RUNNERS | sys.stdlib_module_names))


def _simple_commands(command: str) -> Iterator[tuple[str, list[str]]]:
    """The words of each command of a line, and the folder that it runs in."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars=";&|()\n<>")
    lexer.whitespace_split, lexer.commenters, lexer.whitespace = True, "", " \t\r"
    folder, words = "", list[str]()
    try:
        tokens = [*lexer, ";"]
    except ValueError:  # the shell does not read it either
        tokens = [*command.split(), ";"]
    for token in tokens:
        if token.strip(";&|()\n"):
            words.append(token)
            continue
        if words[:1] == ["cd"] and len(words) > 1:
            folder = os.path.join(folder, words[1])
        elif words:
            yield folder, words
        words = []


def _program_of(words: list[str]) -> tuple[str, list[str]]:
    """The program that a simple command starts, and its arguments. Assignments, and programs that
    start another one, are passed over."""
    at = 0
    while at < len(words) - 1:
        word = words[at]
        if not (word in _BEFORE or re.match(r"[A-Za-z_]\w*=", word)):
            break
        at += 1
    program, arguments = words[at], words[at + 1 :]
    if program in ("timeout", "gtimeout") and len(arguments) > 1:
        rest = [each for each in arguments if not each.startswith("-")][1:]
        return _program_of(rest) if rest else (program, arguments)
    return program, arguments
