"""Bounded memory: what was used least recently is forgotten first."""

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
            value = self._kept[key] = self._make()
            if len(self._kept) > self._limit:
                old, gone = self._kept.popitem(last=False)
                if self._forgotten is not None:
                    self._forgotten(old, gone)
        else:
            self._kept.move_to_end(key)
        return value

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
