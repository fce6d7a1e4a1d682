"""`JsonParser`: parses large bodies in a process of its own: JSON, and messages of gRPC with much but raw tensors.

JSON is parsed under the interpreter lock: a body of 10 MB holds it for some 50 ms, in which no other tenant's
query advances, and a thread would hold the same lock. Therefore bodies above `INLINE_BYTES` go to a child process,
which returns the same request in the binary form, and that decodes in microseconds. Only the length of the JSON
part counts: raw tensors cost nothing. Likewise for numbers and strings in the fields of a message.

The format on the child's pipes: a frame is three u32, little-endian (status, header length, body length), then the
body. A header length of all ones means no header. A request has status 0, or 1 for a message of gRPC; a reply has 0
with the body, or an HTTP status with the error's text.
"""

from __future__ import annotations

import asyncio
import struct
import sys
from typing import IO

from veltair.errors import QueryError, RequestError, TooLargeError, UnknownModelError, UnsupportedError
from veltair.server.ipc.process_setup import ignore_termination_signals, set_nice
from veltair.server.protocol.http_codec import HttpBody, decode_request, encode_request
from veltair.server.protocol.infer_request import InferRequest

INLINE_BYTES = 256 * 1024  # about 1 ms of parsing
MAX_ERROR = 4096  # characters of an error's text
_FRAME = struct.Struct("<III")
_ERRORS = {error.http_status: error for error in (RequestError, UnknownModelError, UnsupportedError, TooLargeError)}
_NO_HEADER = 0xFFFFFFFF
_JSON, _GRPC = 0, 1
_NICE = 5  # a client that sends megabytes of JSON waits behind the models


class JsonParser:
    """One child process, started with the first large body and again after it died. It parses one body at a time.

    ::

        parser = JsonParser()
        request = await parser.parse(body)
        await parser.close()
    """

    def __init__(self) -> None:
        self._child: asyncio.subprocess.Process | None = None
        self._lock = asyncio.Lock()

    async def parse(self, body: bytes | memoryview, header_bytes: int | None = None) -> InferRequest:
        """Raises RequestError for a bad body, QueryError when the child died over it."""
        length = _NO_HEADER if header_bytes is None else header_bytes
        answer_header_bytes, answer = await self._ask(_JSON, length, body)
        return decode_request(answer, None if answer_header_bytes == _NO_HEADER else answer_header_bytes)

    async def with_raw_contents(self, message: bytes | memoryview) -> bytes:
        """A ModelInferRequest with every tensor raw. Raises likewise."""
        _, answer = await self._ask(_GRPC, _NO_HEADER, message)
        return answer

    async def _ask(self, kind: int, header_bytes: int, body: bytes | memoryview) -> tuple[int, bytes]:
        """The header length and the body of the child's answer."""
        async with self._lock:
            child = self._child
            if child is None or child.returncode is not None:
                child = self._child = await _spawn()
            assert child.stdin is not None and child.stdout is not None
            done = False
            try:
                child.stdin.write(_FRAME.pack(kind, header_bytes, len(body)))
                child.stdin.write(body)
                await child.stdin.drain()
                status, answer_header_bytes, size = _FRAME.unpack(await child.stdout.readexactly(_FRAME.size))
                answer = await child.stdout.readexactly(size)
                done = True
            except (OSError, asyncio.IncompleteReadError):
                raise QueryError("the parser of large bodies died over this request") from None
            finally:
                if not done:  # it died, or the caller was cancelled: nobody reads what is left in the pipes
                    await self.close()
        if status:
            raise _ERRORS.get(status, RequestError)(answer.decode())
        return answer_header_bytes, answer

    async def close(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            if child.returncode is None:
                child.kill()
            await child.wait()
            if child.stdin is not None:
                child.stdin.close()


async def _spawn() -> asyncio.subprocess.Process:
    command = (sys.executable, "-m", "veltair.server.protocol.json_parser")
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, limit=8 << 20)


def _read(source: IO[bytes], size: int) -> bytes:
    data = source.read(size)
    if len(data) < size:  # the server closed the pipe, so this process ends
        raise SystemExit(0)
    return data


def main() -> None:
    """Run the child process: parse bodies from standard input until it closes."""
    set_nice(_NICE)
    ignore_termination_signals()
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    while True:
        kind, header_bytes, size = _FRAME.unpack(_read(source, _FRAME.size))
        body = _read(source, size)
        try:
            message = _raw(kind, body, None if header_bytes == _NO_HEADER else header_bytes)
        except RequestError as error:
            text = str(error)[:MAX_ERROR].encode()
            sink.write(_FRAME.pack(error.http_status, 0, len(text)) + text)
        else:
            length = _NO_HEADER if message.header_bytes is None else message.header_bytes
            sink.write(_FRAME.pack(0, length, len(message.body)))
            sink.write(message.body)
        sink.flush()


def _raw(kind: int, body: bytes, header_bytes: int | None) -> HttpBody:
    if kind == _JSON:
        return encode_request(decode_request(body, header_bytes))
    from veltair.server.protocol.grpc_codec import with_raw_contents  # where nobody sends such, it need not be loaded

    return HttpBody(with_raw_contents(body), None)


if __name__ == "__main__":
    main()
