"""Traces of queries for OpenTelemetry: who asks for one, what is known of each, and how they reach a collector."""
