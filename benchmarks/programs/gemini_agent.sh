#!/bin/sh
# A Gemini CLI that costs nothing. It writes FAKE_OUTPUT; with FAKE_PAUSE it sleeps
# between the first line and the others, with FAKE_GATE it waits for a line of that pipe.
if [ "$1" = --version ]; then
  echo 0.61.0
elif [ -n "$FAKE_PAUSE$FAKE_GATE" ]; then
  read -r first <"$FAKE_OUTPUT"
  printf '%s\n' "$first"
  [ -z "$FAKE_GATE" ] || read -r _ <"$FAKE_GATE"
  [ -z "$FAKE_PAUSE" ] || sleep "$FAKE_PAUSE"
  exec tail -n +2 "$FAKE_OUTPUT"
else
  exec cat "$FAKE_OUTPUT"
fi
