"""Vocabularies as open-addressed tables, probed linearly from the key's fingerprint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from veltair.compiler.features.fingerprint import fingerprint64

LONGEST_PROBE = 16  # slots that are read for a key, known or not
MOST_SLOTS_PER_KEY = 64  # even where probes are longer: keys may have been chosen to collide


@dataclass(frozen=True, slots=True)
class Vocabularies:
    """All vocabularies of a column table, one after the other.

    >>> Vocabularies.build({"city": ["Rome", "Oslo"]}).longest
    4
    """

    spans_of: Mapping[str, tuple[int, int, int, int]]  # by column: first slot, slots, first key, keys
    slots: NDArray[np.int32]  # place of a key in its vocabulary; -1: the slot is empty
    keys: NDArray[np.int64]  # the number itself, or the text's fingerprint
    spans: NDArray[np.int32]  # (keys + 1): where each text begins in `letters`
    letters: NDArray[np.uint8]

    @property
    def longest(self) -> int:
        """Bytes of the longest key."""
        return int(np.diff(self.spans).max(initial=0))

    @classmethod
    def build(cls, vocabularies: Mapping[str, Sequence[str | int]]) -> Vocabularies:
        first: dict[str, tuple[int, int, int, int]] = {}
        slots: list[NDArray[np.int32]] = []
        keys: list[int] = []
        texts: list[bytes] = []
        for name, members in vocabularies.items():
            spelled = [str(member).encode() for member in members]
            prints = [fingerprint64(text) for text in spelled]
            table = fill_slots(prints)
            first[name] = (sum(map(len, slots)), len(table), len(keys), len(members))
            slots.append(table)
            keys += [m if isinstance(m, int) else p for m, p in zip(members, prints, strict=True)]
            texts += spelled
        ends = np.cumsum([0, *map(len, texts)])
        return cls(
            first,
            np.concatenate(slots) if slots else np.full(1, -1, np.int32),
            np.array([key & (1 << 64) - 1 for key in keys] or [0], np.uint64).view(np.int64),
            ends.astype(np.int32),
            np.frombuffer(b"".join(texts) or b"\0", np.uint8),
        )


def fill_slots(prints: Sequence[int]) -> NDArray[np.int32]:
    """A table that is at least half empty, doubled while a run of full slots is longer than LONGEST_PROBE."""
    size = 1 << (2 * len(prints)).bit_length()
    while True:
        table = np.full(size, -1, np.int32)
        for place, start in enumerate(prints):
            slot = start & size - 1
            while table[slot] >= 0:
                slot = (slot + 1) & size - 1
            table[slot] = place
        ring = np.concatenate([table, table[: LONGEST_PROBE + 1]]) >= 0
        runs = np.convolve(ring, np.ones(LONGEST_PROBE + 1, np.int32), "valid")
        if runs.max(initial=0) <= LONGEST_PROBE or size > MOST_SLOTS_PER_KEY * len(prints):
            return table
        size *= 2
