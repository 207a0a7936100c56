#!/bin/sh
# The same task to two agents at once; then a table of verdicts, time, tokens and cost:
#
#   sh compare_agents.sh gemini-cli claude "What does this project do?"
#
# Lines of code: 1; with acpx: 5 (peers/compare_agents_acpx.sh)
corral compare --agent "$1,$2" "$3" --no-durable
