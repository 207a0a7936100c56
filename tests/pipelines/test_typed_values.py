"""Values of a pipeline's result, of a type."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from corral import errors, schema_of
from corral.pipelines import PipelineResult


@dataclass
class Review:
    summary: str
    score: int


RESULT = PipelineResult(
    run="r-1",
    status="success",
    context={"review.output": {"summary": "fine", "score": 3}, "internal.x": 1},
)


def test_a_value_of_the_context_is_returned_as_json_or_as_a_type() -> None:
    assert RESULT.value("review.output") == {"summary": "fine", "score": 3}
    assert RESULT.value("review.output", Review) == Review("fine", 3)
    schema = schema_of({"type": "object", "required": ["summary"]})
    assert RESULT.value("review.output", schema) == {"summary": "fine", "score": 3}


def test_a_value_that_is_missing_or_does_not_fit_is_an_error() -> None:
    with pytest.raises(errors.ConfigError, match=r"has no value 'reveiw.output'") as caught:
        RESULT.value("reveiw.output")
    assert caught.value.hint == "It has: review.output."
    with pytest.raises(errors.SchemaNotMet, match="expected a list"):
        RESULT.value("review.output", list[int])
