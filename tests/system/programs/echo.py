"""Answers each line of its input with the same in capitals, at once."""

import sys

for line in sys.stdin:
    print(line.rstrip().upper(), flush=True)
print("END", flush=True)
