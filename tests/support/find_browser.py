"""Where the Chromium of this machine is."""

from __future__ import annotations

import os
import shutil

NO_BROWSER = "there is no Chromium (apt-get install chromium, or set CHROMIUM to its path)"
PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_browser() -> str | None:
    """The path of a Chromium, or None."""
    given = os.environ.get("CHROMIUM")
    return given or next(filter(None, map(shutil.which, PROGRAMS)), None)
