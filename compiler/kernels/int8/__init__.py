"""Layers of 8-bit integers: products and convolutions with sums in int32, and what lies between them.

Feature maps lie with their channels last: in blocks of all channels, without a halo.
"""
