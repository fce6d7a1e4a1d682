"""A multi-tenant inference daemon for CPUs.

In this folder: `types`, `errors` and `config`; `cli` and its `commands/`; `machine/` and `grpc/`, which the other
packages build on; `zoo/`, which builds models; `simulate/`, which runs the scheduler in virtual time. `compiler`,
`profiles`, `scheduler`, `server` and `loadgen` are folders at the root of the repository, installed below this package.
"""
