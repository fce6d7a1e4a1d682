"""The daemon: engine, workers, HTTP, gRPC, metrics, dashboard."""
