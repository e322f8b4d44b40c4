"""The greatest of recent values."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable


class WorstLately:
    """The greatest value of the last `seconds`, rounded up to a tenth of that; 0 where there was none."""

    def __init__(self, seconds: float, monotonic: Callable[[], float] = time.monotonic, *, slices: int = 10) -> None:
        self._slice_seconds, self._slices, self._monotonic = seconds / slices, slices, monotonic
        # (number of the slice, its greatest value), the oldest first.
        self._worst: deque[tuple[int, float]] = deque(maxlen=slices + 1)

    def add(self, value: float) -> None:
        current = self._current()
        if self._worst and self._worst[-1][0] == current:
            value = max(value, self._worst.pop()[1])
        self._worst.append((current, value))

    def value(self) -> float:
        oldest = self._current() - self._slices
        return max((value for number, value in tuple(self._worst) if number >= oldest), default=0.0)

    def _current(self) -> int:
        return int(self._monotonic() // self._slice_seconds)
