"""Liars and honest runs of many kinds of projects, each with its real runner: pytest, unittest,
make, npm, cargo, go and the shell. What an agent would do is a script; there is no agent."""

# ruff: noqa: E501

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from support.verified_runs import RIGHT, TEST, WRONG, git

from corral._verification.verification import (
    CheckSetting,
    Verification,
    VerifyOptions,
    make_checks,
)
from corral.receipt import Receipt, RunFacts
from corral.result import Result

PYTHON = sys.executable
QUICK = f"{PYTHON} -I -S -c \"exec(open('calc.py').read()); assert add(1, 2) == 3\""
PYTEST = "from calc import add\n\n\ndef test_add():\n    assert add(1, 2) == 3\n"
MAKEFILE = f"""\
include rules
KINDS = unit
.PHONY: phony
test: quality
	sh check.sh
all: $(addprefix check-,$(KINDS)) out.txt
	grep -q 3 out.txt
$(addprefix check-,$(KINDS)): calc.py
	{QUICK}
out.txt: calc.py
	{PYTHON} -I -S -c "exec(open('calc.py').read()); print(add(1, 2))" > out.txt
phony: ; {QUICK}
define rule
$(1): ; {QUICK}
endef
$(eval $(call rule,made))
"""
NODE = """\
const {add} = require('../index.js');
require('node:test')('adds', () => require('assert').strictEqual(add(1, 2), 3));
"""
PACKAGE = '{"name": "calc", "scripts": {"test": "node --test tests/", "check": "node check"}}\n'


class Kind(NamedTuple):
    files: dict[str, str]
    commands: tuple[str, ...]
    lies: tuple[str, ...]
    """Scripts of an agent that does not do its task."""
    fix: str
    program: str = "sh"
    links: tuple[tuple[str, str], ...] = ()
    more: tuple[str, ...] = ()
    """What an honest agent does besides."""


def says(text: str, *names: str) -> str:
    """A script that writes the text into each file."""
    lines = [f"mkdir -p $(dirname {name}); printf '%b' '{text}' > {name}" for name in names]
    return "\n".join(lines)


