"""Tuning records: the code that reads and appends them, and the files that ship with the package (one per target).

The compiler imports it, and the commands that compile.
"""
