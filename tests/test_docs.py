"""What the README and the docs say is run, or held against the code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import get_args

import pytest
from real_gemini import KEY

from corral import errors, events
from corral.generation import StreamEvent
from corral.inference.asking import OPTIONS
from corral.keywords import Options
from corral.models import registry
from corral.pipelines.rules import values
from corral.policy import policy_from
from corral.result import Result
from corral.testing import Call, ModelServer, Request, Script, Turn

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def commands() -> list[str]:
    lines = "".join(blocks("console")).splitlines()
    assert all(line.startswith("$ ") for line in lines)
    return [line[2:] for line in lines]


def answer(request: Request) -> Turn:
    """A model that is good for every example."""
    if "Write a.txt" in request.last_text and not request.tool_results:
        return Turn(calls=[Call("write_file", {"file_path": "a.txt", "content": "hi"})])
    if "Write NOTES.md" in request.last_text and not request.tool_results:
        return Turn(calls=[Call("write_file", {"file_path": "NOTES.md", "content": "a start"})])
    if "NOTES.md` exited with 1" in request.last_text and len(request.tool_results) < 2:
        return Turn(calls=[Call("write_file", {"file_path": "NOTES.md", "content": "today"})])
    if "Review this project" in request.last_text:
        return Turn(text='```json\n{"summary": "small", "problems": ["a typo"]}\n```')
    if "Which version" in request.last_text and not request.tool_results:
        return Turn(calls=[Call("mcp_corral_deployed_version", {"service": "api"})])
    if "What has changed" in request.last_text and not request.tool_results:
        return Turn(calls=[Call("run_shell_command", {"command": "git status"})])
    return Turn(text="It is a small project.", usage={"input": 10, "output": 5})


@pytest.fixture
def example_env(gemini_program: str, model_server: ModelServer, workspace: Path) -> dict[str, str]:
    """An environment in which the README's words are true."""
    (workspace / "README.md").write_text("# A smal project\n")
    lane = model_server.lane(f"docs-{workspace.parent.name}", answer)
    path = os.pathsep.join(
        [str(Path(sys.executable).parent), str(Path(gemini_program).parent), os.environ["PATH"]]
    )
    return {
        **os.environ,
        "PATH": path,
        "GEMINI_API_KEY": KEY,
        "GOOGLE_GEMINI_BASE_URL": lane.url,
        "PYTHONWARNINGS": "error",
        "VISUAL": "sed -i 1iThe-first.",  # a person who answers at once
    }


@pytest.mark.gemini_cli
@pytest.mark.parametrize("number", range(len(blocks("python"))))
def test_a_python_example_of_the_readme_runs(
    number: int, example_env: dict[str, str], workspace: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", blocks("python")[number]],
        cwd=workspace,
        env=example_env,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


@pytest.mark.gemini_cli
def test_the_examples_of_the_page_on_sessions_run(
    example_env: dict[str, str], workspace: Path
) -> None:
    examples = blocks("python", (ROOT / "docs" / "sessions.md").read_text())
    assert examples
    for example in examples:
        done = subprocess.run(
            [sys.executable, "-c", example],
            cwd=workspace,
            env=example_env,
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout


@pytest.mark.gemini_cli
@pytest.mark.timeout(240)
def test_the_commands_of_the_readme_run_in_their_order(
    example_env: dict[str, str], workspace: Path
) -> None:
    for command in commands():
        if command.startswith("make "):
            continue
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=workspace,
            env=example_env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert done.returncode == 0, (command, done.stderr)
        assert done.stdout or ">" in command, command
    assert len((workspace / "events.ndjson").read_text().splitlines()) >= 3


@pytest.mark.gemini_cli
def test_the_demo_does_what_it_promises(example_env: dict[str, str], workspace: Path) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "demo.py"],
        cwd=workspace,
        env=example_env,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Everything went as it must." in done.stdout


def test_every_make_target_of_the_readme_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"make (\w+)", README):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_the_toml_of_the_readme_is_what_the_code_reads() -> None:
    policy, defaults, script = blocks("toml")
    assert policy_from(tomllib.loads(policy), "README").network == "allow"
    assert len(Script.parse(script).turns) == 3
    config = tomllib.loads(defaults)
    for table in (config["defaults"], *config["agents"].values()):
        assert set(table) <= set(Options.__annotations__)


def test_every_option_is_in_the_readme() -> None:
    for name in Options.__annotations__:
        if name != "config":
            assert f"`{name}`" in README, name


def test_every_option_event_and_vendor_of_the_models_is_documented() -> None:
    text = (ROOT / "docs" / "models.md").read_text()
    for name in OPTIONS:
        assert f"`{name}`" in text, name
    for kind in get_args(StreamEvent):
        assert f"`{kind.__struct_config__.tag}`" in text
    for provider in registry.every():
        assert f"`{provider.name}`" in text, provider.name
    for name in re.findall(r"`([A-Z]\w+(?:Error)?)`", text.partition("## Errors")[2]):
        assert name in dir(errors) or name == "CORRAL_MODELS", name


def test_every_event_and_field_is_documented() -> None:
    text = (ROOT / "docs" / "events.md").read_text()
    for kind in get_args(events.Event):
        tag = kind.__struct_config__.tag
        row = re.search(rf"^\| `{tag}` \|(.*)$", text, re.MULTILINE)
        assert row, tag
        for field in set(kind.__struct_fields__) - set(events.Envelope.__struct_fields__):
            assert f"`{field}`" in row[1], (tag, field)
    for field in (*events.Envelope.__struct_fields__, *Result.__struct_fields__):
        assert f"`{field}`" in text, field


def test_every_link_leads_somewhere() -> None:
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")):
        for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / link).exists(), link


def test_every_attribute_of_a_pipeline_is_documented() -> None:
    text = (ROOT / "docs" / "pipelines.md").read_text()
    missing = {
        name
        for name in values.GRAPH | values.NODE | values.OWN | values.EDGE
        if f"`{name}`" not in text and f"`{name}=" not in text
    }
    assert missing <= {"shape", "default_max_retry"}  # in a table of their own; an older name
