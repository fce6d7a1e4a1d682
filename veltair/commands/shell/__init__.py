"""Commands that describe all commands to a shell: scripts that complete them, and the man page."""

from __future__ import annotations

import argparse
from collections.abc import Mapping


def commands_of(parser: argparse.ArgumentParser) -> Mapping[str, argparse.ArgumentParser]:
    """The parsers of a parser's commands, by name; argparse does not say them."""
    found = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return {name: command for action in found for name, command in action.choices.items()}
