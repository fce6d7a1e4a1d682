"""Models of machines and of models on them: caches, memory bandwidth, tilings, counters, and code versions by Alg. 1.

`data/machines` holds a file for each machine, `data/layers` one for each network. Only `veltair.simulation`,
`veltair.commands` and `bench` import this package.
"""
