"""The house keeps its floors: a module imports its own floor and those below, never up."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import corral

HOUSE = Path(corral.__file__).parent
MODULES = sorted(HOUSE.rglob("*.py"))
FLOORS = {
    "protocol": 1,
    "agents": 2,
    "models": 2,
    "system": 3,
    "sessions": 4,
    "inference": 4,
    "builtin": 5,
    "pipelines": 6,
    "durable": 7,
    "testing": 8,
    "providers": 9,
    "cli": 9,
}
WORDS = {
    "backoff",
    "events",
    "values",
    "errors",
    "policy",
    "protected_paths",
    "shell_patterns",
    "shell_regex",
    "options",
    "prompt",
    "messages",
    "nesting",
    "model_types",
    "result",
    "slug",
    "terminal_text",
    "version",
}
WALL = 600
"""Lines. A file that needs more holds two ideas."""

NO_IO = {"asyncio", "os", "time", "subprocess", "socket", "threading", "http", "urllib", "pathlib",
         "shutil", "tempfile", "selectors", "signal"}  # fmt: skip


def name_of(path: Path) -> str:
    parts = path.relative_to(HOUSE).with_suffix("").parts
    return ".".join(("corral", *parts)).removesuffix(".__init__")


def floor_of(module: str) -> int:
    parts = module.split(".")
    if module in ("corral", "corral.models", "corral.pipelines"):
        return 99  # a front door, which points at every floor
    if parts[1] in WORDS:
        return 0
    assert parts[1] in FLOORS, f"{module} stands on no floor: say which in FLOORS"
    return FLOORS[parts[1]]


def is_low(path: Path) -> bool:
    name = name_of(path)
    return name != "corral" and floor_of(name) <= 1


def imports_of(path: Path) -> Iterator[str]:
    """Every module that the file names, wherever in it: an import inside a function counts."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import hides its floor"
            assert node.module
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                known = (HOUSE.parent / whole.replace(".", "/")).with_suffix(".py").exists()
                package = (HOUSE.parent / whole.replace(".", "/")).is_dir()
                yield whole if known or package else node.module


def test_every_file_was_found() -> None:
    assert len(MODULES) > 40
    assert {"corral.events", "corral.protocol.lines", "corral.agents"} <= {*map(name_of, MODULES)}


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_module_imports_its_own_floor_and_those_below(path: Path) -> None:
    name = name_of(path)
    above = [
        imported
        for imported in imports_of(path)
        if imported.split(".")[0] == "corral" and floor_of(imported) > floor_of(name)
    ]
    assert above == []


@pytest.mark.parametrize("path", [p for p in MODULES if is_low(p)], ids=name_of)
def test_the_lower_floors_touch_no_machine(path: Path) -> None:
    tops = {imported.split(".")[0] for imported in imports_of(path)}
    harmless = {"os"} if floor_of(name_of(path)) == 0 else set[str]()  # options knows os.PathLike
    assert not tops & (NO_IO - harmless)


def test_agents_are_facts_and_start_nothing() -> None:
    for path in (HOUSE / "agents").rglob("*.py"):
        tops = {imported.split(".")[0] for imported in imports_of(path)}
        assert not tops & (NO_IO - {"os"}), path.name
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                touched = node.value.id == "os" and node.attr not in ("path", "sep")
                assert not touched, f"{path.name}: os.{node.attr}"


def test_of_the_agents_the_floors_above_know_only_the_record() -> None:
    for floor in ("system", "sessions"):
        for path in (HOUSE / floor).rglob("*.py"):
            known = {name for name in imports_of(path) if name.startswith("corral.agents")}
            assert known <= {"corral.agents.registry", "corral.agents.spec"}, path.name


ALLOWED_NAMES = {
    ("corral.agents.registry", "gemini-acp"),  # the default agent
    ("corral.cli.agents", "gemini"),
    ("corral.protected_paths", ".gemini"),
    ("corral.providers", "GeminiCliProvider"),
}


