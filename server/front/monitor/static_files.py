"""`StaticFiles`: the page's own files, from memory."""

from __future__ import annotations

import hashlib
from importlib.resources import files

from fastapi import Request, Response
from starlette.exceptions import HTTPException

_TYPES = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml", "txt": "text/plain"}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # by ETag: a browser loads a new version of the daemon at once
}


class StaticFiles:
    """Files of `server/static`, with an ETag each: `StaticFiles().response("index.html", request)`."""

    def __init__(self) -> None:
        self._files: dict[str, tuple[bytes, str]] = {}  # content and ETag by name
        for entry in files("veltair.server").joinpath("static").iterdir():
            if entry.name.rpartition(".")[2] in _TYPES:
                content = entry.read_bytes()
                self._files[entry.name] = content, f'"{hashlib.sha256(content).hexdigest()[:20]}"'

    def response(self, name: str, request: Request) -> Response:
        """The file, or 304 where the browser has it. Raises HTTPException for one that there is not."""
        if name not in self._files:
            raise HTTPException(404)
        content, tag = self._files[name]
        headers = {**HEADERS, "ETag": tag}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(content, 200, headers, _TYPES[name.rpartition(".")[2]])
