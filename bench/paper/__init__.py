"""VELTAIR's experiments: its figures from the simulator, code versions under interference, and the simulator itself.

The last is how fast it is, the model of this machine that it needs, and how far it is from the daemon.
"""
