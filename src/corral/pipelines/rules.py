"""The rules that every pipeline is held against."""

from __future__ import annotations

from corral.pipelines.lint import Rule

RULES: tuple[Rule, ...] = ()
