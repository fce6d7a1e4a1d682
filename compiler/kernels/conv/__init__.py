"""compiler/kernels/conv"""
