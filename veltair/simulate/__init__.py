"""Machines that we do not have: the very same scheduler in virtual time."""
