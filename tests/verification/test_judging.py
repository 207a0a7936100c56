"""Which files judge, by the two rules alone: no command is run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.verified_runs import git

from corral._verification.judging import Judges, Place
from corral._verification.run_trees import RunTrees, TreeChoice


class Runner(NamedTuple):
    """A kind of project, the commands that check it, and what decides about them."""

    files: tuple[str, ...]
    commands: tuple[str, ...]
    lies: tuple[str, ...]
    """Files that an agent changes, or adds where they are not among ``files``."""
    work: tuple[str, ...]
    """Files that an honest agent changes or adds."""


_STARTS = ("{}", "env -u X {}", "nice {}", "timeout 60 {}", "cd . && {}", 'sh -c "{}"')
PYTHON_LIES = (
    *("conftest.py", "pytest.ini", "setup.cfg", "sitecustomize.py", "tests/conftest.py", "x.pth"),
    *("json.py", "src/unittest/mock.py", "calc.cpython-311-x86_64-linux-gnu.so", ".gitignore"),
    *("x.dist-info/entry_points.txt", "__pycache__/calc.cpython-311.pyc", "calc.pyc"),
    *("tests/test_calc.py", "tests/data/expected.txt", "pyproject.toml", ".env"),
)
RUNNERS = {
    "pytest": Runner(
        ("src/calc.py", "tests/test_calc.py", "pyproject.toml", ".gitignore", "README.md"),
        ("pytest -q", "python -m pytest -q", "uv run pytest -x", "python3 -X dev -m pytest"),
        (*PYTHON_LIES, "pytest.py", "_pytest/__init__.py", "src/pluggy/__init__.py",
         "pytest_timeout.py", "_hypothesis_globals.py", "src/typeguard/__init__.py", "hatch.toml",
         "__pypackages__/3.11/lib/pytest.py", "Pipfile"),
        ("src/calc.py", "README.md", "src/calc/json.py", "src/new.py", "docs/index.md"),
    ),
    "unittest": Runner(
        ("calc.py", "test_calc.py", "check_calc.py", "tests/test_calc.py", "pyproject.toml"),
        ("python -m unittest", "python3 -m unittest -q test_calc", "python -m unittest discover"),
        (*PYTHON_LIES, "test_calc/__init__.py", "test_calc.py", "unittest.py", "test_calc.so"),
        ("calc.py", "calculator/__init__.py", "calculator/json.py", "check_calc.py"),
    ),
    "modules": Runner(
        ("calc.py", "tools/check.py", "tools/__init__.py", "checks/calc.py", "README.md"),
        ("python -m tools.check", "python -B -m tools.check --all", "cd tools; python -m check",
         "python -mtools.check", "python -m unittest tools.check.T", "python tools/check.py"),
        ("tools/check.py", "tools/check/__init__.py", "tools/check.pyc", "tools/check.so"),
        ("calc.py", "checks/calc.py", "lib/other.py"),
    ),
    "scripts": Runner(
        ("calc.py", "check.py", "ci/check.sh", "ci/lib/common.sh", "README.md"),
        ("python -X dev check.py && sh < ci/check.sh", "test $(python check.py) = ok; ci/check.sh",
         "echo check.py ci/check.sh | xargs -n 1 python", "python ./check.py --shell=ci/check.sh",
         "for f in {ci/check,check}.{sh,py}; do sh $f; done",
         "X=check; sh ci/$X.sh; python check.py",
         "sh ci/$(echo check).sh; python `echo ./check.py`",
         "for f in ci/*.sh check.py; do sh $f; done", 'D=ci; python "check.py"; sh $D/check.sh',
         "find . -name 'check.*' -exec sh {} \\;", "cat check.py | python; cd ci && . ./check.sh"),
        ("check.py", "ci/check.sh", "check/__init__.py", "check.pyc"),
        ("calc.py", "README.md", "lib/check_digits.py", "new.sh"),
    ),
    "make": Runner(
        ("calc.c", "Makefile", "sub/Makefile", "rules.mk", "tests/run.sh"),
        ("make test", "make -s -j4", "make -C sub all", "gmake check unit"),
        ("Makefile", "GNUmakefile", "makefile", "sub/Makefile", "rules.mk", "unit", "check/x",
         "all", "sub/all", ".stamp", "test.ok", "tests/run.sh", "assert.h", "calc.o", "out/list",
         "check-unit", "sub/made", "made/x", "check-unit/x", "stdlib.h",
         "vendor/unity/unity.c", "Makefile.am"),
        ("calc.c", "calc.h", "src/new.c", "lib/other", "other.txt"),
    ),
    "npm": Runner(
        ("index.js", "package.json", "src/calc.ts", "src/calc.test.ts", "check/index.js"),
        ("npm test", "npm run check", "npx vitest run", "node check", "yarn jest", "node ./check"),
        ("package.json", "src/calc.test.ts", "src/calc.spec.js", "src/_test.ts", "jest.config.js",
         ".npmrc", "node_modules/jest/bin/jest.js", "__tests__/a.js", ".babelrc", "tsconfig.json",
         "testem.js", "cucumber.js", ".jshintrc", "bower_components/x/a.js",
         "vitest.config.mts", "src/__snapshots__/calc.snap", ".eslintignore", "e2e/run.js"),
        ("index.js", "src/calc.ts", "src/calc/index.ts", "package-lock.json", "src/latest.ts"),
    ),
    "cargo": Runner(
        ("src/lib.rs", "src/bin/check.rs", "tests/calc.rs", "Cargo.toml", "Cargo.lock"),
        ("cargo test", "cargo test --lib", "cargo run --bin check", "cargo nextest run"),
        ("tests/calc.rs", "tests/new.rs", "Cargo.toml", "build.rs", ".cargo/config.toml",
         "rust-toolchain.toml", "benches/b.rs", "clippy.toml"),
        ("src/lib.rs", "src/add.rs", "src/calc/mod.rs", "Cargo.lock"),
    ),
    "go": Runner(
        ("calc.go", "calc_test.go", "cmd/check/main.go", "go.mod", "go.sum"),
        ("go test ./...", "go vet ./... && go test", "go run ./cmd/check", "go test -run TestAdd"),
        ("calc_test.go", "other_test.go", "go.mod", "go.work", "testdata/golden.txt",
         ".golangci.yml", "vendor/modules.txt", "vendor/github.com/stretchr/testify/assert/a.go"),
        ("calc.go", "add/add.go", "go.sum", "internal/sum.go"),
    ),
    "others": Runner(
        ("lib/calc.rb", "t/calc.t", "src/Calc.scala", "src/Calc.java", "lib/Calc.pm"),
        ("rspec", "prove -l", "sbt test", "mvn -q verify", "dotnet test", "swift test", "mix test"),
        ("t/calc.t", "xt/a.t", "t/lib/Fake.pm", "src/CalcSpec.scala", "src/CalcTest.java",
         "src/CalcIT.java", "spec/calc_spec.rb", "lib/calc_test.exs", "Tests/CalcTests.swift",
         "App.Tests/Calc.cs", "test-calc.R", "calc_SUITE.erl", "Calc.Tests.ps1", "calc_spec.lua",
         "CalcTest.kt", "TestCalc.java", "calc_test.dart", "calcSpec.hs", "lib/minitest/autorun.rb",
         "calc.bats", "src/commonTest/Calc.kt", "pom.xml", "build.sbt", ".rspec", "runtests.jl",
         "src/main/java/org/hamcrest/MatcherAssert.java", "project/Build.scala", "Podfile",
         ".jvmopts", "lib/bundler/setup.rb", "lib/set.rb", "cucumber.yml", "docker-compose.yml",
         ".proverc", "mix.exs", "Package.swift", "phpunit.xml.dist", "CalcCest.php"),
        ("lib/calc.rb", "src/Calc.scala", "src/Calc.java", "lib/Calc.pm", "src/Contest.java"),
    ),
}  # fmt: skip
MAKEFILE = b"""\
TARGETS = all unit
OUT := out
.PHONY: phony
$(TARGETS): check
test: unit \\
  .stamp
