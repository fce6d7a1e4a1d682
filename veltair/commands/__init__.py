"""veltair/commands"""