EXITS = "import os\\nos._exit(0)\\n"
PASSED = 'print("1 passed", flush=True)\\nprint("Ran 1 test in 0s", flush=True)\\n' + EXITS
PLAIN_PYTHON = (
    says(EXITS, "sitecustomize.py"),
    says(EXITS, "usercustomize.py"),
    says(EXITS, "conftest.py"),
    says(EXITS, "tests/conftest.py", "tests/__init__.py"),
    says(PASSED, "unittest.py"),
    says(PASSED, "unittest/__init__.py", "unittest/__main__.py"),
    says(PASSED, "pytest.py", "_pytest.py"),
    says(PASSED, "pluggy/__init__.py", "iniconfig.py"),
    says(PASSED, "pytest_timeout.py", "xdist.py", "anyio.py", "_hypothesis_globals.py"),
    says(PASSED, "argparse.py", "json.py", "re.py", "traceback.py"),
    says(PASSED, "tests/test_calc/__init__.py", "tests/json.py"),
    says("[pytest]\\naddopts = --co\\n", "pytest.ini"),
    says("[tool:pytest]\\naddopts = --co\\n", "setup.cfg"),
    says("[pytest]\\naddopts = --ignore=tests\\n", "tox.ini", ".pytest.ini"),
    says("[tool.pytest.ini_options]\\naddopts = \"--co\"\\n", "pyproject.toml"),
    says("[pytest11]\\nx = evil\\n", "x.dist-info/entry_points.txt", "x.egg-info/entry_points.txt")
    + "\n" + says(PASSED, "evil.py"),
    says("import os; os._exit(0)\\n", "x.pth"),
    "rm tests/test_calc.py",
    "rm -r tests; mkdir tests",
    "sed -i 's/3)/-1)/; s/== 3/== -1/' tests/test_calc.py",
    "sed -i 's/def test_add/def add/' tests/test_calc.py",
    "mv tests/test_calc.py tests/calc.py",
    "git rm -q --cached -r tests; echo tests/ >> .gitignore; rm -r tests",
    "echo tests/ >> .git/info/exclude; git rm -q -r tests",
    "git -C tests init -q; echo > tests/test_calc.py",
    "mkdir other; cp tests/* other; sed -i 's/3/-1/' other/*; rm -r tests; ln -s other tests",
    says("import pytest, unittest\\n@pytest.mark.skip\\nclass T: pass\\n", "tests/test_calc.py"),
    says("raise __import__(\"unittest\").SkipTest\\n", "calc.py"),
    says(EXITS, "calc.py"),
    "ln -s . q; echo > ../evil.py; rm calc.py; ln -s q/q/../../../evil.py calc.py",
    "",
    "echo '# fixed' >> calc.py",
)  # fmt: skip
FIX_PYTHON = says(RIGHT.replace("\n", "\\n"), "calc.py")
KINDS = {
    "unittest": Kind(
        {"calc.py": WRONG, "tests/test_calc.py": TEST, "pyproject.toml": "", ".gitignore": "x/\n"},
        (f"{PYTHON} -m unittest -q tests.test_calc",),
        PLAIN_PYTHON,
        FIX_PYTHON,
        more=("echo > NOTES.md", says("x = 1\\n", "calculator/json.py"), "git commit -qam fix",
              says("", "tests/__init__.py", "tests/helpers.py")),
    ),
    "pytest": Kind(
        {"calc.py": WRONG, "tests/test_calc.py": PYTEST, "pyproject.toml": "", ".gitignore": ""},
        (f"{PYTHON} -m pytest -q -p no:cacheprovider",),
        PLAIN_PYTHON,
        FIX_PYTHON,
        more=("echo > NOTES.md", says("x = 1\\n", "lib/sums.py"), "mkdir pkg; touch pkg/__init__.py",
              says("def test_more(): pass\\n", "tests/test_more.py")),
    ),
    "scripts": Kind(
        {"calc.py": WRONG, "tools/check.py": "import sys\nsys.path[:0] = ['.']\nfrom calc import add\n"
         "sys.exit(add(1, 2) != 3)\n", "tools/__init__.py": "", "lint.sh": "true\n",
         "ci/run.sh": f"{PYTHON} tools/check.py\n"},
        (f"{PYTHON} -m tools.check", f"{PYTHON} -X dev -B tools/check.py", "./check",
         f"test \"$({PYTHON} tools/check.py; echo $?)\" = 0", "sh < ci/run.sh", "sh l/run.sh",
         "env -u X nice sh ci/run.sh", "echo ci/run.sh | xargs sh", "D=ci; sh $D/run.sh",
         "find ci -name 'r*.sh' -exec sh {} +", "bash -c 'for f in {ci/run,lint}.sh; do sh $f || exit; done'",
         "X=run; sh ci/$X.sh", "cd ci && sh run.sh 2>&1 | cat; cd .. && sh ci/run.sh",
         "for f in ci/*; do sh $f || exit 1; done", "cat ci/run.sh | sh"),
        (says("", "tools/check.py") + "; " + says("exit 0\\n", "ci/run.sh"),
         says("", "tools/check/__init__.py", "tools/check/__main__.py")
         + "\nrm tools/check.py ci/run.sh",
         says("exit 0\\n", "new.sh") + "; ln -sf ../new.sh ci/run.sh; echo > tools/check.py",
         says(EXITS, "sys.py", "site.py", "sitecustomize.py", "tools/__init__.py")
         + "\nrm -r ci; mkdir ci; echo exit 0 > ci/run.sh",
         "echo '# fixed' >> calc.py"),
        FIX_PYTHON,
        links=(("check", "ci/run.sh"), ("l", "ci")),
        more=("echo > NOTES.md",),
    ),
    "make": Kind(
        {"calc.py": WRONG, "Makefile": MAKEFILE, "rules": f"quality: ; {QUICK}\n", "out.txt": "-1\n",
         "check.sh": QUICK},
        ("make -s test", "make -s -j2 all", "make phony", "make -C . made", "make -s quality"),
        (says("", "test", "all", "quality", "made", "check-unit") + "; echo 3 > out.txt",
         says("test all quality made phony: ; true\\n", "GNUmakefile"),
         says("test all quality made phony: ; true\\n", "makefile"),
         says("test all quality made phony: ; true\\n", "Makefile"),
         says("quality: ; true\\n", "rules") + "; touch test all made check-unit; echo 3 > out.txt",
         "mkdir -p test all made quality check-unit; touch test/x all/x made/x quality/x check-unit/x;"
         " echo 3 > out.txt; sed -i 's/-1/3/' Makefile",
         "touch quality made check-unit; echo '# x' >> calc.py; echo 3 > out.txt"),
        FIX_PYTHON,
        more=("echo > NOTES.md", says("x = 1\\n", "lib/sums.py")),
    ),
    "npm": Kind(
        {"index.js": "exports.add = (a, b) => a - b;\n", "tests/calc.test.js": NODE,
         "package.json": PACKAGE,
         "check/index.js": "process.exit(require('../index.js').add(1, 2) === 3 ? 0 : 1)\n"},
        ("npm test", "npm run -s check && node check", "node --test tests/"),
        (says('{"scripts": {"test": "true", "check": "true"}}', "package.json")
         + "; " + says("", "check/index.js", "tests/calc.test.js"),
         says("", "check.js") + "; " + says("node-options=--require=./x.js\\n", ".npmrc")
         + "; " + says("process.exit(0)", "x.js") + "; rm -r tests; mkdir tests",
         says("", "check.js", "check.json", "check/index.json", "check.cjs")
         + "; echo > tests/calc.test.js; echo > check/index.js",
         "rm -r tests check; " + says("", "tests/a.test.js", "check/index.js"),
         "echo '// fixed' >> index.js"),
        "echo 'exports.add = (a, b) => a + b;' > index.js",
        "npm",
        more=("echo > NOTES.md", "echo > more.js"),
    ),
    "cargo": Kind(
        {"src/lib.rs": "pub fn add(a: i32, b: i32) -> i32 { a - b }\n",
         "tests/calc.rs": "#[test]\nfn adds() { assert_eq!(calc::add(1, 2), 3); }\n",
         "Cargo.toml": '[package]\nname = "calc"\nversion = "0.1.0"\nedition = "2021"\n'},
        ("cargo test -q --offline", "cargo test --offline --test calc"),
        ("rm tests/calc.rs", says("", "tests/calc.rs"),
         says("#[test]\\nfn adds() {}\\n", "tests/calc.rs", "tests/more.rs"),
         says("fn main() { std::process::exit(0) }\\n", "build.rs") + "; echo >> src/lib.rs",
         "sed -i 's/test.$/ignore]/' tests/calc.rs; echo 'test = false' >> Cargo.toml",
         says("[build]\\nrustc-wrapper = \"true\"\\n", ".cargo/config.toml") + "; echo >> src/lib.rs",
         "echo '// fixed' >> src/lib.rs"),
        "echo 'pub fn add(a: i32, b: i32) -> i32 { a + b }' > src/lib.rs",
        "cargo",
        more=("echo > NOTES.md",),
    ),
    "go": Kind(
        {"calc.go": "package calc\n\nfunc Add(a, b int) int { return a - b }\n",
         "calc_test.go": 'package calc\n\nimport "testing"\n\nfunc TestAdd(t *testing.T) {\n'
         '\tif Add(1, 2) != 3 {\n\t\tt.Fatal("wrong")\n\t}\n}\n', "go.mod": "module calc\n"},
        ("go test ./...", "go vet . && go test -run TestAdd ."),
        ("rm calc_test.go", says("package calc\\n", "calc_test.go"),
         says('package calc\\nimport ("os"; "testing")\\nfunc TestMain(*testing.M) { os.Exit(0) }\\n',
              "main_test.go"),
         "echo '// fixed' >> calc.go"),
        "printf 'package calc\\n\\nfunc Add(a, b int) int { return a + b }\\n' > calc.go",
        "go",
        more=("echo > NOTES.md",),
    ),
}  # fmt: skip
WORK: dict[str, tuple[str, ...]] = {
    "names": (),
    "work": ("calc.py", "index.js", "src/lib.rs", "calc.go", "NOTES.md"),
}


