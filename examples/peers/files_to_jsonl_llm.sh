#!/bin/sh
# files_to_jsonl.sh with llm and jq: one file at a time, and a failed call is not repeated.
touch summaries.jsonl
for file in $1; do
  if ! grep -qF "{\"path\":\"$file\"," summaries.jsonl; then
    answer=$(llm --model gemini-2.5-flash --schema "$(dirname "$0")/../summary.schema.json" \
      "Summarize $file" < "$file") || exit 1
    printf '%s' "$answer" | jq -c --arg path "$file" '{path: $path} + .' >> summaries.jsonl
  fi
done
