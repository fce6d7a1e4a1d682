"""The pure scheduler: events in, decisions out. It knows no clock, no chance, no network and no TVM.

Begin with `scheduler` (the state machine), `query_states` (its table) and `policies/`. The server and the simulator
import it; it imports `veltair.types` and `veltair.errors` alone.
"""
