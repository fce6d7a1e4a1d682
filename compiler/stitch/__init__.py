"""Memory-intensive operators stitched into one kernel across reductions (FusionStitching)."""
