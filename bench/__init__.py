"""Comparisons with peers and measurements of our own parts: kernels, serving, recommendation models, the paper, micro.

Run each module from the root of the repository: `python -m bench.serving.mix scenarios/vision.toml`. The package is not
installed, nothing that is installed imports it, and its own modules import any part of veltair.
"""

import os
import sys

from veltair.ending_signals import end_by_signals

if sys.argv[:1] == ["-m"]:  # one of its modules is about to run as a program
    end_by_signals()

# OpenBLAS reads it when numpy is loaded. Its idle threads would spin on the cores where kernels are timed.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
