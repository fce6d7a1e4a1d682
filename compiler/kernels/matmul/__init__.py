"""compiler/kernels/matmul"""
