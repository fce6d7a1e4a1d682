"""veltair/zoo/language"""
