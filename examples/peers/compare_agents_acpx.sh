#!/bin/sh
# The same task to two agents at once, without tokens and cost.
acpx --approve-reads "$1" exec "$3" > first.txt 2> first.log &
acpx --approve-reads "$2" exec "$3" > second.txt 2> second.log &
wait
echo "== $1" && cat first.txt
echo "== $2" && cat second.txt
