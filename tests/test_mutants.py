"""The mutations that ``make mutants`` makes, and which tests it runs for them."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import coverage
import pytest
from mutants import STEPS, choose, steps
from mutation_rules import Mutation, is_valid, mutations, uses

ROOT = Path(__file__).parents[1]
TOOLS = ROOT / "tools"


def mutants_of(source: str) -> dict[str, str]:
    """The mutated source -> the kind of the mutation."""
    content = source.encode()
    return {each.apply(content).decode(): each.what for each in mutations(content)}


@pytest.mark.parametrize(
    ("source", "changed", "what"),
    [
        ("if a == b: c()", "if (a != b): c()", "comparison"),
        ("if a and not b: c()", "if (a or not b): c()", "and/or"),
        ("if a and not b: c()", "if a and (b): c()", "not"),
        ("a = b + c", "a = (b - c)", "operator"),
        ("a = b[0]", "a = b[1]", "constant"),
        ("a = f(True)", "a = f(False)", "constant"),
        ("a = {'GIT_X': '1', 'GIT_Y': '2'}", "a = {'GIT_Y': '2'}", "entry"),
        ("a = ('x', 'y', 'z')", "a = ('x', 'z')", "element"),
        ("f(a, owner=b)", "f(a)", "without owner="),
        ("def f():\n    g()\n    h()", "def f():\n    pass\n    h()", "without the call"),
        ("a.b = c", "pass", "without the assignment"),
        ("def f(): return g()", "def f(): return None", "returns None"),
        ("if a: raise ConfigError('no')", "if a: pass", "without the raise"),
        ("def f(a=1): pass", "def f(a=2): pass", "constant"),
    ],
)
def test_a_mutation_changes_one_expression_or_statement(
    source: str, changed: str, what: str
) -> None:
    assert mutants_of(source)[changed] == what


@pytest.mark.parametrize(
    "source",
    [
        '"""Text."""\ndef f(a: Literal["x"]) -> Literal["y"]:\n    """Text."""',
        "from a import b\n__all__ = ['b', 'c', 'd']",
        "class A(Struct, frozen=True, kw_only=True):\n    __slots__ = ('a', 'b', 'c')",
        "Name = Literal['a', 'b']\nT = TypeVar('T')",
        "CHUNK = max(1, 2)\n_READ_TIMEOUT = 5\nMAX_FILE = 64",
        "a = f(timeout=30)",
        "if LINUX:\n    a = b == c",
        "while size <= LIMIT: continue",
        "class A:\n    def __repr__(self):\n        return str(self.a == 1)",
        "assert a is not None",
        "logger.debug('text', extra=1)",
    ],
)
def test_what_no_test_could_notice_is_not_mutated(source: str) -> None:
    assert mutants_of(source) == {}


def test_the_text_of_an_error_is_not_mutated() -> None:
    assert set(mutants_of("if a:\n    raise ConfigError('word', hint='do-this')").values()) == {
        "without the raise"
    }
    assert mutants_of("a = 'words with blanks'") == {}


def test_every_mutation_is_another_program() -> None:
    source = (ROOT / "src/corral/_core/spending.py").read_bytes()
    found = mutations(source)
    assert len(found) > 20
    assert [each for each in found if not is_valid(each, source)] == []
    assert not is_valid(Mutation("", "", "", 0, 0, range(1)), source)
    assert not is_valid(Mutation("", "", "(", 0, 0, range(1)), source)


def test_what_a_statement_defines_is_known_where_it_runs_at_the_import() -> None:
    source = (
        "TABLE = {\n    'a': 1,\n    'b': 2,\n}\n"
        "class A:\n    field: bool = True\n    def f(self, x=1):\n        return x == 3\n"
    )
    places = {
        each.what: (each.names, [*each.lines])
        for each in mutations(source.encode())
        if each.old != "1"
    }
    assert places["entry"] == (("TABLE",), [1, 2, 3, 4])
    assert places["comparison"] == ((), [8])
    (field,) = [each for each in mutations(source.encode()) if each.old == "True"]
    assert (field.names, [*field.lines]) == (("A", "field"), [6])
    default = [each for each in mutations(source.encode()) if each.names == ("A", "f")]
    assert [[*each.lines] for each in default] == [[7]]


def test_the_seed_decides_the_mutations() -> None:
    sources = ["src/corral/_core/durations.py", "src/corral/_core/nesting.py"]
    chosen = [str(mutant) for mutant in choose(5, 1, sources)]
    assert chosen == [str(mutant) for mutant in choose(5, 1, sources)]
    assert chosen != [str(mutant) for mutant in choose(5, 2, sources)]
    assert len({place.split(": ")[0] for place in chosen}) == 5


def test_what_is_made_of_a_name_is_known() -> None:
    source = "ALL = (ONE, *more.TWO)\ndef f():\n    return ALL\n"
    assert [*uses(ast.parse(source))] == [
        ("ONE", 1, ("ALL",)),
        ("TWO", 1, ("ALL",)),
        ("more", 1, ("ALL",)),
        ("ALL", 3, ()),
    ]


def test_the_first_tests_are_few_and_those_that_cost_too_much_are_left_out() -> None:
    seconds = {"a": 1.0, "b": STEPS[0] - 1.0, "c": 2.0, "d": STEPS[1], "e": STEPS[2]}
    assert [*steps("abcde", seconds)] == [["a", "b"], ["c"], ["d"]]
    assert [*steps("", seconds)] == []


MEASURED = """
import os, sys
sys.path.insert(0, {tools!r})
import mutant_lines
mutant_lines.measure({configuration!r})
import measured
os.environ["PYTEST_CURRENT_TEST"] = "tests/test_b.py::test_b[x y] (call)"
os.environ["PYTEST_CURRENT_TEST"] = "test_inner.py::test_c (call)"
measured.second()
if not os.fork():
    os.environ["PYTEST_CURRENT_TEST"] = "tests/test_d.py::test_d (call)"
    measured.third()
    os._exit(0)
