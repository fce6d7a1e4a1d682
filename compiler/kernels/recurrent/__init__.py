"""The kernels of recurrent cells. `recurrent` and `projected_recurrent` hold the design spaces: tasks of rows that go
through all steps (`recurrent_task`), and steps whose units all cores share.

Both have the cells (`cell_step`), the packed weights (`gate_weights`), what lies in the vectors (`lanes`), and the
states (`state_lines`, `state_memory`); `gate_sums` and `projected_sums` multiply. `compiler/design_spaces.py` imports
the spaces; nothing else imports from here.
"""
