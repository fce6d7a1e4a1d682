"""The worker process: loads every tenant's model and runs the blocks that the engine orders.

`worker` takes orders from its cell (`ipc/worker_cell.py`) and runs their layers with `veltair.profiles.runtime`, whose
`pinned_threads` pins the threads of the kernels to the cores of the block. `batch_buffers` gathers several queries into
one batch. No other folder imports this one; the engine starts it as a process (`engine/worker_process.py`).
"""
