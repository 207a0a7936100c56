"""``corral pipeline lint``, ``graph``, ``paths`` and ``new``: check, draw and create pipelines."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from corral._cli.command_types import examples, plain_option
from corral._cli.options import IMPORT, import_modules
from corral._cli.starters import new_command
from corral._cli.ui.terminal import answer, echo, echo_json
from corral._pipelines import loader
from corral._pipelines.dot_parser import DotError
from corral._pipelines.graph import Graph
from corral._pipelines.linter.engine import lint as lint_graph
from corral._pipelines.linter.finding import Finding
from corral._pipelines.render import NO_PATH
from corral.errors import ConfigError


@click.command(
    "lint", epilog=examples("corral pipeline lint release.dot", "corral pipeline lint *.dot --json")
)
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@IMPORT
@plain_option("--json as_json", "Print JSON: an array of findings.")
def lint(files: tuple[str, ...], modules: tuple[str, ...], as_json: bool) -> int:
    """Check each FILE for problems. Needs no key and no network; nothing runs.

    Each finding is FILE:LINE:COLUMN: SEVERITY RULE: MESSAGE, with what to do below it; the last
    line counts them.

    The exit code is 1 if there is an error; a pipeline with warnings can run.
    """
    import_modules(modules)
    found = [(file, finding) for file in files for finding in _findings(file)]
    errors = sum(finding.severity == "error" for _, finding in found)
    if as_json:
        rows = [{"file": file, **msgspec.to_builtins(finding)} for file, finding in found]
        echo_json(msgspec.json.encode(rows).decode())
        return 1 if errors else 0
    for file, finding in found:
        echo(format_finding(file, finding))
    warnings = len(found) - errors
    echo(f"{_count(errors, 'error')}, {_count(warnings, 'warning')}")
    return 1 if errors else 0


def format_finding(file: str, finding: Finding) -> str:
    """In the format of compilers, which editors can follow."""
    place = f"{file}:{finding.line or 1}:{finding.column or 1}"
    line = f"{place}: {finding.severity} {finding.rule}: {finding.message}"
    return f"{line}\n    fix: {finding.fix}" if finding.fix else line


def _findings(file: str) -> list[Finding]:
    try:
        return lint_graph(loader.load_unchecked(Path(file)))
    except DotError as error:
        return [
            Finding(
                rule="syntax",
                severity="error",
                message=error.problem,
                line=error.line,
                column=error.column,
                fix=error.hint,
            )
        ]


def _count(number: int, what: str) -> str:
    return f"{number or 'no'} {what}{'' if number == 1 else 's'}"


FORMAT = plain_option(
    "--format form",
    "[default: from the suffix of -o, else text]",
    type=click.Choice(["text", "dot", "svg"]),
)
OUTPUT = plain_option("-o --output FILE", "Write to this file.  [default: stdout]")


@click.command("graph")
@click.argument("file")
@FORMAT
@OUTPUT
def graph(file: str, form: str | None, output: str | None) -> None:
    """Draw FILE. Graphviz is not needed."""
    _draw(loader.read(Path(file)), {}, file, form, output)


@click.command("paths")
@click.argument("file")
@IMPORT
@FORMAT
@OUTPUT
@plain_option("--json as_json", "Print JSON, with a --script for each path.")
def paths(
    file: str, modules: tuple[str, ...], form: str | None, output: str | None, as_json: bool
) -> None:
    """List the paths that a run of FILE can take, and the nodes that no path reaches. Nothing runs.

    Of a loop, a path shows one round; of a parallel node, one branch. What makes the run go on
    from a node is in brackets: an outcome, a label, a value of the context.

    With --format or -o FILE also draws it: each node says how many paths reach it.
    """
    from corral._pipelines.graph_paths import find_paths
    from corral._pipelines.linter import engine

    import_modules(modules)
    loaded = loader.load_unchecked(Path(file))
    # Other errors do not keep a path from being found.
    needed = ("start_node", "condition_syntax")
    engine.raise_on_errors(finding for finding in lint_graph(loaded) if finding.rule in needed)
    found = find_paths(loaded)
    if as_json:
        echo_json(msgspec.json.encode(found).decode())
        return
    counts = {name: sum(name in path.nodes for path in found.paths) for name in loaded.nodes}
    statuses = {name: _count(count, "path") for name, count in counts.items()}
    statuses |= dict.fromkeys(found.unreached, NO_PATH)
    if form or output:
        _draw(loaded, statuses, file, form, output)
        return
    for number, path in enumerate(found.paths, 1):
        echo(f"{number:4}  {path.text}" + ("  (a goal gate fails)" if path.end == "fail" else ""))
    count = len(found.paths)
    echo(_count(count, "path") if found.complete else f"the first {count} paths; there are more")
    for names, text in (
        (found.unreached, "no path reaches"),
        (found.fatal, "the run fails if one of these fails"),
        (found.stuck, "the run fails if no condition is true after"),
    ):
        if names:
            echo(f"{text}: {', '.join(names)}")


def _draw(
    drawn: Graph, statuses: dict[str, str], file: str, form: str | None, output: str | None
) -> None:
    """Write the drawing of the pipeline in ``file``."""
    from corral._pipelines.render import as_dot, as_svg, as_text

    if form is None:
        end = Path(output).suffix.lower() if output else ""
        form = {".svg": "svg", ".dot": "dot", ".gv": "dot"}.get(end, "text")
    drawing = {"text": as_text, "dot": as_dot, "svg": as_svg}[form](drawn, statuses)
    drawing = drawing if drawing.endswith("\n") else drawing + "\n"
    if output is None:
        answer(drawing)
        return
    try:
        if Path(output).exists() and Path(output).samefile(file):
            raise ConfigError(f"{output} is the pipeline itself", hint="Name another file.")
        Path(output).write_text(drawing, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{output}: {error.strerror}") from error
    echo(output)


new = new_command(
    "corral._pipelines",
    ".dot",
    """Write the pipeline NAME to FILE, to start with.""",
    "Try it without spending: corral pipeline run {} --simulate",
)
