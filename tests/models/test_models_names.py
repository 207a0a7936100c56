"""The public names of ``corral.models``."""

from __future__ import annotations

import pytest

from corral import models


@pytest.mark.parametrize("name", dir(models))
def test_each_public_name_can_be_loaded(name: str) -> None:
    assert getattr(models, name) is not None
    assert name in dir(models)
