"""The policies: who gets cores next, and for which layers. `by_name` has them all.

`veltair/` is the default, `paper` is VELTAIR to the letter, `baselines/` has the others. Only the scheduler imports
them, by name; bench/ and the tests may make one with other settings.
"""
