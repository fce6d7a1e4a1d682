"""The machine that this process runs on: cores, caches, memory, limits, instruction sets, counters.

Every folder but the scheduler may import it; it imports only `veltair.types` and `veltair.errors`. Facts come from
the kernel and are never assumed. Each `parse_*` function is pure and takes the text of a kernel file.

`topology` (cores and caches), `cgroups` (limits), `memory`, `isa` (CPU features and the TVM target), `environment`
(what a number is measured on), `process_usage` (what processes use), `standstill` (whether one hangs), `load_pace`
(what a load may take of a core), `hardware_counters` (L3 accesses and misses), `cache_traffic` (traffic below a cache),
`malloc` (settings of the C library), `native_library` (C of our own), `kernel_files` (reading `/proc`, `/sys`),
`regular_file` (reading a file of others), `scratch` (temporary folders).
"""
