"""compiler/kernels/attention"""
