"""Locality: how a kernel's code reuses what it has in the cache, derived from its loop nest without running it.

Tuning, timing and `compiler/assemble` import this folder; it imports only TVM, `graph/` and `machine.cache_traffic`.
"""
