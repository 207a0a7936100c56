#!/bin/sh
# A program with one relative: family.sh KIND TOKEN. Both have TOKEN, a fraction of a
# second, in their command line, and go by themselves after a minute. The relative says
# `ready` when it is where it wants to be.
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
