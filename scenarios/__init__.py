"""The scenarios that come with veltair, for a daemon (`veltair load`) and for the simulator (`veltair simulate`)."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from veltair.errors import ConfigError


def find_scenario(file: str | Path) -> Path:
    """A scenario by its path, or by its name where it is one of ours. Raises ConfigError.

    A folder does not hide a name of ours: `veltair demo` makes one that is called as its scenario is.

    >>> find_scenario("mix").name
    'mix.toml'
    """
    path = Path(file)
    ours = {found.stem: found for found in sorted(Path(str(files("veltair.scenarios"))).glob("*.toml"))}
    if str(file) in ours and not path.is_file():
        return ours[str(file)]
    if path.exists():
        return path
    raise ConfigError(f"{file}: no such file, and no scenario of veltair's own: {', '.join(ours)}")
