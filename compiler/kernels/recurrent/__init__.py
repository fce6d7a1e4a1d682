"""The kernel of recurrent cells: `recurrent` holds the design space, `gate_weights` what it packs, `lanes` what lies in
the vectors, and `gate_products`, `cell_step`, `state_memory` and `recurrent_task` the code of a task.

`compiler/design_spaces.py` imports the space; nothing else imports from here.
"""
