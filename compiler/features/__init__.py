"""Feature columns: from raw features (numbers, strings) to the rows that a recommendation model reads (RECom).

RECom's observation: a recommendation model has hundreds of small columns, each a chain of cheap operators (split, hash
or bucketize, look up, add up), and launching them one by one costs more than they compute. So all columns that give an
input of the model become one kernel. Its code depends on the kinds of columns alone; what differs from column to
column is a row of numbers in a table that the kernel reads.

The way to that kernel, for columns that a description or the ONNX file itself declares:

1. `description_file` reads a `FeatureDescription` (docs/features.md) from TOML; or `from_onnx` finds columns among the
   operators of the ONNX file (StringSplit, LabelEncoder, Gather, …), takes them out and describes them the same way.
2. `feature_model.join_features` puts the columns before the model: one layer for each input that they give.
3. `feature_layout` says where a query's raw features lie: one packed buffer for each type.
4. `table_store` loads the rows of all tables into one array; `vocabularies` makes hash tables of the keys.
5. `index_ranges` and `column_ranges` prove which indices can occur, so that needless guards and checks are dropped
   (RECom 5.1); `symbolic_shapes` proves which columns have one value a row and need no reduction (RECom 5.2).
6. `kernel` sorts the columns by code path, writes the table and generates the code; `text_code` is the part of it that
   reads bytes.

`feature_reference` computes the same in plain Python, for tests and for the check of every code version;
`random_features` draws inputs for both. `compiler.graph`, `compiler.onnx`, `compiler.patterns`, `compiler.tuning`
and the pipeline import this folder; it imports `compiler.embedding`, `compiler.graph`,
`compiler.onnx` and the helpers of `compiler.kernels`.
"""
