"""Embedding operations on decoupled access and execute loops, after Ember (Siracusa et al. 2025)."""
