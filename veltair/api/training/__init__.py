"""Feature columns in training: `veltair.features`, and what it reads Arrow, Parquet and text files with.

`training_features` is the function and its result. `raw_columns` makes raw features of arrays, `arrow_columns` of
Arrow's record batches, and `feature_files` reads files in batches. `torch_batches` and `tensorflow_batches` are for
`torch.utils.data` and `tf.data`; both are imported when they are first used.
"""