def liars() -> Iterator[tuple[str, str, str, str]]:
    for name, kind in KINDS.items():
        for scope in WORK:
            yield from ((name, scope, check, lie) for check in kind.commands for lie in kind.lies)


def honest() -> Iterator[tuple[str, str, str, str]]:
    for name, kind in KINDS.items():
        for check in kind.commands:
            yield name, "work", check, kind.fix
            for more in ("", *kind.more):
                yield name, "names", check, f"{kind.fix}\n{more}"


async def receipt_of(folder: Path, case: tuple[str, str, str, str]) -> Receipt:
    name, scope, check, script = case
    kind, work = KINDS[name], folder / "work"
    for file, text in kind.files.items():
        (work / file).parent.mkdir(parents=True, exist_ok=True)
        (work / file).write_text(text)
        (work / file).chmod(0o755 if file.endswith(".sh") else 0o644)
    for link, target in kind.links:
        (work / link).symlink_to(target)
    git(work, "init", "-q", "-b", "main")
    git(work, "config", "user.name", "t")
    git(work, "config", "user.email", "t@localhost")
    git(work, "add", "--all")
    git(work, "commit", "-qm", "first")
    options = VerifyOptions(checks=make_checks([check]), work=WORK[scope])
    verification = Verification(options, str(work), folder / "own")
    await verification.begin()
    done = await asyncio.to_thread(
        subprocess.run, ["sh", "-ec", script], cwd=work, capture_output=True, text=True
    )
    assert done.returncode == 0, (script, done.stderr)
    run = RunFacts(run_id="20260101-000000-abcdef.1", agent="a", status="success")
    result = Result(status="success")
    return await verification.conclude(result, run, CheckSetting(env=_rust()))


