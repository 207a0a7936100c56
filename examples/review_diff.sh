#!/bin/sh
# Review what has changed since a commit; exit code 13 if a finding has the severity high or critical:
#
#   sh review_diff.sh HEAD~1
#   sh review_diff.sh main...HEAD --agent gemini,claude --max-cost 1.00
#
# The agent may read a copy of the files, and do nothing else.
# Lines of code: 1; with pydantic-ai: 19 (peers/review_diff_pydantic_ai.py)
corral review --fail-on high "$@"
