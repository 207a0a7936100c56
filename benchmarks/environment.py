"""Where the benchmarks run: environments under ``.cache/bench``, and a small project to work in.

corral is measured in an environment that has its dependencies and nothing else, as a
user has it; the limits run in the same one. Every peer has its own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from benchmarks.measure import progress
from benchmarks.time_limit import no_time_limit

HERE = Path(__file__).parent
PROGRAMS = HERE / "programs"
LOCKS = HERE / "peers"
NPM_LOCKS = HERE.parent / "tools"
RUNTIME = HERE.parent / "requirements" / "runtime.txt"
CACHE = HERE.parent / ".cache" / "bench"
MANAGED = Path(os.environ.get("CORRAL_HOME") or HERE.parent / ".cache" / "corral")
"""Where ``make`` put the agents."""

LAUNCHER = (
    "import sys\nfrom corral._cli.entry import main\nif __name__ == '__main__':\n    main()\n"
)

ACP_SDK = "agent-client-protocol"
ACPX = "acpx"
CLAUDE_SDK = "claude-agent-sdk"
LANGGRAPH = "langgraph"
ENGINE = "engine"
"""corral's dependencies with its engine; DBOS alone is measured there too."""
PREFECT = "prefect"
LITELLM = "litellm"
LITELLM_PROXY = "litellm-proxy"
"""Its proxy needs more packages."""
ANTHROPIC, GENAI, OPENAI = "anthropic", "google-genai", "openai"
HTTP_CLIENTS = "http-clients"
"""aiohttp and httpcore."""

_INIT = '{"type":"init","timestamp":"2026-11-15T00:00:00.000Z","session_id":"s","model":"none"}'
_RESULT = (
    '{"type":"result","timestamp":"2026-11-15T00:00:00.000Z","status":"success","stats":'
    '{"total_tokens":3,"input_tokens":1,"output_tokens":2,"cached":0,"models":{}}}'
)


