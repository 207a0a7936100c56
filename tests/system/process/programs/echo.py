"""Writes each line of its input in capitals, at once."""

import sys

for line in sys.stdin:
    print(line.rstrip().upper(), flush=True)
print("END", flush=True)
