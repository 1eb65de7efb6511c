"""Bounded memory: what was used least recently is forgotten first."""

from array import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Memory(Generic[K, V]):
    """A map of at most ``limit`` keys. ``forgotten`` is told of each that had to go."""

    def __init__(
        self, limit: int, make: Callable[[], V], forgotten: Callable[[K, V], None] | None = None
    ) -> None:
        self._limit = limit
        self._make = make
        self._forgotten = forgotten
        self._kept: OrderedDict[K, V] = OrderedDict()

    def use(self, key: K) -> V:
        """The value of ``key``, made if there is none; it counts as used just now."""
        value = self._kept.get(key)
        if value is None:
            value = self._make()
        self.put(key, value)
        return value

    def put(self, key: K, value: V) -> None:
        """Puts ``value`` in the place of what there was; it counts as used just now."""
        self._kept[key] = value
        self._kept.move_to_end(key)
        if len(self._kept) > self._limit:
            old, gone = self._kept.popitem(last=False)
            if self._forgotten is not None:
                self._forgotten(old, gone)

    def get(self, key: K) -> V | None:
        """The value of ``key`` if there is one; it counts as used no more than before."""
        return self._kept.get(key)

    def drop(self, key: K) -> None:
        """Forgets ``key`` without a word."""
        self._kept.pop(key, None)

    def items(self) -> Iterator[tuple[K, V]]:
        """All keys and values, those used least recently first. The map may change meanwhile."""
        return iter(list(self._kept.items()))

    def __len__(self) -> int:
        return len(self._kept)


class Numbers:
    """A set of at most ``limit`` whole numbers below 2**64, eight bytes each. Further ones are not added."""

    __slots__ = ("_kept", "_limit")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept = array("Q")

    def add(self, number: int) -> None:
        """Adds a number if there is room."""
        if len(self._kept) < self._limit and number not in self:
            self._kept.insert(bisect_left(self._kept, number), number)

    def __contains__(self, number: int) -> bool:
        at = bisect_left(self._kept, number)
        return at < len(self._kept) and self._kept[at] == number

    def __len__(self) -> int:
        return len(self._kept)
