"""The models that are served: what each costs to run, on one grid of levels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from veltair.errors import ConfigError
from veltair.scheduler.costs.batch_interpolation import interpolate_batches
from veltair.scheduler.costs.level_grid import level_grid
from veltair.scheduler.costs.profile_costs import ProfileCosts
from veltair.scheduler.costs.profile_validation import validate_profile
from veltair.types import ModelProfile


class ProfileCatalogue:
    """The cost tables of all models. A model's tables never change, so schedulers of machines with as many cores may
    share them, unless one learns or forgets models.

    >>> ProfileCatalogue({}, cores=4).grid
    (1.0,)
    """

    __slots__ = ("_split_by_ops", "cores", "costs", "grid")

    def __init__(
        self, profiles: Mapping[str, Sequence[ModelProfile]], cores: int, *, split_by_ops: bool = False
    ) -> None:
        """`profiles`: by model name, ascending by batch. `cores`: of the machine. `split_by_ops`: the paper's policies
        give layers their share by operations (`ProfileCosts`).

        Raises ConfigError, or ProfileError for what is wrong in a profile.
        """
        for model, by_batch in profiles.items():
            _validate(model, by_batch)
        self.cores, self._split_by_ops = cores, split_by_ops
        self.grid = level_grid(profile for by_batch in profiles.values() for profile in by_batch)
        self.costs: dict[str, Sequence[ProfileCosts]] = {}  # by model, ascending by batch
        for model, by_batch in profiles.items():
            self.costs[model] = list(self.tables(by_batch))

    def tables(self, by_batch: Sequence[ModelProfile]) -> Iterator[ProfileCosts]:
        """The tables of a model on the grid as it is, ascending by batch; each takes a while to make."""
        for profile in interpolate_batches(by_batch):
            yield ProfileCosts(profile, self.grid, self.cores, split_by_ops=self._split_by_ops)

    def prepare(self, model: str, by_batch: Sequence[ModelProfile]) -> Iterator[ProfileCosts]:
        """The same as `tables`, for a model that will be learned; the first one decides the grid.

        Raises ConfigError or ProfileError, and changes nothing then.
        """
        _validate(model, by_batch)
        if not self.costs:
            self.grid = level_grid(by_batch)
        return self.tables(by_batch)

    def learn(self, model: str, tables: Sequence[ProfileCosts]) -> None:
        """Another model with all of its tables. Raises ConfigError where its name is taken."""
        if model in self.costs:
            raise ConfigError(f"{model}: there are profiles of this model already")
        self.costs[model] = tables

    def forget(self, model: str) -> None:
        """A model that no tenant has any more."""
        del self.costs[model]


def _validate(model: str, by_batch: Sequence[ModelProfile]) -> None:
    batches = [profile.batch for profile in by_batch]
    if not batches or any(low >= high for low, high in pairwise(batches)):
        raise ConfigError(f"{model}: expected profiles of ascending batch sizes, got {batches}")
    for profile in by_batch:
        validate_profile(profile)
