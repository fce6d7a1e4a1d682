"""The whole suite shares one process with both halves of TVM: the compiler is loaded first.

Hypothesis draws new examples at a developer's desk and the same ones every time in CI; no test is timed.
"""

import os
import signal

import tvm  # noqa: F401  what serves asks for the runtime library alone, which would hide the compiler from the rest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "suite", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=bool(os.environ.get("CI"))
)
settings.load_profile("suite")

# A shell's background jobs ignore interrupts, and so would every process that a test starts and interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)
