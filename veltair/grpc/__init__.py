"""veltair/grpc"""
