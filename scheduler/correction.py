"""Profiles corrected by what is measured: how much longer than predicted a tenant's blocks take of late."""

from __future__ import annotations

from dataclasses import dataclass

from veltair.scheduler.run import Run

WEIGHT = 0.1  # the latest block's share in the moving average
FORGETTING = 0.02  # what one-core blocks take from the memory of blocks on several cores
LEAST, MOST = 0.5, 8.0


@dataclass(slots=True)
class Correction:
    """Ratios of measured over predicted time, smoothed; one tenant's.

    Blocks on several cores have one of their own: where other programs take a core, they wait for it at every layer,
    and one-core blocks do not. As such blocks may then be avoided, their ratio goes back to the other's with time,
    so that they are tried again.
    """

    one_core: float = 1.0
    several: float = 1.0

    def learn(self, run: Run, elapsed_ns: int) -> None:
        """Of a block that ran to its end."""
        ratio = elapsed_ns / (run.predicted_ns or 1)
        ratio = LEAST if ratio < LEAST else MOST if ratio > MOST else ratio
        if len(run.core_set) > 1:
            self.several += WEIGHT * (ratio - self.several)
        else:
            self.one_core += WEIGHT * (ratio - self.one_core)
            self.several += FORGETTING * (self.one_core - self.several)

    def of(self, cores: int) -> float:
        return self.one_core if cores == 1 else self.several
