#!/bin/sh
# A process with one descendant: process_tree.sh KIND TOKEN. Both have TOKEN, a fraction of a
# second, in their command line, and exit after a minute. The descendant prints `ready`
# when it has reached its final state.
rest='echo ready; exec sleep 60 "$0"'
case $1 in
plain) sh -c "$rest" "$2" & ;;
setsid) setsid sh -c "$rest" "$2" & ;;
double-fork) (setsid sh -c "$rest" "$2" &) ;;
ignores-TERM)
  trap '' TERM
  sh -c "$rest" "$2" &
  ;;
esac
exec sleep 60 "$2"
