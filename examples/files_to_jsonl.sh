#!/bin/sh
# One line of JSON for each file, in the format of a schema:
#
#   sh files_to_jsonl.sh 'src/**/*.py'
#
# After Ctrl-C or a crash the same command continues. Files that are done are not sent again.
# Lines of code: 3; with llm: 8 (peers/files_to_jsonl_llm.sh)
corral batch --files "$1" --prompt "Summarize {{path}}: {{content}}" \
  --schema "$(dirname "$0")/summary.schema.json" --output summaries.jsonl \
  --model gemini:gemini-2.5-flash
