"""Coverage-guided fuzzing of what reads bytes of clients: see `bench.fuzz.__main__`."""
