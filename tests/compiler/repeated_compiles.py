"""Helpers of the tests: compiles of one model after another, with one cache, and what they say was reused."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from compiled_models import records

from veltair.compiler.build import compile_model
from veltair.compiler.tuning.kernel_cache import CacheCounts, KernelCache
from veltair.profiles.artifact.artifact_folder import Artifact
from veltair.profiles.cache.cache_folder import CacheFolder


@dataclass
class Compiles:
    """Compiles of one model after another, with one set of records and one cache."""

    folder: Path
    model: Path
    made: int = 0
    last: Artifact | None = None

    @property
    def artifact(self) -> Artifact:
        assert self.last is not None
        return self.last

    @property
    def cache(self) -> CacheFolder:
        return CacheFolder(self.folder / "cache")

    def again(self, model: Path | None = None, *, fresh_timings: bool = False, **options: object) -> CacheCounts:
        cache = KernelCache(self.cache, fresh_timings=fresh_timings)
        self.made += 1
        given: dict[str, object] = {"trials": 0, "precision": "fp32", **options}
        self.last = compile_model(
            model or self.model, self.folder / f"out{self.made}", store=records(self.folder), cache=cache, **given
        )  # type: ignore[arg-type]
        return cache.counts

    def entries(self, kind: str) -> list[Path]:
        return sorted((self.cache.path / kind).iterdir())


def all_of(counts: CacheCounts, objects: int) -> bool:
    """Whether so many kernels were there, with their times, and nothing was built or measured."""
    nothing = counts.objects_built == counts.tables_measured == 0
    return nothing and counts.objects_reused == counts.tables_reused == objects


def none_of(counts: CacheCounts) -> bool:
    return counts.objects_reused == counts.tables_reused == 0 < counts.objects_built
