"""Patterns of quantised models: operators between DequantizeLinear and QuantizeLinear, and dynamic products."""
