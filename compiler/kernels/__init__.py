"""Kernel generators: one module for each kind of anchor."""
