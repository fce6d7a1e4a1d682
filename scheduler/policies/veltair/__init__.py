"""The default policy, by concern: `policy` (who goes first), `admission` (what is refused), `sizing` (cores and
versions of a block), `batching`, `preemption`, and what they share (`correction`, `waiting_queries`, `backlog`).

`policies.by_name` imports it.
"""
