"""What layers cost: tables made of profiles, on one grid of interference levels.

The scheduler and its policies import it, as do the simulator and bench/.
"""
