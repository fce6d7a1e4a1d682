"""BERT with seeded weights. Only `veltair.zoo.registry` and tests import it."""
