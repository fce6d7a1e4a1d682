"""scheduler/policies/veltair"""
