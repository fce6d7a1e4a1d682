"""Feature columns for training: from raw features to the ids that a model looks up, by the code that serves them.

A served column ends with rows of its table. A model in training has tables of its own, so here a column ends with the
ids of these rows: `training_parts` sorts the columns of a description into parts that one kernel computes each,
`training_kernel` generates its code from the emitters of `features.kernel`, and `FeatureTransform` runs the kernels on
a batch.
"""
