"""What the processes of the daemon share: messages, tensors, the cell of a worker, the set-up of a child process.

Messages travel over packet sockets (`channel`, `messages`, `status_records`) and lanes (`lane`), and with them the
descriptors of models' artifacts (`open_artifacts`); tensors lie in one shared memory (`tensor_pool`); the engine
orders and steers the blocks of a worker through a cell of shared memory (`worker_cell`); all stamp the stages of a
query's way (`stages`).
All other folders of `server/` may import this one; it imports none of them.
"""
