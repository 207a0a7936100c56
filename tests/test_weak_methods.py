"""A method that does not keep its object alive."""

from __future__ import annotations

from corral.values import weak_callback


class Counter:
    def __init__(self) -> None:
        self.count = 0

    def add_one(self) -> None:
        self.count += 1


def test_a_call_does_nothing_once_the_object_is_gone() -> None:
    counter = Counter()
    call = weak_callback(counter.add_one)
    call()
    assert counter.count == 1
    counts = [counter.count]
    del counter
    call()
    assert counts == [1]
