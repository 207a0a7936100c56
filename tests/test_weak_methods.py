"""A method that does not keep its object alive."""

from __future__ import annotations

from corral.values import WeakBound


class Counter:
    def __init__(self) -> None:
        self.count = 0

    def add(self, number: int) -> int:
        self.count += number
        return self.count


def test_it_returns_the_bound_method_until_the_object_is_gone() -> None:
    counter = Counter()
    weak = WeakBound(counter.add)
    add = weak()
    assert add is not None
    assert add(2) == 2
    del add
    later = weak()
    assert later is not None
    assert later(3) == counter.count == 5
    del later, counter
    assert weak() is None
