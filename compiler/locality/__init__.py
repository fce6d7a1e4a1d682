"""Locality: how a kernel's code reuses what it has in the cache, derived from its loop nest without running it.

Tuning and timing import from here; it imports only TVM, `graph/` and `machine.cache_traffic`.
"""
