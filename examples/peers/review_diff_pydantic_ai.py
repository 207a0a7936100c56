"""The same job as ../review_diff.py with pydantic-ai. The model sees only the diff."""

import subprocess
import sys
from dataclasses import dataclass
from typing import Literal

from pydantic_ai import Agent

LEVELS = ["low", "medium", "high"]


@dataclass
class Finding:
    file: str
    line: int
    severity: Literal["low", "medium", "high"]
    message: str


diff = subprocess.check_output(["git", "diff", *sys.argv[1:]], text=True)
prompt = f"Review this diff:\n\n{diff}"
agent = Agent("google-gla:gemini-2.5-flash", output_type=list[Finding], retries=2)
findings = agent.run_sync(prompt).output
for finding in findings:
    print(f"{finding.file}:{finding.line}: {finding.severity}: {finding.message}")
sys.exit(max((LEVELS.index(finding.severity) for finding in findings), default=0))
