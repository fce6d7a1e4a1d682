"""Kernels of attention: all heads of a layer, from Q, K and V to the merged rows, in fp32 vectors or on bfloat16.

`compiler/design_spaces.py` imports the design space `Attention`; nothing else imports from here.
"""
