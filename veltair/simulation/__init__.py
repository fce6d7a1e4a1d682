"""The simulator: the scheduler of the daemon, driven in virtual time on models of machines.

`Simulation` runs a `SimulationScenario` under a policy; `VirtualMachine` carries out the scheduler's decisions; an
`InterferenceModel` says how fast each block runs beside its co-runners. The models of machines are in `machine_model`.
`veltair.commands` and `bench` import this package; `compiler`, `profiles`, `server` and `loadgen` may not.
"""
