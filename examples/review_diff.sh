#!/bin/sh
# Review a git diff: print typed findings as JSON; exit code 13 if one has the severity high.
#
#     sh review_diff.sh HEAD~1
#
# Set MODEL to a model (gemini:gemini-2.5-flash), or leave it out for the default agent. With llm it
# is one line too, but it needs jq for the exit code, and an error of llm is lost in the pipe:
#
#     git diff | llm "Review this diff" --schema review_schema.json |
#         jq -e 'all(.[]; .severity != "high")'
git diff "$@" | corral run ${MODEL:+-m "$MODEL"} "Review this diff" --schema "$(dirname "$0")/review_schema.json" --fail-on severity=high
