"""A method that does not keep its object alive."""

from __future__ import annotations

from corral.values import WeakBound, WeakCall


class Counter:
    def __init__(self) -> None:
        self.count = 0

    def add(self, number: int) -> int:
        self.count += number
        return self.count

    def add_one(self) -> None:
        self.count += 1


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


def test_a_call_does_nothing_once_the_object_is_gone() -> None:
    counter = Counter()
    call = WeakCall(counter.add_one)
    call()
    assert counter.count == 1
    counts = [counter.count]
    del counter
    call()
    assert counts == [1]
