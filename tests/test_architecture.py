"""The structure of the source tree: layers, boundaries, what an import loads."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import corral

SOURCE = Path(corral.__file__).parent
MODULES = sorted(path for path in SOURCE.rglob("*.py") if path.parent.name != "starters")
"""``starters`` are files for users, who copy them: data."""
LAYERS = {
    "_core": 0,
    "_protocol": 1,
    "_agents": 2,
    "_models": 2,
    "_system": 3,
    "_metering": 4,
    "_telemetry": 5,
    "_sessions": 5,
    "_verification": 5,
    "_publishing": 5,
    "live": 6,
    "_inference": 5,
    "_merging": 6,
    "_builtin": 6,
    "_pipelines": 7,
    "_workflows": 7,
    "_engine": 8,
    "_docs": 9,
    "_runs": 9,
    "_comparison": 9,
    "_review": 9,
    "_testing": 9,
    "_view": 9,
    "_export": 9,
    "_serving": 9,
    "integrations": 10,
    "serve": 10,
    "providers": 10,
    "_cli": 10,
}
"""A module imports its own layer and the layers below. Other modules beside the packages, such as
``events``, are layer 0."""
FACADES = {"corral", "corral.agents", "corral.export", "corral.merge_queue", "corral.models",
           "corral.pipelines", "corral.review", "corral.runs", "corral.testing",
           "corral.workflows"}  # fmt: skip
"""They have no code of their own: each loads its public names from the packages."""

MACHINE = {"asyncio", "os", "time", "subprocess", "socket", "threading", "http", "urllib",
           "pathlib", "shutil", "tempfile", "selectors", "signal"}  # fmt: skip
NAMED_AS_DATA = {
    "corral._agents.codex.controls": "corral._system.hook_guard",  # the program of a hook
    "corral._agents.corral": "corral._builtin.driver",
    "corral._publishing.records": "corral.live",  # the public module of an error
    "corral._agents.human": "corral._sessions.backends.human",
    "corral._sessions.probing": "corral._testing.probe",  # its process
}
"""An agent names what runs it as a string; the layer above loads it."""


def name_of(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(("corral", *parts)).removesuffix(".__init__")


NAMES = {name_of(path) for path in MODULES}


def layer_of(module: str) -> int:
    parts = module.split(".")
    if module in FACADES or module == "corral.__main__":
        return 99
    if len(parts) == 2 and (SOURCE / f"{parts[1]}.py").exists():
        return LAYERS.get(parts[1], 0)
    assert parts[1] in LAYERS, f"{module} is in no layer: add its package to LAYERS"
    return LAYERS[parts[1]]


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(tree_of(path)))


@pytest.fixture(scope="module", autouse=True)
def _forget_trees() -> Iterator[None]:
    """They are large, and would slow down the garbage collection in later tests."""
    yield
    for cached in (tree_of, nodes_of, strings_of):
        cached.cache_clear()


def imports_of(path: Path) -> Iterator[str]:
    """Every module that the file imports, at the top or inside a function."""
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: use absolute imports"
            assert node.module
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in NAMES else node.module


def modules_in_strings(path: Path) -> Iterator[str]:
    """Modules of corral that a string names, such as the table of a lazy loader."""
    for text in strings_of(path):
        if "corral." not in text:
            continue
        for found in re.findall(r"\bcorral(?:\.\w+)+", text):
            if found in NAMES:
                yield found


def test_every_file_was_found() -> None:
    assert len(MODULES) > 40
    assert {"corral.events", "corral._protocol.ndjson", "corral._agents.registry"} <= NAMES


@pytest.mark.spine
def test_a_module_imports_its_own_layer_and_the_layers_below() -> None:
    above = [
        f"{name} imports {imported}"
        for path in MODULES
        for name in [name_of(path)]
        for imported in {*imports_of(path), *modules_in_strings(path)} - FACADES
        if imported.split(".")[0] == "corral" and layer_of(imported) > layer_of(name)
        if NAMED_AS_DATA.get(name) != imported
    ]
    assert above == []


def test_no_module_imports_itself_through_others() -> None:
    """Imports inside functions and for type checkers count, too."""
    graph = {
        name_of(path): {name for name in imports_of(path) if name in NAMES} - FACADES
        for path in MODULES
        if name_of(path) not in FACADES
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(f"import cycle: {' -> '.join(error.args[1])}") from None


def test_the_core_and_the_protocols_touch_no_machine() -> None:
    for path in MODULES:
        layer = layer_of(name_of(path))
        tops = {imported.split(".")[0] for imported in imports_of(path)}
        allowed = {"os"} if layer == 0 else set[str]()  # options uses os.PathLike
        assert layer > 1 or not tops & (MACHINE - allowed), path


AGENT_PROGRAMS = {"corral._agents.antigravity.bridge"}
"""Programs that speak a protocol for an agent. They run in the agent's process, with its packages
in place of corral's: they use the machine themselves, and import nothing of corral."""


