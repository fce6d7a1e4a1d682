"""The default policy, by concern: `policy` (who goes first), `admission` (what is refused), `sizing` (cores and
versions of a block), `batching`, `preemption`, and the estimates that they share (`correction`, `waiting_queries`).

`policies.by_name` imports it.
"""
