"""Open-loop load generation against a running daemon, the MLPerf way.

Settings: `scenario`. Queries: `arrivals`, `payloads`, `tenant_streams`. Sending: `run_schedule` chooses between
`native_sender`, whose C part is in `native/`, and its reference `open_loop` (with `precise_timer`). Clients: `client`
(the protocol that all fulfil), `http_client`, `grpc_client`, `shared_memory_client`, `model_config`. Results:
`tenant_results`, `peak`, `report`; `mlperf` runs MLPerf's own generator instead.

`veltair.commands`, the simulator and the benches import it; it imports `veltair.grpc`, `veltair.machine`,
`veltair.types` and `veltair.errors`, and knows the daemon only by its protocol.
"""
