"""The interval of a proportion, such as the share of passed attempts or satisfied scenarios."""

from __future__ import annotations

import math
from statistics import NormalDist

LEVEL = 0.95
Z = NormalDist().inv_cdf((1 + LEVEL) / 2)


def wilson(value: float, count: float) -> tuple[float, float]:
    """Wilson's score interval for a proportion of ``count`` attempts."""
    weight = Z * Z / count
    center = (value + weight / 2) / (1 + weight)
    half = Z * math.sqrt(value * (1 - value) / count + weight / (4 * count)) / (1 + weight)
    # Rounding must not exclude the value itself.
    return max(0.0, min(value, center - half)), min(1.0, max(value, center + half))