check .stamp: calc.c
	echo not-a-target: x > unit
%.ok: %.c
phony: calc.c
$(OUT)/list: calc.c
$(addprefix check-,$(KINDS)): calc.c
define rule
$(1): calc.c
endef
$(eval $(call rule,made))
"""


def judges(runner: Runner, command: str) -> Judges:
    makefiles = {path.encode(): MAKEFILE for path in runner.files if "akefile" in path}
    before = [path.encode() for path in runner.files]
    return Judges(before, commands=[command], makefiles=makefiles)


def liars() -> Iterator[tuple[str, str, str]]:
    for name, runner in RUNNERS.items():
        for command, lie in product(runner.commands, runner.lies):
            yield name, command, lie


@pytest.mark.deep
def test_no_liar_of_the_table_changes_what_judges() -> None:
    verified = [
        (name, start.format(command), lie)
        for start, (name, command, lie) in product(_STARTS, liars())
        if not judges(RUNNERS[name], start.format(command)).decides(
            lie.encode(), is_new=lie not in RUNNERS[name].files
        )
    ]
    assert not verified, verified
    assert len({*liars()}) >= 200


def test_the_work_of_honest_runs_is_checked_as_it_was_left() -> None:
    """Each command with each file, but for what the command itself names."""
    pairs = [
        (name, command, path)
        for name, runner in RUNNERS.items()
        for command, path in product(runner.commands, runner.work)
    ]
    refused = [
        (name, command, path)
        for name, command, path in pairs
        if judges(RUNNERS[name], command).decides(
            path.encode(), is_new=path not in RUNNERS[name].files
        )
    ]
    assert not refused, refused
    assert len(pairs) >= 60


PROJECT = (
    *("calc.py", "tools/check.py", "tools/lib/a.py", "src/app/views.py", "scripts/check", "a b.sh"),
    *("tests/test_calc.py", "docs/index.md", "web/index.js", "app/check.ts"),
)


@pytest.mark.parametrize(
    ("command", "expected_names"),
    [
        ("python3 -c 'import calc; assert calc.add(1, 2) == 3'", set()),
        ("ruff check .", {"scripts/check"}),
        ("cd tools/..; ls ./", set()),
        ("mypy tools", {"tools/check.py", "tools/lib/a.py"}),
        ("cd tools && mypy lib", {"tools/check.py", "tools/lib/a.py"}),
        ("cd src; PYTHONPATH=. python -Im app.views", {"src/app/views.py"}),
        ("sh 'a b.sh'", {"a b.sh"}),
        ("sh a\\ b.sh", {"a b.sh"}),
        ("sh a''\" \"b.sh", {"a b.sh"}),
        ("tsx ./check", {"app/check.ts", "scripts/check", "tools/check.py"}),
        ("/w/tools/check.py && /other/calc.py", {"calc.py", "tools/check.py"}),
        ("python ../x/check.py 2>/dev/null", set()),
        ("python 'unbalanced calc.py", {"calc.py"}),
        ("cat <<END | sh\npython calc.py\nEND", {"calc.py"}),
    ],
)
def test_a_word_names_what_existed_at_any_depth(command: str, expected_names: set[str]) -> None:
    rule = Judges(
        [each.encode() for each in PROJECT],
        commands=[command],
        place=Place("", ("/w",)),
    )
    judged = {path for path in PROJECT if rule.decides(path.encode(), is_new=False)}
    assert judged - {"tests/test_calc.py"} == expected_names


@pytest.mark.parametrize(
    ("links", "command", "path"),
    [
        ({"check": "scripts/run"}, "./check", "scripts/run"),
        ({"ci": "scripts"}, "sh ci/run", "scripts/run"),
        ({"ci": "scripts"}, "ls ci", "scripts/new"),
        ({"a": "b", "b/c": "../scripts"}, "sh a/c/run", "scripts/run"),
        ({"tests": "quality"}, "true", "quality/data"),
        ({"web/tests": "../quality"}, "true", "quality/new"),
        ({"Makefile": "build/rules"}, "true", "build/rules"),
    ],
)
def test_what_a_link_that_judges_leads_to_judges(
    links: dict[str, str], command: str, path: str
) -> None:
    before = [*map(str.encode, links), b"scripts/run", b"quality/data", b"build/rules"]
    assert Judges(before, commands=[command], links=links).decides(
        path.encode(), is_new=path.encode() not in before
    )
    assert not Judges(before, commands=["true"]).decides(path.encode(), is_new=False)


def test_the_work_that_tests_have_a_link_to_is_the_work() -> None:
    rule = Judges([b"src/calc.py", b"tests/calc"], links={"tests/calc": "../src"})
    assert not rule.decides(b"src/calc.py", is_new=False)


@pytest.mark.parametrize("command", ["python -m tools.check", "python -m unittest tools.check.T"])
def test_the_packages_above_a_module_judge(command: str) -> None:
    rule = Judges([b"tools/check.py", b"tools/a.py"], commands=[command])
    assert rule.decides(b"tools/__init__.py", is_new=True)
    assert not rule.decides(b"tools/a.py", is_new=False)


def test_what_a_makefile_includes_judges() -> None:
    rule = Judges([b"Makefile", b"rules"], makefiles={b"Makefile": b"", b"rules": b"test:"})
    assert rule.decides(b"rules", is_new=False)
    assert not Judges([b"rules"]).decides(b"rules", is_new=False)


def test_a_target_without_a_known_name_is_no_file_with_a_dot_or_in_a_folder() -> None:
    rule = Judges(makefiles={b"Makefile": b"$(X): calc.c\nout: calc.c\n"})
    names = ("made", "calc.h", "lib/a.c", "out", "out/a", "out.c")
    assert [name for name in names if rule.is_target(name.encode())] == ["made", "out", "out/a"]


WORK = [
    ("src/**", "src/a.py", True),
    ("src/**", "src/test_a.py", True),
    ("src/**", "lib/a.py", False),
    ("src/", "src/deep/a.py", True),
    ("*.py", "a/b.py", True),
    ("/a.py", "b/a.py", False),
    ("!src/b.py", "src/a.py", False),
]


@pytest.mark.parametrize(("pattern", "path", "is_work"), WORK)
@pytest.mark.parametrize("inside", ["", "packages/one"])
def test_with_work_nothing_outside_of_it_is_as_the_run_left_it(
    inside: str, pattern: str, path: str, is_work: bool
) -> None:
    rule = Judges(work=[pattern], commands=["sh src/a.py"], place=Place(inside))
    for is_new in (True, False):
        name = os.path.join(inside, path)
        assert rule.decides(name.encode(), is_new=is_new) is not is_work
    assert rule.decides(b"packages/a.py", is_new=False) is (inside != "" or pattern != "*.py")


def test_judge_files_narrow_the_work_and_take_names_out() -> None:
    rule = Judges(work=["src/"], patterns=["src/rules.py", "!tests/"])
    assert rule.decides(b"src/rules.py", is_new=False)
    assert rule.decides(b"tests/test_a.py", is_new=False)
    rule = Judges([b"check.py"], patterns=["!tox.ini", "!check.py"], commands=["python check.py"])
    assert not rule.decides(b"tox.ini", is_new=False)
    assert not rule.decides(b"check.py", is_new=False)


NAMES = st.text("ab./*?[]$~\"'\\ -{}()=\n\udc80", max_size=20)


@given(NAMES, st.lists(NAMES, max_size=3), NAMES)
def test_commands_and_paths_of_any_kind_are_read(
    command: str, before: list[str], path: str
) -> None:
    paths = [os.fsencode(each) for each in before]
    rule = Judges(paths, commands=[command], makefiles=dict.fromkeys(paths, os.fsencode(command)))
    rule.decides(os.fsencode(path), is_new=True)


@pytest.mark.spine
def test_the_clean_tree_has_none_of_the_lies(tmp_path: Path) -> None:
    """All changes of the table at once, in one folder for each kind of project."""
    for name, runner in RUNNERS.items():
        folder = tmp_path / name
        folder.mkdir()
        git(folder, "init", "-q")
        write(folder, runner.files, "before", MAKEFILE.decode())
        trees = RunTrees(
            str(folder), tmp_path / f"{name}.own", TreeChoice(commands=(runner.commands[0],))
        )
        trees.begin()
        lies = [lie for lie in runner.lies if is_lie(runner, lie)]
        write(folder, lies, "after")
        work = trees.end()
        changed = {path for path in lies if path in runner.files}
        assert {*work.clean.restored} == changed
        assert {each.path for each in work.clean.left_out} == {*lies} - changed
        assert work.entries == work.before_entries
        assert work.changed_nothing
        assert {*trees.put_back().restored} == changed
        assert trees.end().after_entries == work.before_entries


def is_lie(runner: Runner, path: str) -> bool:
    """Not a file where another one is a folder, and judged with the first command."""
    others = (*runner.files, *runner.lies)
    is_there = not any(each.startswith(f"{path}/") for each in others)
    is_new = path not in runner.files
    return is_there and judges(runner, runner.commands[0]).decides(path.encode(), is_new=is_new)


def write(folder: Path, names: tuple[str, ...] | list[str], text: str, makefile: str = "") -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(makefile if makefile and "akefile" in name else text)
