"""compiler/kernels/recurrent"""