def test_agents_are_data_and_start_nothing() -> None:
    for path in (SOURCE / "_agents").rglob("*.py"):
        if name_of(path) in AGENT_PROGRAMS:
            assert not [name for name in imports_of(path) if name.split(".")[0] == "corral"], path
            continue
        tops = {imported.split(".")[0] for imported in imports_of(path)}
        assert not tops & (MACHINE - {"os"}), path
        for node in nodes_of(path):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                touched = node.value.id == "os" and node.attr not in ("path", "sep")
                assert not touched, f"{path}: os.{node.attr}"


KNOWN_OF_AGENTS = {
    f"corral._agents.{name}"
    for name in ("registry", "spec", "grants", "report", "proof", "shared.errors")
}


def test_the_layers_above_know_an_agent_only_by_its_spec() -> None:
    for layer in ("_system", "_metering", "_sessions"):
        for path in (SOURCE / layer).rglob("*.py"):
            known = {name for name in imports_of(path) if name.startswith("corral._agents")}
            assert known <= KNOWN_OF_AGENTS, path


ALLOWED_NAMES = {
    (
        "corral._agents.acp_command",
        'The agent comes first: corral.run_sync("gemini", "PROMPT"), or'
        ' corral.run_sync(prompt="PROMPT") for the default agent.',
    ),
    ("corral._agents.registry", "gemini-acp"),  # the default agent
    ("corral._cli.agents", "gemini"),
    ("corral._cli.demo", "gemini-2.5-flash"),
    ("corral._cli.demo", "gemini-cli"),
    ("corral._cli.demo", "GEMINI_API_KEY"),
    ("corral._cli.demo", "GOOGLE_GEMINI_BASE_URL"),
    ("corral._agents.goose", "gemini"),  # one of the APIs that it uses
    ("corral._core.protected_paths", ".gemini"),
    ("corral._core.protected_paths", "gemini.md"),
    ("corral._agents.tested_files", "@google/gemini-cli"),  # a table that a script writes
    ("corral.providers", "GeminiCliProvider"),
}


def is_about_the_vendor(path: Path) -> bool:
    own = (
        "corral._agents.antigravity",  # of the same vendor
        "corral._agents.gemini",
        "corral._models",
        "corral.providers",
        "corral._testing",
    )
    return name_of(path).startswith(own)


def is_docstring(node: ast.Expr | ast.Assign) -> bool:
    """Whether a statement is a docstring, or sets one: ``run_sync.__doc__ = …``."""
    if isinstance(node, ast.Assign):
        target = node.targets[0]
        return isinstance(target, ast.Attribute) and target.attr == "__doc__"
    return isinstance(node.value, ast.Constant)


@cache
def strings_of(path: Path) -> tuple[str, ...]:
    """Names and string literals of the code, without docstrings."""
    prose = {
        id(node.value)
        for node in nodes_of(path)
        if isinstance(node, ast.Expr | ast.Assign) and is_docstring(node)
    }
    found: list[str] = []
    for node in nodes_of(path):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            found.append(node.value)
        elif isinstance(node, ast.Name):
            found.append(node.id)
        elif isinstance(node, ast.Attribute):
            found.append(node.attr)
        elif isinstance(node, ast.alias):
            found.append(node.name)
    return tuple(found)


def test_no_vendors_name_stands_outside_its_own_files() -> None:
    found = {
        (name_of(path), text)
        for path in MODULES
        if not is_about_the_vendor(path)
        for text in strings_of(path)
        if "gemini" in text.lower()
    }
    assert found <= ALLOWED_NAMES


