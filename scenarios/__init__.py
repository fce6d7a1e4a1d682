"""The scenarios that come with veltair, for a daemon (`veltair load`) and for the simulator (`veltair simulate`)."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from veltair.errors import ConfigError


def find_scenario(file: str | Path) -> Path:
    """A scenario by its path, or by its name where it is one of ours. Raises ConfigError.

    >>> find_scenario("mix").name
    'mix.toml'
    """
    path = Path(file)
    if path.exists():
        return path
    ours = {found.stem: found for found in sorted(Path(str(files("veltair.scenarios"))).glob("*.toml"))}
    if str(file) in ours:
        return ours[str(file)]
    raise ConfigError(f"{file}: no such file, and no scenario of veltair's own: {', '.join(ours)}")
