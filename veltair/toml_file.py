"""Reads TOML files of users."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from veltair.errors import ConfigError
from veltair.machine.regular_file import read_regular_file

MOST_BYTES = 16 << 20


def read_toml(path: Path) -> dict[str, Any]:
    """The content of a TOML file. Raises ConfigError, one line that names the file.

    >>> read_toml(Path("nowhere.toml"))
    Traceback (most recent call last):
    ...
    veltair.errors.ConfigError: nowhere.toml: cannot be read: No such file or directory
    """
    try:
        return tomllib.loads(read_regular_file(path, MOST_BYTES).decode("utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 at byte {error.start}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None
    except RecursionError:
        raise ConfigError(f"{path}: not valid TOML: nested too deeply") from None
