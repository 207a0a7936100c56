"""The table of jobs in README.md: the lines of each example and of the peer's version, and the CPU
time until each does its first own work.

    .venv/bin/python -m benchmarks.job_starts PYTHON [--page]

``PYTHON`` is an interpreter that has corral and the peers: claude-agent-sdk, langgraph with
langgraph-checkpoint-sqlite, litellm, llm, pydantic-ai-slim, fastapi. What is measured is the
imports of a Python program, with the names of corral that it uses, and ``--help`` of a command.
``--page`` also writes the table into README.md. A test compares the lines with the files.
"""

from __future__ import annotations

import ast
import re
import resource
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
ACPX = ROOT / "tools" / "acpx" / "node_modules" / ".bin"
sys.path.insert(0, str(ROOT / "tests"))

from support.example_lines import code_lines, source_of  # noqa: E402

ROUNDS = 5
TABLE = re.compile(r"(?<=\|---\|---\|---\|---\|---\|---\|---\|\n)(\|.*\n)+")


class Job(NamedTuple):
    title: str
    ours: str
    peer: str
    """A file below peers/; its name ends with the name of the peer."""
    ours_starts: str = ""
    """The command whose ``--help`` is measured; empty: the program's imports."""
    peer_starts: str = ""


JOBS = (
    Job("review a diff: typed findings, an exit code by severity", "review_diff.sh",
        "review_diff_pydantic_ai.py", "corral review"),
    Job("20 files to JSONL with a schema, interrupted and resumed", "files_to_jsonl.sh",
        "files_to_jsonl_llm.sh", "corral batch", "llm"),
    Job("plan, implement, review, approve later", "approve_later.dot",
        "approve_later_langgraph.py", "corral pipeline run"),
    Job("a Python function as a tool of an agent", "python_tool.py",
        "python_tool_claude_agent_sdk.py"),
    Job("stop at a budget, wait at a limit", "budget_and_limit.py",
        "budget_and_limit_claude_agent_sdk.py"),
    Job("chat", "chat.sh", "chat_claude_agent_sdk.py", "corral chat"),
    Job("the same task to two agents", "compare_agents.sh", "compare_agents_acpx.sh",
        "corral compare", "acpx"),
    Job("find, read and share yesterday's session", "find_session.sh", "find_session_llm.sh",
        "corral sessions", "llm"),
    Job("stream events from FastAPI", "web_streaming.py", "web_streaming_claude_agent_sdk.py"),
    Job("a typed answer with a fallback, and a stream", "migrate_litellm.py",
        "migrate_litellm.py"),
)  # fmt: skip


def main() -> None:
    python = Path(sys.argv[1]).absolute()
    rows = "".join(_row(job, python) for job in JOBS)
    print(rows)
    if "--page" in sys.argv:
        page = ROOT / "README.md"
        page.write_text(TABLE.sub(lambda _: rows, page.read_text("utf-8")), "utf-8")


def _row(job: Job, python: Path) -> str:
    ours, peer = EXAMPLES / job.ours, EXAMPLES / "peers" / job.peer
    same = job.ours == job.peer
    name = "litellm" if same else job.peer.partition(".")[0].removeprefix(f"{ours.stem}_")
    cells = [
        job.title,
        f"[{job.ours}](examples/{job.ours})",
        code_lines(ours),
        _seconds(python, ours, job.ours_starts),
        f"[{name.replace('_', '-')}](examples/peers/{job.peer})",
        code_lines(peer),
        _seconds(python, peer, job.peer_starts),
    ]
    return f"| {' | '.join(map(str, cells))} |\n"


def _seconds(python: Path, file: Path, command: str) -> str:
    if command:
        name, *words = command.split()
        installed = python.with_name(name)
        argv = [str(installed if installed.exists() else ACPX / name), *words, "--help"]
    elif file.suffix == ".py":
        argv = [str(python), "-c", _imports(file)]
    else:
        return "–"
    try:
        return f"{min(_cpu(argv) for _ in range(ROUNDS)):.2f}"
    except (OSError, subprocess.CalledProcessError):
        return "–"  # it is not installed


def _imports(file: Path) -> str:
    """The imports of a program, and the names of corral that it uses, which are loaded late."""
    source = source_of(file)
    tree = ast.parse(source)
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    used = sorted({*re.findall(r"\b(?:corral|models)\.[a-z]\w+(?=\()", source)})
    return "\n".join([*map(ast.unparse, imports), *used])


def _cpu(argv: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(argv, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