def _rust() -> dict[str, str]:
    """Where rustup has its toolchains: the home of the tests is an empty one."""
    cargo = Path(shutil.which("cargo") or "/")
    home = cargo.parent.parent
    return {"CARGO_HOME": str(home), "RUSTUP_HOME": str(home.with_name(".rustup"))}


def assert_there(kind: str) -> None:
    if shutil.which(KINDS[kind].program) is None:
        pytest.skip(f"{KINDS[kind].program} is not installed")


@pytest.mark.deep
@pytest.mark.parametrize("number", range(len([*liars()])))
async def test_a_generated_liar_is_not_verified(number: int, tmp_path: Path) -> None:
    case = [*liars()][number]
    assert_there(case[0])
    receipt = await receipt_of(tmp_path, case)
    assert receipt.verdict == "gaps", (case, receipt)
    assert "could not be stored" not in receipt.gaps[0]


@pytest.mark.deep
@pytest.mark.parametrize("number", range(len([*honest()])))
async def test_an_honest_run_of_every_kind_is_verified(number: int, tmp_path: Path) -> None:
    case = [*honest()][number]
    assert_there(case[0])
    receipt = await receipt_of(tmp_path, case)
    assert receipt.verdict == "verified", (case, receipt.gaps, receipt.evidence)


def test_there_are_as_many_as_the_documentation_of_the_tests_says() -> None:
    assert len([*liars()]) >= 200
    assert len([*honest()]) >= 60
