"""A mark for tests that need corral's sandbox: a machine may forbid user namespaces."""

from __future__ import annotations

import pytest

from corral._system.sandbox.sandbox import describe, find_support

_SUPPORT = find_support()
needs_sandbox = pytest.mark.skipif(
    not _SUPPORT.is_complete, reason=f"no sandbox on this machine: {describe(_SUPPORT)}"
)
