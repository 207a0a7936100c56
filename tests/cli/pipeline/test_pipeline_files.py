"""``corral pipeline lint``, ``graph``, ``paths`` and ``new``, run as a program."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from support.pipeline_command import EXAMPLES, TINY, pipeline, put

from corral._pipelines import loader
from corral._pipelines.linter.engine import lint
from corral._pipelines.render import COLORS, NO_PATH
from corral._pipelines.transforms import apply

NO_EXIT = "digraph broken {\n  start [shape=Mdiamond]\n  start -> a\n}\n"
CLEAN = "no errors, no warnings\n"
SHIPPED = EXAMPLES.parent / "src" / "corral" / "_pipelines" / "starters"


def test_a_correct_pipeline_lints_with_exit_code_0(workspace: Path) -> None:
    done = pipeline("lint", put(workspace, TINY), cwd=workspace)
    assert (done.returncode, done.stdout, done.stderr) == (0, CLEAN, "")


def test_a_finding_is_printed_in_the_format_of_compilers_with_its_fix(workspace: Path) -> None:
    file = put(workspace, NO_EXIT)
    done = pipeline("lint", file, cwd=workspace)
    assert done.returncode == 1
    findings = [found for found in lint(apply(loader.read(workspace / file))) if found.fix]
    assert findings
    for found in findings:
        place = f"p.dot:{found.line or 1}:{found.column or 1}"
        text = f"{place}: {found.severity} {found.rule}: {found.message}\n    fix: {found.fix}\n"
        assert text in done.stdout


def test_a_syntax_error_is_a_finding_with_its_position(workspace: Path) -> None:
    done = pipeline("lint", put(workspace, "digraph x {\n a -> \n}"), cwd=workspace)
    assert done.returncode == 1
    assert done.stdout.startswith("p.dot:3:1: error syntax: ")


def test_findings_are_available_as_json(workspace: Path) -> None:
    sound, broken = put(workspace, TINY), put(workspace, NO_EXIT, "broken.dot")
    done = pipeline("lint", "--json", sound, broken, cwd=workspace)
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert {one["file"] for one in found} == {"broken.dot"}
    assert "terminal_node" in {one["rule"] for one in found}
    assert {"rule", "severity", "message"} <= set(found[0])
    assert json.loads(pipeline("lint", "--json", sound, cwd=workspace).stdout) == []


@pytest.mark.parametrize(
    "words", [("lint", "absent.dot"), ("graph", "absent.dot"), ("lint",), ("lint", ".")]
)
def test_bad_input_exits_with_2_and_no_traceback(words: tuple[str, ...], workspace: Path) -> None:
    done = pipeline(*words, cwd=workspace)
    assert done.returncode == 2
    assert done.stderr
    assert "Traceback" not in done.stderr


def test_lint_knows_a_node_type_after_its_module_is_imported(workspace: Path) -> None:
    text = TINY.replace('prompt="go"', 'type="my.step"')
    file = put(workspace, text)
    put(
        workspace,
        "from corral.pipelines import handler\n\n\n"
        "@handler('my.step')\nasync def step(work):\n    return None\n",
        "my_steps.py",
    )
    assert "type_known" in pipeline("lint", file, cwd=workspace).stdout
    done = pipeline("lint", file, "--import", "my_steps", cwd=workspace)
    assert (done.returncode, done.stdout) == (0, CLEAN)
    gone = pipeline("lint", file, "--import", "nothing_there", cwd=workspace)
    assert gone.returncode == 2
    assert "nothing_there" in gone.stderr


def test_a_pipeline_is_drawn_as_text_dot_and_svg(workspace: Path) -> None:
    file = put(workspace, TINY)
    text = pipeline("graph", file, cwd=workspace).stdout
    assert all(name in text for name in ("start", "a", "done"))
    second = pipeline("graph", file, "--format", "dot", cwd=workspace).stdout
    put(workspace, second, "again.dot")
    assert pipeline("lint", "again.dot", cwd=workspace).returncode == 0
    svg = pipeline("graph", file, "--format", "svg", cwd=workspace).stdout
    assert ElementTree.fromstring(svg).tag.endswith("svg")


def test_the_paths_of_a_pipeline_are_listed_and_drawn(workspace: Path) -> None:
    file = put(workspace, TINY.replace("}", "  lost [prompt=x]  lost -> done\n}"))
    done = pipeline("paths", file, cwd=workspace)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("   1  start → ")
    assert "\n1 path\nno path reaches: lost\n" in done.stdout
    drawn = {form: pipeline("paths", file, "--format", form, cwd=workspace).stdout
             for form in ("text", "dot", "svg")}  # fmt: skip
    assert "lost  [no path]" in drawn["text"]
    assert 'xlabel="no path"' in drawn["dot"]
    assert COLORS[NO_PATH] in drawn["svg"]
    found = json.loads(pipeline("paths", file, "--json", cwd=workspace).stdout)
    assert (found["unreached"], len(found["paths"])) == (["lost"], 1)


def test_a_drawing_is_written_to_a_file_but_not_over_the_pipeline(workspace: Path) -> None:
    file = put(workspace, TINY)
    done = pipeline("graph", file, "-o", "out.svg", cwd=workspace)
    assert (done.returncode, done.stdout) == (0, "out.svg\n")
    assert "<svg" in (workspace / "out.svg").read_text("utf-8")
    over = pipeline("graph", file, "-o", file, cwd=workspace)
    assert over.returncode == 2
    assert (workspace / file).read_text("utf-8") == TINY
    assert pipeline("graph", file, "-o", "no/such/folder.svg", cwd=workspace).returncode == 2


@pytest.mark.parametrize("name", sorted(path.stem for path in SHIPPED.glob("*.dot")))
def test_a_new_pipeline_lints_and_replaces_no_file(name: str, workspace: Path) -> None:
    done = pipeline("new", name, cwd=workspace)
    assert (done.returncode, done.stdout) == (0, f"{name}.dot\n")
    lint = pipeline("lint", f"{name}.dot", cwd=workspace)
    assert (lint.returncode, lint.stdout) == (0, CLEAN)
    (workspace / f"{name}.dot").write_text("mine")
    second = pipeline("new", name, cwd=workspace)
    assert second.returncode == 2
    assert "already exists" in second.stderr
    assert (workspace / f"{name}.dot").read_text() == "mine"
    assert name in pipeline("new", "--list", cwd=workspace).stdout


def test_a_new_pipeline_shows_how_to_run_it_under_its_own_name(workspace: Path) -> None:
    assert pipeline("new", "minimal", "first.dot", cwd=workspace).returncode == 0
    assert "corral pipeline run first.dot --simulate" in (workspace / "first.dot").read_text()


def test_an_unknown_template_is_an_error_that_lists_the_known_ones(
    workspace: Path,
) -> None:
    done = pipeline("new", "nothing", "x.dot", cwd=workspace)
    assert done.returncode == 2
    assert "minimal" in done.stderr
    assert list(workspace.iterdir()) == []


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.dot")), ids=lambda path: path.stem)
def test_every_example_lints_clean_without_a_key(path: Path, workspace: Path) -> None:
    done = pipeline("lint", str(path), cwd=workspace)
    assert (done.returncode, done.stdout) == (0, CLEAN)


@pytest.mark.parametrize("path", sorted(SHIPPED.glob("*.dot")), ids=lambda path: path.stem)
def test_a_template_equals_the_example_of_the_same_name(path: Path) -> None:
    example = EXAMPLES / path.name
    assert not example.exists() or example.read_text() == path.read_text()


@pytest.mark.parametrize(
    "words",
    [
        "--help",
        "pipeline --help",
        "pipeline lint {file}",
        "pipeline graph {file}",
        "pipeline paths {file}",
        "pipeline new minimal made.dot",
        "pipeline run --help",
    ],
)
def test_commands_that_run_nothing_import_no_engine_and_no_network(
    words: str, workspace: Path
) -> None:
    file = put(workspace, TINY)
    code = (
        "import sys; sys.argv = ['corral', *sys.argv[1:]]\n"
        "from corral._cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "heavy = {'dbos', 'sqlalchemy', 'httptools', 'ssl', 'corral._system.http.client', 'rich'}\n"
        "print('LOADED', *sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *words.format(file=file).split()],
        cwd=workspace,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stderr.splitlines()[-1] == "LOADED"
