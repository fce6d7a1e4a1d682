"""Networks that people bring: exported with random weights, compiled as a new user would, and verified."""
