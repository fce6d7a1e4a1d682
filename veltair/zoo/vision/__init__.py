"""Image classifiers and detectors with seeded weights. Only `veltair.zoo.registry` and tests import them."""
