"""What the way of a query costs, from the client to the model and back: this daemon's and Triton's.

`plan` says what is measured, `server_cpu`, `lone_client` and `open_load` measure it, `summary` makes tables of it.
"""
