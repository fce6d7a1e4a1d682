"""Micro benches under pyperf: compiled kernels, scheduling decisions, requests, engine messages, HTTP/2 headers.

    python -m bench.micro.decisions -o FILE.json

Each module is a pyperf script with pyperf's own options (`--fast`, `--rigorous`, `--debug-single-value`, …). `make
micro` runs them all and compares them with the committed results in `bench/results/micro`.
"""
