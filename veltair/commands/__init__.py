"""The commands of `veltair`: each module parses its arguments, calls what does the work, and shows the result.

`veltair.cli` lists them. A command module has `add_arguments(parser)` and `run(args) -> exit code`. It may import every
other folder; no other folder imports it. `engine_process` and `alternate_runs` are no commands: they are the processes
that `bench` times in turn.
"""
