"""The kernel of gated recurrent units: `recurrent` holds the design space, `gate_weights` what it packs, and
`gate_products` and `recurrent_task` the code of a task.

`compiler/design_spaces.py` imports the space; nothing else imports from here.
"""
