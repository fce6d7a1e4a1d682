"""The models that are served: what each costs to run, on one grid of levels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from veltair.errors import ConfigError
from veltair.scheduler.costs.batch_interpolation import interpolate_batches
from veltair.scheduler.costs.level_grid import level_grid
from veltair.scheduler.costs.profile_costs import ProfileCosts
from veltair.scheduler.costs.profile_validation import validate_profile
from veltair.types import ModelProfile


class ProfileCatalogue:
    """The cost tables of all models. Nothing changes them, so schedulers of machines with as many cores may share them.

    >>> ProfileCatalogue({}, cores=4).grid
    (1.0,)
    """

    __slots__ = ("cores", "costs", "grid")

    def __init__(
        self, profiles: Mapping[str, Sequence[ModelProfile]], cores: int, *, split_by_ops: bool = False
    ) -> None:
        """`profiles`: by model name, ascending by batch. `cores`: of the machine. `split_by_ops`: the paper's policies
        give layers their share by operations (`ProfileCosts`).

        Raises ConfigError, or ProfileError for what is wrong in a profile.
        """
        for model, by_batch in profiles.items():
            batches = [profile.batch for profile in by_batch]
            if not batches or any(low >= high for low, high in pairwise(batches)):
                raise ConfigError(f"{model}: expected profiles of ascending batch sizes, got {batches}")
            for profile in by_batch:
                validate_profile(profile)
        self.cores = cores
        self.grid = level_grid(profile for by_batch in profiles.values() for profile in by_batch)
        self.costs: Mapping[str, Sequence[ProfileCosts]] = {  # by model, ascending by batch
            model: [
                ProfileCosts(profile, self.grid, cores, split_by_ops=split_by_ops)
                for profile in interpolate_batches(by_batch)
            ]
            for model, by_batch in profiles.items()
        }
