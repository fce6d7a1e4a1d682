"""The whole suite shares one process with both halves of TVM: the compiler is loaded first."""

import tvm  # noqa: F401  what serves asks for the runtime library alone, which would hide the compiler from the rest
