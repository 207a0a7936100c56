"""The samples and commands in README and docs are run; the reference tables match the code.

Each fenced block has a language that says what is done with it:

- ``python``: run as a script, or by pytest if it defines tests;
- ``console``: each line is ``$ COMMAND``; the commands of a page run in order, in one folder;
- ``sh``: not run (it installs, waits or needs a server), but its ``corral`` commands are parsed;
- ``toml``, ``dot``, ``json``: parsed, and checked against what the code reads;
- ``yaml``: a workflow of GitHub, whose uses of our action are checked (``test_ci_templates.py``);
- ``text``: neither code nor a command.

A block whose first line is a comment with a file name (``# script.toml``) is that file.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from types import ModuleType

import click
import pytest
from support import answering_gemini, locked_environment
from support.command_page import commands, examples_of
from support.events_page import with_errors, with_events
from support.goldens import check_golden
from support.light_pytest import LIGHT_PYTEST
from support.models_page import with_models
from support.public_modules import public_modules
from support.real_agents import KEY
from support.samples import BLOCKS, PAGES, ROOT, SKILL, Block

import corral
from corral import errors, pipelines
from corral._agents.configured import declared_agent
from corral._cli.command_types import SectionedGroup, SectionOption
from corral._cli.main import command
from corral._serving.http.clients import ClientSettings
from corral.policy import policy_from_table
from corral.run_kwargs import RunKwargs
from corral.testing import Call, ModelServer, Request, Script, Turn

pytestmark = pytest.mark.whole_program

LANGUAGES = {"python", "console", "sh", "toml", "dot", "json", "yaml", "text"}
OVERVIEWS = ("README", "command-line")
SHORT = 220
"""Lines of the README."""
FIRST_SCREEN = 24
"""Lines of it that a terminal shows at once."""
WRITTEN = (*PAGES, ROOT / "SECURITY.md", ROOT / "CONTRIBUTING.md")
"""What people write and read. The changelog grows with each change."""
MOST_WORDS = 35_000
"""Words of these pages that people write (``hand_written_words``). It may only become smaller."""
RECIPE_WORDS = 250
"""Words of a page of the cookbook."""
GENERATED = {
    "made of the commands": "tests/test_option_definitions.py",
    "made of the option definitions": "tests/test_option_definitions.py",
    "made of the records of pipelines": "tests/pipelines/test_pipeline_docs.py",
    "made of the agents": "tests/agents/test_agent_registry.py",
    "made of the errors": "tests/test_docs.py",
    "made of the events": "tests/test_docs.py",
    "made of the vendors": "tests/test_docs.py",
    "made of the options of models": "tests/test_docs.py",
    "made of the events of models": "tests/test_docs.py",
    "made of the protected paths": "tests/core/test_protected_paths.py",
    "made of the hooks of agents": "tests/sessions/tools/test_hooks.py",
    "made of the operations": "tests/view/test_http_api_page.py, test_serve_api_page.py",
    "bench": "make bench",
    "chaos": "make chaos",
    "table": "make table",
    "attack": "make table",
    "sandbox": "make table",
    "programs": "make programs",
}
"""The beginning of a mark -> what writes the text from there to the next ``<!-- end``."""


def page_text(name: str) -> str:
    return (ROOT / "docs" / f"{name}.md").read_text()


def blocks(language: str) -> list[Block]:
    return [block for block in BLOCKS if block.language == language]


def needs_gemini(text: str) -> list[pytest.MarkDecorator]:
    """The mark of samples that start the real Gemini CLI."""
    uses = re.search(
        r'"gemini(-cli|-acp)?"|corral (pipeline )?run(?!.*(gemini:|--simulate|--import))', text
    )
    return [pytest.mark.gemini_cli] if uses else []


USES_TOOLS = r"NOTES\.md|What has changed|Which version|write_file|sandbox="
"""Prompts for which ``answer`` calls a tool, and the sandbox, which must let the CLI start."""
USES_PANDAS = "import pandas"
"""A deep test runs it, in an environment that has pandas and matplotlib."""
DEAR_SAMPLES = {
    *("README-7", "batches-6", "compare-2", "pipelines-15"),
    *("testing-6", "testing-7", "testing-9", "testing-10"),
}
"""They run batches, comparisons, pipelines and pytest."""
FIRST_SAMPLE = "README-5"
FIRST_COMMANDS = "getting-started"
MOST_COMMANDS = 3
"""A page with more commands is deep."""


def samples() -> list[object]:
    """The first sample, and those in which the agent uses tools, start the real Gemini CLI. The
    others only need an answer: a program like it gives it (``sample_env``)."""
    return [pytest.param(b, id=b.name, marks=sample_marks(b)) for b in blocks("python")]


def sample_marks(block: Block) -> list[pytest.MarkDecorator]:
    if block.name == FIRST_SAMPLE:
        return [*needs_gemini(block.text), pytest.mark.spine]
    if re.search(USES_TOOLS, block.text):
        return [*needs_gemini(block.text), pytest.mark.deep]
    is_first = block == next(b for b in blocks("python") if b.page == block.page)
    if USES_PANDAS in block.text or not (is_first or block.page == "README"):
        return [pytest.mark.deep]
    return [pytest.mark.deep] if block.name in DEAR_SAMPLES else []


def test_the_first_sample_and_the_first_commands_start_the_real_agent() -> None:
    [first] = [block for block in blocks("python") if block.name == FIRST_SAMPLE]
    assert needs_gemini(first.text)
    assert any(needs_gemini(b.text) for b in blocks("console") if b.page == FIRST_COMMANDS)


def console_pages() -> list[object]:
    """The commands of each page. Overviews repeat commands of other pages: they run there. Those of
    the tutorial start the real Gemini CLI."""
    pages: dict[str, list[str]] = {}
    for block in blocks("console"):
        lines = block.text.splitlines()
        assert all(line.startswith("$ ") for line in lines), block.name
        pages.setdefault(block.page, []).extend(line[2:] for line in lines)
    elsewhere = {line for page, lines in pages.items() if page not in OVERVIEWS for line in lines}
    for page in OVERVIEWS:
        pages[page] = [line for line in pages[page] if line not in elsewhere]
    return [
        pytest.param(
            page, lines, id=page, marks=[*needs_gemini("\n".join(lines)), pytest.mark.deep]
        )
        if page == FIRST_COMMANDS
        else pytest.param(page, lines, id=page, marks=[pytest.mark.deep] if is_long else [])
        for page, lines in pages.items()
        for is_long in [len(lines) > MOST_COMMANDS]
    ]


def answer(request: Request) -> Turn:
    """A model that has an answer for every sample."""
    if "Write NOTES.md" in request.last_text and not request.tool_results:
        return Turn(calls=[Call("write_file", {"file_path": "NOTES.md", "content": "a start"})])
    if "NOTES.md` exited with 1" in request.last_text and len(request.tool_results) < 2:
        return Turn(calls=[Call("write_file", {"file_path": "NOTES.md", "content": "today"})])
    if "Review this project" in request.last_text:
        return Turn(text='```json\n{"summary": "small", "problems": ["a typo"]}\n```')
    if "You review a change" in request.last_text:
        return Turn(text='{"summary": "small", "findings": []}')
    if "Which version" in request.last_text and not request.tool_results:
        return Turn(calls=[Call("mcp_corral_deployed_version", {"service": "api"})])
    if "Read the invoice" in request.last_text:
        return Turn(text='{"number": "2026-117", "total": 1250.0, "currency": "EUR"}')
    if "How is the weather" in request.last_text and not request.tool_results:
        return Turn(calls=[Call("weather", {"city": "Ghent"})])
    if "What has changed" in request.last_text and not request.tool_results:
        return Turn(calls=[Call("run_shell_command", {"command": "git status"})])
    return Turn(text="It is a small project.", usage={"input": 10, "output": 5})


@pytest.fixture
def sample_env(
    request: pytest.FixtureRequest, model_server: ModelServer, workspace: Path
) -> dict[str, str]:
    """A small project as the working directory, and a scripted model."""
    (workspace / "README.md").write_text("# A smal project\n")
    (workspace / "LICENSE").write_text("Apache-2.0\n")
    lane = model_server.lane(f"docs-{workspace.parent.name}", answer)
    path = [str(Path(sys.executable).parent), os.environ["PATH"]]
    if request.node.get_closest_marker("gemini_cli"):
        path.insert(1, str(Path(request.getfixturevalue("gemini_program")).parent))
    else:
        path.insert(1, answering_gemini.folder_for_path(workspace.parent))
    return {
        **os.environ,
        "PATH": os.pathsep.join(path),
        "GEMINI_API_KEY": KEY,
        "GOOGLE_GEMINI_BASE_URL": lane.url,
        "PYTHONWARNINGS": "error",
        "VISUAL": "sed -i 1iThe-first.",  # an editor that writes an answer at once
    }


def run(argv: list[str], workspace: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv,
        cwd=workspace,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
    )


@pytest.mark.parametrize("block", samples())
def test_a_python_sample_runs(block: Block, sample_env: dict[str, str], workspace: Path) -> None:
    if "def test_" not in block.text:
        python = sys.executable
        if USES_PANDAS in block.text:
            python = str(locked_environment.install("receivers") / "python")
            sample_env["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        done = run([python, "-c", block.text], workspace, sample_env)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        return
    (workspace / "test_sample.py").write_text(block.text)
    recorded = "agent_cassette" in block.text
    for options in (["--corral-record"], []) if recorded else ([],):
        done = run([*LIGHT_PYTEST, "-q", *options, "test_sample.py"], workspace, sample_env)
        assert done.returncode == 0, done.stdout
        assert "1 passed" in done.stdout


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("page", "commands"), console_pages())
def test_the_commands_of_a_page_run_in_order(
    page: str, commands: list[str], sample_env: dict[str, str], workspace: Path
) -> None:
    for block in BLOCKS:
        if block.page == page and block.file:
            (workspace / block.file).write_text(block.text)
    if any(line.startswith("git diff") for line in commands):
        run(["git", "init", "-q"], workspace, sample_env)
        run(["git", "add", "README.md"], workspace, sample_env)
        (workspace / "README.md").write_text("# A smal project that changed\n")
    for line in commands:
        if line.startswith("make "):
            continue
        done = run(["bash", "-c", line], workspace, sample_env)
        assert done.returncode == 0, (line, done.stderr)
        assert done.stdout or done.stderr or ">" in line, line


def test_every_block_has_a_known_language() -> None:
    assert {block.name: block.language for block in BLOCKS if block.language not in LANGUAGES} == {}
    hidden = [b.name for b in blocks("text") if re.search(r"^(\$ )?(corral|make) ", b.text, re.M)]
    assert hidden == [], "a command belongs into a console or sh block"


def parsed_command(line: str) -> click.Command | None:
    """The command of a line, whose options it knows; None if it is not one of corral."""
    first, *words = shlex.split(line, comments=True) or [""]
    if first != "corral":
        return None
    target: click.Command = command
    while isinstance(target, click.Group):
        chosen = target.get_command(click.Context(target), words[0])
        if chosen is None and isinstance(target, SectionedGroup):
            break
        assert chosen is not None, line
        target, words = chosen, words[1:]
    options = (each for each in target.params if isinstance(each, SectionOption) and each.bare)
    bare = {flag: f"{flag}={each.bare}" for each in options for flag in each.opts}
    target.make_parser(click.Context(target)).parse_args([bare.get(word, word) for word in words])
    return target


@pytest.mark.parametrize("block", blocks("sh"), ids=lambda block: block.name)
def test_a_command_that_is_not_run_has_only_known_options(block: Block) -> None:
    for line in block.text.replace("\\\n", " ").splitlines():
        parsed_command(line)


BELOW = {
    *("pipeline run", "pipeline lint", "workflow run", "agents install", "agents doctor"),
    *("agents check", "outputs apply", "fake serve", "runs list", "runs show", "runs prune"),
    *("runs usage", "runs export", "runs watch", "runs replay", "runs answer", "runs budget"),
    *("runs resume", "runs fork"),
}
"""Commands of groups that have examples, as all commands that are in no group."""


def test_the_help_of_each_main_command_ends_with_two_examples_that_it_can_parse() -> None:
    missing = {f"corral {name}" for name in BELOW}
    for path, found in commands(command):
        is_list = isinstance(found, click.Group) and not isinstance(found, SectionedGroup)
        is_main = path.count(" ") == 1 and not is_list and not path.endswith("completion")
        lines = examples_of(found)
        assert len(lines) == (2 if is_main or path in missing else 0), path
        missing.discard(path)
        shown = found.get_help(click.Context(found)).rstrip().splitlines()
        assert [line.strip() for line in shown[len(shown) - len(lines) :]] == lines
        for line in lines:
            assert len(line) <= 76, line
            assert parsed_command(line[line.index("corral ") :]) is found, line
    assert missing == set()


def test_every_make_target_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for page in (*PAGES, ROOT / "AGENTS.md", ROOT / "CONTRIBUTING.md"):
        for target in re.findall(r"[`$] ?make ([a-z-]+)", page.read_text()):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_every_toml_block_is_what_the_code_reads() -> None:
    for block in blocks("toml"):
        table = tomllib.loads(block.text)
        match block.page:
            case "serve" | "monthly-budget":
                fields = {name for client in table["clients"].values() for name in client}
                assert fields <= {*ClientSettings.__struct_fields__}
            case "policy":
                policy_from_table(table, block.name)  # an unknown key raises
            case "testing":
                assert len(Script.parse(block.text).turns) == 3
            case "configuration" | "default-agent":
                for each in (table.get("defaults", {}), *table["agents"].values()):
                    assert set(each) <= set(RunKwargs.__annotations__)
            case "agents" | "own-agent":
                made = [declared_agent(n, each, block.name) for n, each in table["agents"].items()]
                assert "stream" in {agent.transport.kind for agent in made}
            case _:  # read by their own tests
                assert block.page in ("adding-agents", "scenarios"), block.name


def test_every_dot_block_is_a_pipeline() -> None:
    assert blocks("dot")
    for block in blocks("dot"):
        found = pipelines.lint(pipelines.parse(block.text))
        unknown = {finding.message for finding in found if "my.step" not in finding.message}
        assert not unknown, block.name


def test_every_json_block_is_json() -> None:
    for block in blocks("json"):
        for text in re.findall(r"^\{[^\n]*\}$|^\{.*?^\}$", block.text, re.MULTILINE | re.DOTALL):
            json.loads(text)


def test_every_option_is_documented() -> None:
    text = page_text("configuration").partition("## corral.toml")[0]
    missing = {name for name in RunKwargs.__annotations__ if f"`{name}`" not in text}
    assert missing == set()


def test_every_environment_variable_is_documented() -> None:
    sources = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    private = {
        "CORRAL_RUN_MARK",
        "CORRAL_CASSETTE_RUN",
        "CORRAL_CASSETTE_SECRETS",
        "CORRAL_OWN_FILES",
        "CORRAL_MCP_HEADERS",
    }
    found = set(re.findall(r'"(CORRAL_[A-Z_]*[A-Z])"', sources)) - private
    missing = {name for name in found if f"`{name}`" not in page_text("configuration")}
    assert missing == set()


def test_the_tables_of_errors_and_events_are_those_of_their_classes() -> None:
    for name, with_tables in (
        ("errors-and-exit-codes", with_errors),
        ("events-and-results", with_events),
    ):
        check_golden(ROOT / "docs" / f"{name}.md", with_tables(page_text(name)))


def test_every_exit_code_of_an_error_is_documented() -> None:
    text = page_text("errors-and-exit-codes")
    codes = {kind.cli_exit for kind in errors.classes_by_code().values()}
    assert {code for code in codes if f"\n| {code} |" not in text} == set()


def test_the_tables_of_models_are_those_of_their_records() -> None:
    check_golden(ROOT / "docs" / "models.md", with_models(page_text("models")))
    errors_part = page_text("models").partition("## Errors")[2]
    for name in re.findall(r"`([A-Z]\w+(?:Error)?)`", errors_part):
        assert name in dir(errors) or name == "CORRAL_MODELS", name


def resolve(name: str) -> object:
    """The module, class or function of a dotted name. Raises ``AttributeError``."""
    found: object = corral
    for part in name.split(".")[1:]:
        try:
            found = getattr(found, part)
        except AttributeError:
            if not isinstance(found, ModuleType):
                raise
            found = import_module(f"{found.__name__}.{part}")
    return found


def loggers() -> set[str]:
    """The names of the loggers in the source."""
    sources = (path.read_text("utf-8") for path in (ROOT / "src").rglob("*.py"))
    return {name for text in sources for name in re.findall(r'getLogger\("(corral[\w.]*)"\)', text)}


def test_every_logger_is_documented() -> None:
    documented = set(re.findall(r"`(corral[\w.]*)`", page_text("configuration")))
    assert "corral.models" in loggers()
    assert loggers() - documented == set()


def test_every_public_name_in_the_text_exists() -> None:
    other = {"corral.toml", "models.toml", "corral.nodes", *loggers()}  # files, entry points
    other |= {*public_modules()}  # some need an extra
    for page in (*PAGES, *SKILL):
        found = re.findall(r"`(?:await )?((?:corral|pipelines|models)(?:\.\w+)+)", page.read_text())
        for name in set(found) - other:
            resolve(f"corral.{name.removeprefix('corral.')}")


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}


def test_every_link_leads_to_a_page_and_a_heading() -> None:
    others = (*(ROOT / name for name in ("AGENTS.md", "CONTRIBUTING.md", "benchmarks/README.md")),)
    for page in (*PAGES, *SKILL, *others):
        for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
            path, _, anchor = link.partition("#")
            if "://" in link:
                continue
            target = (page.parent / path).resolve() if path else page
            assert target.exists(), (page.name, link)
            assert not anchor or anchor in anchors(target), (page.name, link)


def test_the_repository_of_corral_is_one_placeholder_in_files_that_a_reader_copies() -> None:
    """Its address is not known here. A build gets it from ``REPOSITORY_URL``, for its metadata and
    the links of the README (``tools/metadata_hook.py``)."""
    address = re.compile(r"github\S*/corral|[A-Z]+/corral|/corral@|<[\w ]*repository|://\.\.\.")
    named = {
        page.stem: line
        for page in (*PAGES, *SKILL, ROOT / "SECURITY.md", ROOT / "CONTRIBUTING.md")
        for line in page.read_text().splitlines()
        if address.search(line)
    }
    assert named.keys() == {"review-bot", "review"}
    assert all("OWNER/corral" in line and "# replace OWNER" in line for line in named.values())


def test_every_test_that_a_page_names_exists() -> None:
    for page in (*PAGES, ROOT / "SECURITY.md"):
        text = page.read_text() if page.exists() else ""
        for path, name in re.findall(r"(tests/[\w/]+\.py)::(\w+)", text):
            assert f"def {name}(" in (ROOT / path).read_text(), (page.name, name)


def linked_pages(page: Path) -> set[Path]:
    links = re.findall(r"\]\(([^)\s#]+\.md)", page.read_text())
    return {(page.parent / link).resolve() for link in links if "://" not in link}


def test_every_page_is_linked_from_the_readme_or_from_a_page_that_is() -> None:
    listed = linked_pages(ROOT / "README.md") & {*PAGES}
    assert {*PAGES[1:]} - listed - {page for each in listed for page in linked_pages(each)} == set()


def test_the_readme_is_short() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= SHORT


def test_the_first_screen_of_the_readme_says_how_a_clone_is_tried_and_tested() -> None:
    first_screen = (ROOT / "README.md").read_text().splitlines()[:FIRST_SCREEN]
    targets = {line.split()[1] for line in first_screen if line.startswith("make ")}
    assert {"demo", "test"} <= targets
    for target in targets:
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_every_picture_of_a_page_has_a_text_that_describes_it() -> None:
    for page in PAGES:
        for text, path in re.findall(r"!\[(.*?)\]\((.*?)\)", page.read_text()):
            assert len(text.split()) >= 2, (page.name, path)


def test_every_picture_is_small_and_loads_nothing() -> None:
    pictures = [*(ROOT / "docs" / "images").rglob("*.*")]
    assert pictures
    assert {path.name for path in pictures if path.stat().st_size > 100_000} == set()
    for path in (path for path in pictures if path.suffix == ".svg"):
        text = path.read_text()
        assert re.findall(r"(?:href|src)=|url\(|@import|<script", text) == [], path.name
        assert 'aria-label="' in text, path.name


def hand_written_words(text: str) -> int:
    """The words of a page, as ``wc -w`` counts them, without generated text and without code
    blocks, which are samples."""
    text = re.sub(r"^<!-- (?!end).*?^<!-- end[^\n]*-->$", "", text, flags=re.MULTILINE | re.DOTALL)
    return len(re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL).split())


def test_the_documentation_is_short() -> None:
    words = {path.name: hand_written_words(path.read_text()) for path in WRITTEN}
    longest = sorted(words.items(), key=lambda item: -item[1])[:5]
    assert sum(words.values()) <= MOST_WORDS, f"shorten or generate something: {longest}"


def test_a_recipe_is_short() -> None:
    recipes = [path for path in WRITTEN if path.parent.name == "cookbook"]
    words = {path.name: hand_written_words(path.read_text()) for path in recipes}
    assert {name: count for name, count in words.items() if count > RECIPE_WORDS} == {}


def test_every_mark_of_generated_text_is_known_and_has_an_end() -> None:
    for path in WRITTEN:
        marks = re.findall(r"^<!-- (.*?) ?-->$", path.read_text(), re.MULTILINE)
        for begin, end in zip(marks[::2], marks[1::2], strict=True):
            assert any(begin.startswith(known) for known in GENERATED), (path.name, begin)
            assert end.startswith("end"), (path.name, begin)


def test_the_map_of_the_source_tree_has_every_package_and_only_modules_that_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    tree = text.partition("```text\nsrc/corral/\n")[2].partition("```")[0]
    source = ROOT / "src" / "corral"
    packages = {each.parent.relative_to(source) for each in source.rglob("__init__.py")}
    named = set(re.findall(r"\b(_?[a-z]\w*)/", tree))
    assert named == {path.name for path in packages if 1 <= len(path.parts) <= 2}
    lines = tree.partition("_core/")[0].splitlines()
    names = [line for line in lines if not line.startswith(" " * 8)]  # other lines describe them
    modules = re.findall(r"_?[a-z]\w+", " ".join(names))
    assert {*modules, "live", "serve"} == {path.stem for path in source.glob("*.py")} - {
        "__init__",
        "__main__",
    }
