"""veltair/machine"""
