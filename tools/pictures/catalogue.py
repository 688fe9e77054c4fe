"""All drawings that are made from text."""

from __future__ import annotations

from typing import Protocol

from tools.pictures import architecture, engine_scope, item_scope, log, once, partition_scope, replicas


class Picture(Protocol):
    """A module that draws: where the drawing goes, from the root of the project, and the drawing."""

    PLACE: str

    def draw(self) -> str:
        """Draw it."""
        ...


PICTURES: tuple[Picture, ...] = (once, architecture, engine_scope, partition_scope, item_scope, replicas, log)
