"""The checks of a profile before tables are made of it."""

from __future__ import annotations

from itertools import pairwise

from veltair.errors import ProfileError
from veltair.types import ModelProfile


def validate_profile(profile: ModelProfile) -> None:
    """Raises ProfileError for a profile whose layers, versions and tables do not fit together."""
    name = f"{profile.model} (batch {profile.batch})"
    if not profile.layers or len(profile.layers) != len(profile.versions):
        raise ProfileError(
            f"{name}: expected at least one layer and versions for each, "
            f"got {len(profile.layers)} layers and versions for {len(profile.versions)}"
        )
    for i, versions in enumerate(profile.versions):
        if not versions:
            raise ProfileError(f"{name}: layer {i} has no code version")
        for version in versions:
            levels, rows = version.latency.levels, version.latency.latency_ns
            where = f"{name}: layer {i}, version {version.index}"
            if not levels or levels[0] != 1.0 or any(a >= b for a, b in pairwise(levels)):
                raise ProfileError(f"{where}: expected interference levels ascending from 1.0, got {levels}")
            if len(rows) != len(levels) or any(len(row) != profile.cores or not row for row in rows):
                raise ProfileError(f"{where}: expected latencies of {len(levels)} levels x {profile.cores} cores")
            if any(time_ns <= 0 for row in rows for time_ns in row):
                raise ProfileError(f"{where}: expected latencies above 0 ns")
