"""compiler/kernels/codegen"""