def is_its_own(path: Path) -> bool:
    its_own = (
        "corral.agents.gemini",
        "corral.models",
        "corral.providers.gemini",
        "corral.testing",
    )
    return name_of(path).startswith(its_own)


def strings_of(path: Path) -> Iterator[str]:
    """Names and texts of the code; docstrings and the texts below constants are for people."""
    tree = ast.parse(path.read_text("utf-8"))
    prose = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield node.value
        elif isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.alias):
            yield node.name


@pytest.mark.parametrize("path", [p for p in MODULES if not is_its_own(p)], ids=name_of)
def test_no_vendors_name_stands_outside_its_own_file(path: Path) -> None:
    name = name_of(path)
    said = {text for text in strings_of(path) if "gemini" in text.lower()}
    assert {(name, text) for text in said} <= ALLOWED_NAMES


def test_git_is_started_in_one_place() -> None:
    """Every other call would obey what an agent wrote into a repository. What plays the attacker
    in ``corral.testing`` may."""
    paths = [path for path in MODULES if not name_of(path).startswith("corral.testing")]
    starts = {
        name_of(path)
        for path in paths
        if "git" in strings_of(path) and "subprocess" in {*imports_of(path)}
    }
    named = {name_of(path) for path in paths if "git" in _arguments_of(path)}
    assert starts | named == {"corral.system.git.command"}


def _arguments_of(path: Path) -> set[str]:
    """Texts that stand as an argument of a call, or first in a list or tuple: a program's name."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        some: list[ast.expr] = []
        if isinstance(node, ast.Call):
            some = node.args[:1]
        elif isinstance(node, ast.List | ast.Tuple):
            some = node.elts[:1]
        found |= {each.value for each in some if isinstance(each, ast.Constant)
                  and isinstance(each.value, str)}  # fmt: skip
    return found


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_no_file_goes_over_the_wall(path: Path) -> None:
    assert len(path.read_text("utf-8").splitlines()) <= WALL


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_every_module_says_what_it_is(path: Path) -> None:
    text = path.read_text("utf-8")
    assert not text.strip() or ast.get_docstring(ast.parse(text))


def loaded_after(statement: str) -> set[str]:
    """The modules that a fresh interpreter has loaded once the statement has run."""
    code = f"import sys; before = set(sys.modules); {statement}; print(*set(sys.modules) - before)"
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_import_corral_loads_nothing_but_itself() -> None:
    loaded = loaded_after("import corral")
    assert {name for name in loaded if name.startswith("corral")} == {"corral"}
    heavy = {"asyncio", "subprocess", "click", "rich", "msgspec", "http", "ssl", "socket"}
    assert not loaded & heavy


def test_the_words_load_no_machinery() -> None:
    loaded = loaded_after(
        "import corral; corral.Policy, corral.result_from_events, corral.events, corral.errors"
    )
    assert not loaded & {"asyncio", "subprocess", "click", "rich", "http", "ssl", "socket"}
    assert not {name for name in loaded if name.startswith(("corral.system", "corral.agents"))}


def test_driving_an_agent_loads_no_terminal_and_no_server() -> None:
    loaded = loaded_after("import corral; corral.session, corral.Turn")
    assert "asyncio" in loaded
    assert not loaded & {"click", "rich", "http.server", "corral.testing", "corral.cli"}


def test_the_command_line_prints_only_through_its_terminal_module() -> None:
    """Whatever it prints may hold text of others, which a terminal would obey."""
    allowed = {"terminal", "main", "questions"}
    for path in (HOUSE / "cli").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            assert called not in ("click.echo", "click.secho", "print"), path.name
            assert called != "Console" or path.stem in (*allowed, "pipeline_output"), path.name
            writes = called.startswith(("sys.stdout.", "sys.stderr.")) and "write" in called
            assert not writes or path.stem in allowed, path.name
