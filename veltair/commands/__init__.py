"""The commands of `veltair`: each module parses its arguments, calls what does the work, and shows the result.

`veltair.cli` lists them. A command module has `add_arguments(parser)` and `run(args) -> exit code`. It may import every
other folder; no other folder imports it. `shell/` has the commands that describe all commands, `kept/` the one about
the cache of compiles, and `timing/` what `bench` and `profile` time models with.
"""

from __future__ import annotations

from pathlib import Path

from veltair.errors import ConfigError


def refuse_to_overwrite(path: Path | None, *, force: bool) -> None:
    """Check where a command writes, before any work. Raises ConfigError for a file, or a folder that is not empty."""
    if path is None or force or not path.exists():
        return
    if not path.is_dir() or any(path.iterdir()):
        raise ConfigError(f"{path}: is there already; --force overwrites it")
