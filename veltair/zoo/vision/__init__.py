"""veltair/zoo/vision"""
