"""Review a git diff: print typed findings, and exit with a code by severity (low 0, high 2).

    python review_diff.py HEAD~1

The arguments are those of ``git diff``. The agent may read the project, and change nothing. An
answer that is not a list of findings goes back to it; what fails is an exception with a hint. The
peer calls a model, which sees only the diff. ``review_diff.sh`` is the same in one line of shell.

Lines of code: 18; with pydantic-ai: 19 (peers/review_diff_pydantic_ai.py)
"""

import subprocess
import sys
from dataclasses import dataclass
from typing import Literal

import corral

LEVELS = ["low", "medium", "high"]


@dataclass
class Finding:
    file: str
    line: int
    severity: Literal["low", "medium", "high"]
    message: str


diff = subprocess.check_output(["git", "diff", *sys.argv[1:]], text=True)
prompt = f"Review this diff:\n\n{diff}"
findings = corral.run_sync("gemini", prompt, output=list[Finding], policy="reads").output
for finding in findings:
    print(f"{finding.file}:{finding.line}: {finding.severity}: {finding.message}")
sys.exit(max((LEVELS.index(finding.severity) for finding in findings), default=0))
