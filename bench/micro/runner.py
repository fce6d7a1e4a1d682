"""The pyperf runner of a micro bench, whose worker processes start the bench as a module again."""

from __future__ import annotations

import pyperf


def make_runner(module: str) -> pyperf.Runner:
    """Returns a runner for `python -m MODULE`; without `program_args` its workers could not import `bench`."""
    return pyperf.Runner(program_args=("-m", module))
