"""Kills for the Spark tests: a crash point that ends its own process, once."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Kill:
    """SIGKILL at the given call of each named point, once each; a file in `markers` tells which happened."""

    markers: str
    points: dict[str, int]
    calls: dict[str, int] = field(default_factory=dict)

    def __call__(self, point: str) -> None:
        self.calls[point] = self.calls.get(point, 0) + 1
        if self.calls[point] != self.points.get(point, 0):
            return
        try:
            (Path(self.markers) / point).touch(exist_ok=False)
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)

    @property
    def fired(self) -> set[str]:
        return {path.name for path in Path(self.markers).iterdir()}