os.wait()
"""


def test_a_line_counts_for_the_test_that_the_environment_names(tmp_path: Path) -> None:
    (tmp_path / "measured.py").write_text(
        "def second():\n    return 2\ndef third():\n    return 3\n"
    )
    configuration = tmp_path / "coveragerc"
    configuration.write_text(
        f"[run]\ndata_file = {tmp_path / 'data'}\nparallel = true\nsource = {tmp_path}\n"
        "patch = _exit, fork\n"
    )
    program = MEASURED.format(tools=str(TOOLS), configuration=str(configuration))
    env = {**os.environ, "PYTEST_CURRENT_TEST": "tests/test_a.py::test_a (call)"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    combined = coverage.Coverage(data_file=str(tmp_path / "all"), config_file=False)
    combined.combine([str(path) for path in tmp_path.glob("data.*")])
    found = combined.get_data().contexts_by_lineno(str(tmp_path / "measured.py"))
    assert found[2] == ["tests/test_b.py::test_b[x y]"]
    assert found[4] == ["tests/test_d.py::test_d"]
    assert found[1] == ["tests/test_a.py::test_a"]


def test_chosen_tests_run_in_order_and_their_ends_are_written(tmp_path: Path) -> None:
    (tmp_path / "test_x.py").write_text(
        "def test_a(): pass\ndef test_b(): assert 0\ndef test_c(): pass\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    only, results = tmp_path / "only.json", tmp_path / "results.json"
    only.write_text(json.dumps(["test_x.py::test_c", "test_x.py::test_b"]))
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-p", "mutant_tests", "-p", "no:cacheprovider"),
            *(f"--only-tests={only}", f"--results={results}"),
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(TOOLS), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stdout
    ends = json.loads(results.read_bytes())
    assert [(name, end) for name, (end, _) in ends.items()] == [
        ("test_x.py::test_c", "passed"),
        ("test_x.py::test_b", "failed"),
    ]
