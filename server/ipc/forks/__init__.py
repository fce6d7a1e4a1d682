"""Processes that are made by fork(2) from one that has imported all that they need."""
