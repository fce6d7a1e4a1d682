"""compiler/kernels/rows"""
