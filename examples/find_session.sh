#!/bin/sh
# Find the newest session with a text, read it, and write a document to share:
#
#   sh find_session.sh "the parser"
#
# Lines of code: 2; with llm: 3 (peers/find_session_llm.sh)
corral runs show --text "$1"
corral runs export --text "$1" --diff --output session.md
