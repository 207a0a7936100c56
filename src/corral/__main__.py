"""``python -m corral``: the command line."""

from __future__ import annotations

from corral._cli.entry import main

if __name__ == "__main__":
    main()
