"""Recommendation models with seeded weights: their towers, tables, and the descriptions of their feature columns.

Only `veltair.zoo.registry`, `veltair.commands`, tests and `bench` import them.
"""
