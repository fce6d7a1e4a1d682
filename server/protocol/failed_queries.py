"""How a query that failed is logged: an operator finds it by the id that its client gave it.

The front knows that id, the engine what happened; their lines have the query's number in common.
"""

from __future__ import annotations

import logging

logger = logging.getLogger("veltair.server")

CLIENT_CLOSED = 499  # a status for the log alone: the client is gone
MOST_ID, MOST_TEXT = 128, 512  # characters of each that are logged


def log_failed_query(query: int | None, tenant: str, request_id: str, why: str) -> None:
    """One line. `query`: its number, None for one that failed before it had any. The id is the client's own text."""
    number = "a query" if query is None else f"query {query}"
    shown = ascii(request_id[:MOST_ID]) + ("…" if len(request_id) > MOST_ID else "")
    logger.error("%s of %s failed: %s; request id %s", number, tenant, one_line(why), shown)


def one_line(text: str) -> str:
    r"""Text of others for a log: in ASCII, without an end of line, and not too long.

    >>> one_line("no memory\nERROR all is well")
    'no memory\\nERROR all is well'
    """
    return text[:MOST_TEXT].encode("unicode_escape").decode()
