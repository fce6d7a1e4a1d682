"""`veltair query`: asks a served model once, and shows the answer with its times."""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from veltair.api.client import Answer, Client
from veltair.commands import refuse_to_overwrite
from veltair.errors import ConfigError, UserError
from veltair.loadgen.payloads import draw_payloads
from veltair.loadgen.scenario import LoadSettings
from veltair.loadgen.tenant_streams import connect
from veltair.profiles.array_file import read_arrays
from veltair.terminal import Column, ResultTable, result_console

SHOWN_VALUES = 6  # of an output
STAGES = ("read", "handoff", "wait", "execute", "gap", "report")  # of a traced response, in their order


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("address", help="grpc://HOST:PORT or http://HOST:PORT")
    parser.add_argument("model")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--random", action="store_true", help="inputs drawn by what the server says of them (default)")
    source.add_argument("--npz", type=Path, metavar="FILE", help="a NumPy file with an array for each input")
    parser.add_argument("--batch", type=int, metavar="N", help="samples of --random, where the model takes several")
    parser.add_argument("--seed", type=int, default=1, help="of --random (default: 1)")
    parser.add_argument("--version", default="", dest="model_version", metavar="V", help="of the model")
    parser.add_argument("--deadline-ms", type=float, metavar="MS")
    parser.add_argument("--token", help="a bearer token")
    parser.add_argument("--out", type=Path, metavar="FILE.npz", help="keep the outputs there")
    parser.add_argument("--force", action="store_true", help="overwrite the file of --out")
    parser.add_argument("--json", action="store_true")
    parser.epilog = """\
examples:
  veltair query grpc://127.0.0.1:8001 resnet50 --random
  veltair query http://127.0.0.1:8000 resnet50 --npz inputs.npz --out outputs.npz"""


def run(args: argparse.Namespace) -> int:
    """Ask once. Returns 0; raises UserError for a wrong request, VeltairError for a refusal."""
    refuse_to_overwrite(args.out, force=args.force)
    inputs = read_arrays(args.npz) if args.npz else _draw(args)
    try:
        with Client(args.address, token=args.token) as client:
            options: dict[str, Any] = {"trace": True, "version": args.model_version}
            if args.deadline_ms is not None:
                options["deadline_ms"] = args.deadline_ms
            client.describe(args.model)
            begin = time.perf_counter()
            answer = client.infer(args.model, inputs, **options)
            took_ms = (time.perf_counter() - begin) * 1e3
    except ConnectionError as error:
        raise ConfigError(str(error)) from None
    if args.out is not None:
        kept: dict[str, Any] = {name: _plain(array) for name, array in answer.outputs.items()}
        np.savez(args.out, **kept)
    _show(args, answer, took_ms)
    return 0


def _draw(args: argparse.Namespace) -> dict[str, Any]:
    """Random inputs, as the load generator draws them."""
    url = urlsplit(args.address if "://" in args.address else f"grpc://{args.address}")
    if url.scheme not in ("grpc", "http") or args.token:
        raise ConfigError("--random: expected grpc:// or http:// and no token; give the inputs by --npz")

    async def draw() -> dict[str, Any]:
        client = await connect(LoadSettings(url.geturl(), connections=1))
        try:
            meta = await client.describe(args.model)
        finally:
            await client.close()
        return dict(draw_payloads(meta, args.batch, np.random.default_rng(args.seed))[0])

    try:
        return asyncio.run(draw())
    except UserError as error:
        raise ConfigError(str(error).removeprefix("load.target: ")) from None


def _plain(array: NDArray[Any]) -> NDArray[Any]:
    """An array that needs no pickle: strings of the longest one's length."""
    return array.astype(np.bytes_) if array.dtype.hasobject else array


def _show(args: argparse.Namespace, answer: Answer, took_ms: float) -> None:
    times = {name: answer.parameters[key] / 1e6 for name in STAGES if (key := f"{name}_ns") in answer.parameters}
    if args.json:
        outputs = {
            name: {"shape": array.shape, "dtype": str(array.dtype), "first": _first(array)}
            for name, array in answer.outputs.items()
        }
        facts = {"model": args.model, "outputs": outputs, "client_ms": took_ms, "server_ms": times}
        print(json.dumps(facts | {"blocks": json.loads(answer.parameters.get("blocks", "[]"))}))
        return
    console = result_console()
    table = ResultTable((Column("output", is_name=True), Column("type", is_name=True), Column("values", is_name=True)))
    for name, array in answer.outputs.items():
        more = ", …" if array.size > SHOWN_VALUES else ""
        shown = ", ".join(f"{v:.4g}" if isinstance(v, float) else str(v) for v in _first(array))
        table.add(name, f"{array.dtype} {list(array.shape)}", f"{shown}{more}")
    table.print(console)
    stages = ", ".join(f"{name} {ms:.3f}" for name, ms in times.items())
    console.print(
        f"{took_ms:.2f} ms for this client" + (f"; in the server, ms: {stages}" if times else ""), soft_wrap=True
    )


def _first(array: NDArray[Any]) -> list[Any]:
    values = array.ravel()[:SHOWN_VALUES].tolist()
    return [value.decode(errors="replace") if isinstance(value, bytes) else value for value in values]
