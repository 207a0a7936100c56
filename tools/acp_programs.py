"""Try programs that speak ACP, of which corral has no record: ``make programs``.

Each is installed from npm or PyPI into its own folder, and gets one prompt through
``corral.run``, with the scripted model behind the variables that most programs read. The table is
written to docs/agents.md: what happened, in corral's own words.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import corral
from corral.testing import ModelServer, say

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/agents.md"
BEGIN, END = "<!-- programs: by make programs -->", "<!-- end of programs -->"
FOLDER = ROOT / ".cache/acp-programs"
NODE = next(iter(sorted(ROOT.glob("tools/node/node_modules/*/bin"))), None)
SECONDS = 120
ANSWER = "hello from the scripted model"


@dataclass(frozen=True)
class Program:
    package: str
    command: str
    beside: str = ""
    """Another package that it needs."""
    python: str = ""
    """It is a Python program, and needs this version."""
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    """Settings in its home; ``URL`` is the scripted model."""
    note: str = ""
    """What the reader should know besides; why something failed."""


PROGRAMS = [
    Program("@agentclientprotocol/claude-agent-acp", "claude-agent-acp"),
    Program("@agentclientprotocol/codex-acp", "codex-acp"),
    Program("@zed-industries/claude-agent-acp", "claude-agent-acp"),
    Program("@zed-industries/claude-code-acp", "claude-code-acp"),
    Program(
        "@zed-industries/codex-acp",
        "codex-acp",
        note="With `auth_method: openai-api-key` it takes the key, and always calls"
        " `api.openai.com`.",
    ),
    Program("@augmentcode/auggie", "auggie --acp"),
    Program(
        "@kilocode/cli",
        "kilo acp",
        note="Its install script did not find its package for this machine.",
    ),
    Program("@nanocollective/nanocoder", "nanocoder --acp"),
    Program("@qoder-ai/qodercli", "qodercli --acp"),
    Program("droid", "droid exec --output-format acp"),
    Program(
        "pi-acp",
        "pi-acp",
        beside="@earendil-works/pi-coding-agent@0.87.1",
        files={
            ".pi/agent/models.json": '{"providers": {"x": {"baseUrl": "URL/v1", "apiKey": "x",'
            ' "api": "openai-completions", "models": [{"id": "any"}]}}}',
            ".pi/agent/settings.json": '{"quietStartup": true, "defaultProvider": "x",'
            ' "defaultModel": "any"}',
        },
        note="It needs `pi` on `PATH`, of a version that knows `get_available_thinking_levels`: to"
        " an older one, such as 0.74 for Node 20, `pi-acp` waits forever in `session/new`.",
    ),
    Program("fast-agent-mcp", "fast-agent-acp --model openai.gpt-4.1", python="3.13"),
    Program("hermes-agent[acp]", "hermes-acp", python="3.12"),
    Program("kimi-cli", "kimi acp", python="3.13"),
    Program("minion-code", "mcode acp", python="3.12"),
    Program("mistral-vibe", "vibe-acp", python="3.13"),
    Program("openhands", "openhands acp", python="3.12"),
]


def install(program: Program) -> tuple[Path, str]:
    """The folder of its programs, and its version. Raises ``CalledProcessError``."""
    folder = FOLDER / re.sub(r"\W+", "-", program.package).strip("-")
    folder.mkdir(parents=True, exist_ok=True)
    name = program.package.split("[")[0]
    if program.python:
        uv, python = str(Path(sys.executable).with_name("uv")), str(folder / "bin/python")
        if not (folder / "bin/python").exists():
            run(uv, "venv", "--python", program.python, str(folder))
        run(uv, "pip", "install", "--python", python, program.package)
        find = "import sys, importlib.metadata as m; print(m.version(sys.argv[1]))"
        return folder / "bin", run(python, "-c", find, name).strip()
    packages = [program.package, *program.beside.split()]
    run("npm", "install", "--prefix", str(folder), "--no-audit", "--no-fund", *packages)
    package = json.loads((folder / "node_modules" / name / "package.json").read_text())
    return folder / "node_modules/.bin", str(package["version"])


def run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def try_one(program: Program) -> str:
    """A row of the table."""
    try:
        bins, version = install(program)
    except subprocess.CalledProcessError as error:
        lines = [line for line in error.stderr.splitlines() if "warn" not in line]
        reason = (lines or [""])[0]
        return row(program, "", f"not installed: {reason}")
    name, *arguments = program.command.split()
    with TemporaryDirectory() as home, ModelServer([say(ANSWER)] * 20) as server:
        (Path(home) / "work").mkdir()
        for path, text in program.files.items():
            (Path(home) / path).parent.mkdir(parents=True, exist_ok=True)
            (Path(home) / path).write_text(text.replace("URL", server.url))
        try:
            result = corral.run_sync(
                " ".join([str(bins / name), *arguments]),
                "Say hello",
                check=True,
                cwd=str(Path(home) / "work"),
                env={**server.env, "HOME": home, "PATH": f"{bins}:{os.environ['PATH']}"},
                timeout=SECONDS,
            )
        except corral.CorralError as error:
            what = f"{error.code}: {error.message}".replace(str(bins / name), name)
        else:
            is_ours = result.text.strip() == ANSWER
            what = "answers" if is_ours else f"answers, without the model: {result.text}"
        what = what.replace(home, "~")
    return row(program, version, what)


def row(program: Program, version: str, what: str) -> str:
    short = " ".join(what.split()).replace("|", "\\|")
    short = short if len(short) <= 160 else f"{short[:157]}…"
    shown = ". ".join(filter(None, (short.rstrip("."), program.note)))
    return f"| `{program.package}` {version} | `{program.command}` | {shown} |"


def main(names: list[str]) -> None:
    os.environ["PATH"] = os.pathsep.join([*([str(NODE)] if NODE else []), os.environ["PATH"]])
    rows: list[str] = []
    for program in PROGRAMS:
        if not names or program.package in names:
            rows.append(try_one(program))
            print(rows[-1], flush=True)
    if not names:
        before, _, rest = PAGE.read_text().partition(BEGIN)
        table = ["| package | command | what happened |", "|---|---|---|", *rows]
        after = rest.partition(END)[2]
        PAGE.write_text("\n".join([f"{before}{BEGIN}", *table, f"{END}{after}"]))


if __name__ == "__main__":
    main(sys.argv[1:])
