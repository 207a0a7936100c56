#!/bin/sh
# Migrate many files, each by its own session in its own worktree, to one pull request:
#
#   sh migrate_files.sh 'src/**/*.py' migrate.md "make test" --max-cost 20.00 --concurrency 8
#
# migrate.md is the prompt, with {{path}}. What passes the gate is merged into the branch migration.
# After a crash, or the next night, the same command continues.
set -e
files=$1 prompt=$2 gate=$3
shift 3
git switch -q migration 2>/dev/null || git switch -q -c migration
corral batch --files "$files" --prompt "@$prompt" --name migration --retry-failed --worktree \
  --approve edits "$@" ||
  test $? = 1 # some files have failed: what is done is merged, the next call repeats them
corral merge --batch migration --into migration --gate "$gate" ||
  test $? = 1 # some branches have failed: the others are merged
git push -q -u origin migration
gh pr view >/dev/null 2>&1 || gh pr create --fill --title "Migrate $files"
