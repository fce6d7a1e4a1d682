"""Dimensions that a file leaves open beside the batch: what is said of them, and the model at one extent."""
