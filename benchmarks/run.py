"""How fast corral is, against the limit and against named peers; see README.md."""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])
    from benchmarks import page, runner
    from benchmarks.areas import AREAS

    sys.exit(runner.main(None, AREAS, page.PAGE))
