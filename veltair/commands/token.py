"""`veltair token`: makes a bearer token for a client of the configuration."""

from __future__ import annotations

import argparse
import hashlib
import json
import secrets

TOKEN_BYTES = 32


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    parser.epilog = """\
examples:
  veltair token
  veltair token --json"""


def run(args: argparse.Namespace) -> int:
    """Print a token, and its sha256 for `token_sha256` under [[clients]]."""
    token = secrets.token_urlsafe(TOKEN_BYTES)
    digest = hashlib.sha256(token.encode()).hexdigest()
    if args.json:
        print(json.dumps({"token": token, "token_sha256": digest}))
    else:
        print(f'token, for the client:        {token}\ntoken_sha256, for the server: ["{digest}"]')
    return 0
