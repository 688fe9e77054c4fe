"""The shape of the tables of situations: on a folder, on store and bus apart, and of a running host."""

from __future__ import annotations

from typing import Generic, NamedTuple, Self, TypeVar

Plant = TypeVar("Plant")


class Situation(NamedTuple, Generic[Plant]):
    """What is wrong, how it is planted, the command, and the words of its answer that name cause and cure."""

    name: str
    plant: Plant
    command: str
    words: tuple[str, ...] = ()

    def says(self, *words: str) -> Self:
        """This situation, with the words of the answer."""
        return self._replace(words=words)
