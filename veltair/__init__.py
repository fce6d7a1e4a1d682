"""A multi-tenant inference daemon for CPUs."""
