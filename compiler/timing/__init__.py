"""Timing of kernels in a process of their own: alone, beside co-runners, and under modelled interference.

Tuning and the pipeline import from here. The measuring process loads TVM's runtime, never its compiler.
"""
