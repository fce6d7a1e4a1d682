"""Open-loop load generation against a running daemon."""
