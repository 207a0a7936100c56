#!/bin/sh
# find_session.sh with llm and jq. It has prompts and answers, and no changes of files.
id=$(llm logs list --query "$1" --latest --count 1 --json | jq -r '.[0].conversation_id')
llm logs list --conversation "$id" --count 0
llm logs list --conversation "$id" --count 0 > session.md