def test_git_is_started_in_one_place() -> None:
    """Every other call would obey what an agent wrote into a repository. What plays the attacker
    in ``corral._testing`` may."""
    paths = [path for path in MODULES if not name_of(path).startswith("corral._testing")]
    starts = {
        name_of(path)
        for path in paths
        if "git" in strings_of(path) and "subprocess" in {*imports_of(path)}
    }
    named = {name_of(path) for path in paths if "git" in _arguments_of(path)}
    assert starts | named == {"corral._system.git.command"}


def _arguments_of(path: Path) -> set[str]:
    """Texts that stand as an argument of a call, or first in a list or tuple: a program's name."""
    found: set[str] = set()
    for node in nodes_of(path):
        some: list[ast.expr] = []
        if isinstance(node, ast.Call):
            some = node.args[:1]
        elif isinstance(node, ast.List | ast.Tuple):
            some = node.elts[:1]
        found |= {each.value for each in some if isinstance(each, ast.Constant)
                  and isinstance(each.value, str)}  # fmt: skip
    return found


def test_every_module_has_a_docstring() -> None:
    missing = [
        name_of(path)
        for path in MODULES
        if path.read_text("utf-8").strip() and not ast.get_docstring(tree_of(path))
    ]
    assert missing == []


def test_the_tests_of_a_package_are_in_the_folder_of_its_name() -> None:
    """pytest imports test files by their names, so each name is used once."""
    tests = Path(__file__).parent
    files = [path for path in tests.rglob("test_*.py") if "recordings" not in path.parts]
    assert [name for name, count in Counter(path.name for path in files).items() if count > 1] == []
    packages = {
        tuple(part.lstrip("_") for part in path.parent.relative_to(SOURCE).parts)
        for path in MODULES
    }
    folders = {path.parent.relative_to(tests).parts for path in files}
    others = {("examples",), ("earlier_versions",), ("real_agents",)}
    assert folders - packages == others
    assert {package[:1] for package in packages} - {folder[:1] for folder in folders} == set()


def test_a_module_name_is_used_once_or_twice_unless_its_folder_says_the_rest() -> None:
    roles = {"__init__", "spec", "launch", "controls", "errors", "stream", "request", "response",
             "schema", "frames", "api", "client", "server", "registry", "session",
             "query", "tool_calls"}  # fmt: skip
    vendors = {"gemini", "claude", "anthropic", "openai", "chat", "responses"}
    commands = {"run", "prompt", "files"}  # commands and node kinds: the module has their name
    stems = Counter(path.stem for path in MODULES)
    often = {stem for stem, count in stems.items() if count > 2}
    assert often <= roles | vendors | commands


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
    assert {name for name in loaded if name.startswith("corral")} == {
        "corral",
        "corral._core",
        "corral._core.lazy_names",
    }
    heavy = {"asyncio", "subprocess", "click", "rich", "msgspec", "http", "ssl", "socket"}
    assert not loaded & heavy


def test_the_words_load_no_machinery() -> None:
    loaded = loaded_after(
        "import corral; corral.Policy, corral.result_from_events, corral.events, corral.errors"
    )
    assert not loaded & {"asyncio", "subprocess", "click", "rich", "http", "ssl", "socket"}
    assert not {name for name in loaded if name.startswith(("corral._system", "corral._agents"))}


def test_driving_an_agent_loads_no_terminal_and_no_server() -> None:
    loaded = loaded_after("import corral; corral.session, corral.Turn")
    assert "asyncio" in loaded
    assert not loaded & {"click", "rich", "http.server", "corral._testing", "corral._cli"}
    for_some = ("permissions", "network_watch", "prompt_options", "redaction", "sync_session")
    assert not loaded & {f"corral._sessions.{name}" for name in for_some}
    assert not loaded & {"corral._system.sandbox.box", "corral._system.process.start_errors"}


def test_the_command_line_prints_only_through_its_terminal_module() -> None:
    """Whatever it prints may hold text of others, which a terminal would obey."""
    allowed = {"terminal", "main", "questions"}
    for path in (SOURCE / "_cli").rglob("*.py"):
        for node in nodes_of(path):
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            assert called not in ("click.echo", "click.secho", "print"), path.name
            assert called != "Console" or path.stem in (*allowed, "pipeline_output"), path.name
            writes = called.startswith(("sys.stdout.", "sys.stderr.")) and "write" in called
            assert not writes or path.stem in allowed, path.name
