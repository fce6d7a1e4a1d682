"""Large JSON bodies are parsed in a process of their own."""

import asyncio
import json
from typing import Any

import numpy as np
import pytest

from veltair.errors import RequestError
from veltair.server.protocol.http_codec import decode_request
from veltair.server.protocol.json_parser import INLINE_BYTES, JsonParser


def large(batch: int, **change: Any) -> bytes:
    """JSON well above what is parsed in this process."""
    x = np.linspace(0, 1, 4 * batch, dtype=np.float32)
    ids = np.arange(2 * batch) % 100
    inputs = [
        {"name": "x", "shape": [batch, 4], "datatype": "FP32", "data": x.tolist()},
        {"name": "ids", "shape": [batch, 2], "datatype": "INT64", "data": ids.tolist()},
    ]
    return json.dumps({"inputs": inputs, **change}).encode()


def test_large_json_is_parsed_elsewhere_with_the_same_result() -> None:
    async def main() -> None:
        parser, body = JsonParser(), large(4096, id="big", outputs=[{"name": "sum"}])
        assert len(body) > INLINE_BYTES
        try:
            there, here = await parser.parse(body), decode_request(body)
            assert (there.id, there.outputs, there.binary_output) == (here.id, here.outputs, here.binary_output)
            for a, b in zip(there.inputs, here.inputs, strict=True):
                assert (a.name, a.datatype, a.shape) == (b.name, b.datatype, b.shape)
                assert bytes(a.data) == np.asarray(b.data).tobytes()
            with pytest.raises(RequestError, match="truncated"):
                await parser.parse(body[:-1])
            first = parser._child
            assert first is not None
            first.kill()
            await first.wait()
            assert (await parser.parse(body)).id == "big"  # by another child
            hung = asyncio.create_task(parser.parse(body))
            await asyncio.sleep(0)
            hung.cancel()
            assert (await parser.parse(body)).id == "big"  # what the first left in the pipes harms nobody
        finally:
            await parser.close()

    asyncio.run(main())
