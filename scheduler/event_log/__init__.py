"""The log of a scheduler: its header, its records, and how it is replayed.

The engine and the simulator write it; `veltair replay` reads it. The scheduler itself does not import it.
"""
