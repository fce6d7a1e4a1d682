"""The kernel of feature columns: its table of numbers, its design space, and an emitter for each part of its code.

`columns_kernel` is the entrance: `columns_layer` makes a layer, `ColumnsSpace` its kernels. `code_path` says which code
a column needs, `column_slots` what the numbers of its row are, `column_table` and `slot_writer` write them.
`column_emitter` chooses among `row_lookup` (one row of a table), `row_sums` (several, added up) and `sequence_emitter`
(several, kept apart), which build on `index_emitter`, `bucketize`, `column_values` and `table_rows`.
`compiler.kernels`, `compiler.patterns` and `compiler.features` import this folder.
"""
