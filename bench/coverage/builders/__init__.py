"""Builds the networks with random weights. Each module here needs its library in the Python that exports."""
