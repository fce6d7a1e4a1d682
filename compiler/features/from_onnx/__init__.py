"""Feature columns that an ONNX file spells out itself: found among its operators, and taken out of it.

`column_extraction` is the entrance, which `compiler.onnx` calls while it loads a file. `column_reader` reads columns
that operators spell; where it cannot, `classes` puts classes of values in the place of texts and finds by evaluation
what their rows are (docs/decisions/86), of texts that are split with `tokens`. `identify_columns` is RECom's Algorithm
1; `key_sources`, `label_encoders`, `hash_buckets` and `bucketize_pattern` recognise what stands before a lookup,
`id_operators` carries out what stands between, `safety_steps` drops guards that do nothing, and `graph_rewriter` leaves
a graph whose columns are inputs. `standard_copy` lets ONNX Runtime run what it would refuse, for `verify`.
`compiler.onnx` imports this folder.
"""
