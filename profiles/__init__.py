"""The contract between compiler and daemon: model artifacts, tuning records, and the runtime that executes artifacts.

Every part of the package but `machine/` may import from here. Nothing in here imports the compiler.
"""
