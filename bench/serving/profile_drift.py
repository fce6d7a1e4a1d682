"""How fast this machine is now: the time of a model alone over the time in its profile.

    python -m bench.serving.profile_drift ARTIFACT

Prints the greatest ratio over batch sizes and core counts. The profile holds times of the whole model (`veltair profile
--within-model`), so the ratio is 1 where nothing has changed since. On a shared machine, such as a virtual one with
neighbours, it changes: measurements from minutes with ratios of 1 and of 1.3 cannot be compared.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from veltair.profiles.artifact.artifact_folder import load_artifact
from veltair.profiles.runtime.pinned_threads import kernel_environment
from veltair.profiles.runtime.whole_model_timing import slowdown_factors, time_whole_model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("artifact", type=Path)
    artifact = load_artifact(parser.parse_args().artifact)
    os.environ.update(kernel_environment())  # before TVM's runtime is loaded
    print(f"{max(map(max, slowdown_factors(artifact.manifest, time_whole_model(artifact)))):.3f}")


if __name__ == "__main__":
    main()
