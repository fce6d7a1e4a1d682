"""compiler/kernels/feature_maps"""
