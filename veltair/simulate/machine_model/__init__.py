"""veltair/simulate/machine_model"""
