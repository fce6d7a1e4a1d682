"""Kernels beside those of others: whole networks, stitched subgraphs, and the cost of going from layer to layer."""
