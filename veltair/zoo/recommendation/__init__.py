"""veltair/zoo/recommendation"""
