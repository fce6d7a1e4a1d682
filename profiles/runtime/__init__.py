"""Execution of an artifact with TVM's runtime alone: pinned threads, memory, kernels called block by block.

The workers of the server, the timing code of the compiler and the commands that run a model import it.
"""
