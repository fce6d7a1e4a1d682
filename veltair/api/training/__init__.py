"""Feature columns in training: `veltair.features`, and what it reads Arrow, Parquet and text files with.

`training_features` is the function and its result; `raw_columns` takes arrays and `arrow_columns` Arrow's record batches
apart into raw features; `feature_files` reads files in batches; `torch_batches` and `tensorflow_batches` are for
`torch.utils.data` and `tf.data`, which they import when they are first used.
"""