@dataclass(frozen=True)
class BenchEnvironment:
    quick: bool
    """Fewer rounds, and only peers that are installed already."""

    def rounds(self, count: int) -> int:
        return max(1, count // 4) if self.quick else count

    @cached_property
    def python(self) -> Path:
        """An interpreter with corral and its dependencies."""
        return self.corral.with_name("python")

    @cached_property
    def corral(self) -> Path:
        """The command, as an installer would write it."""
        folder = CACHE / "corral"
        if self.quick and not _ready("corral"):
            progress("corral is measured in this environment, with all its other packages\n")
            return Path(sys.executable).with_name("corral")
        _python_peer("corral", folder)
        packages = next(folder.glob("lib/python*/site-packages"))
        (packages / "corral.pth").write_text(f"{HERE.parent / 'src'}\n")
        command = folder / "bin" / "corral"
        command.write_text(f"#!{folder / 'bin' / 'python'}\n{LAUNCHER}")
        command.chmod(0o755)
        return command

    def peer(self, name: str) -> Path | None:
        """The folder of a peer's programs; None if it is not available."""
        folder = CACHE / name
        bin_folder = folder / ("node_modules/.bin" if name == ACPX else "bin")
        if _ready(name):
            return bin_folder
        if self.quick or (name == ACPX and not shutil.which("npm")):
            progress(f"{name} is not installed: left out\n")
            return None
        try:
            _npm_peer(name, folder) if name == ACPX else _python_peer(name, folder)
        except subprocess.CalledProcessError as error:
            progress(
                f"{name} cannot be installed and is left out: {error.stderr.decode()[-500:]}\n"
            )
            return None
        return bin_folder

    @cached_property
    def project(self) -> Path:
        """A small folder to work in."""
        return _with_modules(CACHE / "project")

    @cached_property
    def repository(self) -> Path:
        """The same as a git repository of its own: else it would be that of corral."""
        folder = _with_modules(CACHE / "repository")
        identity = ("-c", "user.name=bench", "-c", "user.email=bench@localhost")
        for words in (
            ("init", "-q"),
            ("add", "--all"),
            ("commit", "-q", "--allow-empty", "-m", "x"),
        ):
            subprocess.run(["git", *identity, *words], cwd=folder, check=True)
        return folder

    @cached_property
    def env(self) -> dict[str, str]:
        """Only the variables that programs need to run."""
        home = CACHE / "home"
        home.mkdir(parents=True, exist_ok=True)
        return {
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "HOME": str(home),
            "CORRAL_HOME": str(CACHE / "corral-home"),
            "GEMINI_API_KEY": "none-is-needed",
            "CORRAL_PROBE": "never",
            # Without it litellm fetches a price list when it is imported.
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        }

    def stream(self, count: int, *, tools: bool = False) -> Path:
        """A file of ``count`` lines of the Gemini CLI, 225 bytes each; with ``tools`` every
        fifth pair of them is a tool call and its result."""
        name = f"{count}{'-tools' if tools else ''}.ndjson"
        return _made(name, lambda: _lines(count, tools=tools))

    def updates(self, count: int) -> Path:
        """A file of ``count`` updates of an ACP session, pieces of text of 225 bytes each."""
        head = (
            '{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":'
            '{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"piece '
        )
        lines = (_padded(f"{head}{number} of it, ", '"}}}}') for number in range(count))
        return _made(f"acp-{count}.ndjson", lambda: "".join(f"{line}\n" for line in lines))

    def long_line(self, size: int) -> Path:
        """One line of ``size`` bytes between the first and the last."""
        head = '{"type":"message","role":"assistant","content":"'
        body = "a line of text\\n" * (size // 16)
        return _made(f"long-{size}.ndjson", lambda: f'{_INIT}\n{head}{body}"}}\n{_RESULT}\n')

    def pipeline(self, nodes: int) -> Path:
        """A pipeline with this many nodes and a fifth more edges, with realistic attributes;
        without dots in names, which Graphviz does not allow."""
        return _made(f"pipeline-{nodes}.dot", lambda: _pipeline(nodes))


def _with_modules(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(20):
        (folder / f"module_{number}.py").write_text(f"NUMBER = {number}\n" * 50)
    return folder


def _made(name: str, make: Callable[[], str]) -> Path:
    file = CACHE / "streams" / name
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        draft = file.with_suffix(".draft")
        draft.write_text(make())
        draft.replace(file)
    return file


def _lines(count: int, *, tools: bool) -> str:
    lines = [_INIT]
    while len(lines) < count - 1:
        number = len(lines)
        if tools and number % 10 == 0 and number < count - 2:
            lines.append(
                _padded(
                    '{"type":"tool_use","timestamp":"2026-11-15T00:00:00.000Z",'
                    f'"tool_name":"read_file","tool_id":"call-{number}","parameters":'
                    '{"file_path":"',
                    '"}}',
                )
            )
            lines.append(
                _padded(
                    '{"type":"tool_result","timestamp":"2026-11-15T00:00:00.000Z",'
                    f'"tool_id":"call-{number}","status":"success","output":"',
                    '"}',
                )
            )
        else:
            lines.append(
                _padded(
                    '{"type":"message","timestamp":"2026-11-15T00:00:00.000Z",'
                    f'"role":"assistant","content":"piece {number} of the answer, ',
                    '","delta":true}',
                )
            )
    return "\n".join([*lines, _RESULT, ""])


def _pipeline(nodes: int) -> str:
    lines = [
        "digraph pipeline {",
        '  goal="Build everything"; rankdir=LR; retry_target=step_0',
        '  node [shape=box, timeout="900s"]',
        '  start [shape=Mdiamond, label="Start"]',
        '  exit [shape=Msquare, label="Exit"]',
    ]
    for number in range(nodes - 2):
        match number % 10:
            case 3 | 6:
                lines.append(f'  step_{number} [shape=diamond, label="Is step {number} done?"]')
            case 7:
                lines.append(
                    f'  step_{number} [shape=parallelogram, label="Run tests {number}",'
                    f' tool_command="pytest -q tests/part_{number}", timeout="300s"]'
                )
            case kind:
                lines.append(
                    f'  step_{number} [label="Step {number}", prompt="Implement part {number} of'
                    ' the plan.\\nRun the \\"unit\\" tests; say what failed. $goal",'
                    f' class="code,part{number % 7}", max_retries={kind % 4},'
                    f" goal_gate={str(kind == 0).lower()}]"
                )
    lines.append("  start -> step_0")
    for number in range(nodes - 2):
        after = f"step_{number + 1}" if number < nodes - 3 else "exit"
        if number % 10 in (3, 6):
            yes, no = 'label="Yes", condition="outcome=success"', 'label="No", weight=2'
            lines.append(f"  step_{number} -> {after} [{yes}]")
            lines.append(
                f'  step_{number} -> step_{number - 1} [{no}, condition="outcome!=success"]'
            )
        else:
            lines.append(f"  step_{number} -> {after}")
    return "\n".join([*lines, "}", ""])


def _padded(head: str, tail: str, size: int = 224) -> str:
    filling = "and some more text of it \\u00fc ü " * 8
    room = size - len(head.encode()) - len(tail)
    cut = filling.encode()[:room].decode(errors="ignore").rpartition("\\")[0]
    return head + cut + "." * (room - len(cut.encode())) + tail


def _lock(name: str) -> Path:
    if name == "corral":
        return RUNTIME
    return NPM_LOCKS / name / "package-lock.json" if name == ACPX else LOCKS / f"{name}.txt"


def _ready(name: str) -> bool:
    """Whether it is installed from the current lock file."""
    ready = CACHE / name / "ready"
    return ready.exists() and ready.read_bytes() == _lock(name).read_bytes()


def _python_peer(name: str, folder: Path) -> bool:
    """Install from the lock file. True if there was anything to do."""
    if _ready(name):
        return False
    progress(f"installing {name}\n")
    _do([sys.executable, "-m", "venv", "--clear", folder])
    pip = ["-m", "pip", "install", "-q", "--disable-pip-version-check"]
    # A lock file is complete.
    only: list[str | Path] = ["--require-hashes", "--no-deps", "-r", _lock(name)]
    _do([folder / "bin" / "python", *pip, *only])
    shutil.copyfile(_lock(name), folder / "ready")
    return True


def _npm_peer(name: str, folder: Path) -> None:
    progress(f"installing {name}\n")
    folder.mkdir(parents=True, exist_ok=True)
    for file in ("package.json", "package-lock.json"):
        shutil.copy(_lock(name).parent / file, folder)
    flags = ["--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    _do(["npm", "ci", *flags, "--prefix", folder])
    shutil.copyfile(_lock(name), folder / "ready")


def _do(argv: list[str | Path]) -> None:
    with no_time_limit():
        subprocess.run(argv, check=True, capture_output=True, stdin=subprocess.DEVNULL)
