"""How to ask a model: its inputs and outputs, and snippets for Python and curl that work as they are pasted.

`veltair serve` prints them once it is ready, `veltair inspect` for an artifact.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from itertools import islice
from urllib.parse import quote

import msgspec

from veltair.config import ServeConfig
from veltair.profiles.artifact.manifest import ITEM_BYTES, Manifest, Port
from veltair.profiles.artifact.summary import describe_port
from veltair.server.ipc.logs.json_lines import log_line
from veltair.server.protocol.datatypes import datatype_name
from veltair.server.repository.served_tenant import ServedTenant
from veltair.terminal import result_console

MOST_INPUTS = 8  # of a snippet; models with more are asked by `veltair query`
LENGTH_BYTES = 4  # before each string
MOST_MODELS, MOST_PORTS = 8, 6  # whose inputs and outputs are printed, and of each
MOST_SNIPPETS = 3  # models that get snippets of their own


def announce(
    config: ServeConfig,
    tenants: Mapping[str, ServedTenant],
    addresses: Mapping[str, str],
    seconds: float,
    *,
    as_json: bool,
) -> None:
    """Print it, for people or as a line of JSON. `addresses`: HOST:PORT by listener.

    Where the log is JSON and nobody looks on, its line `ready` says it: a journal or a container keeps both streams as
    one, of which each line is an object. So the line for programs is then one of the log besides.
    """
    if as_json:
        where = {"ready": True, **addresses}
        as_line = config.server.log_format == "json"
        print(log_line("veltair.server", "listening", **where) if as_line else json.dumps(where), flush=True)
        return
    if config.server.log_format == "json" and not sys.stdout.isatty():
        return
    console = result_console()
    names = ", ".join(tenants) or "no model yet"
    policy = config.server.policy
    console.print(f"[bold]veltair[/] serves {names} [dim](policy {policy}, up in {seconds:.1f} s)[/]", soft_wrap=True)
    web = "http" if config.server.tls is None else "https"
    http, grpc = addresses["http"], addresses["grpc"]
    admin = f"{web}://{addresses.get('admin', http)}/admin"
    for label, url in (("HTTP", f"{web}://{http}"), ("gRPC", f"grpc://{grpc}"), ("Dashboard", admin)):
        console.print(f"  [dim]{label:<10}[/] [cyan]{url}[/]", soft_wrap=True)
    for name, tenant in islice(tenants.items(), MOST_MODELS):
        console.print(f"\n{name}", markup=False, style="bold", soft_wrap=True)
        manifest = tenant.artifact.manifest
        for side, ports in (("input", manifest.client_inputs), ("output", manifest.outputs)):
            for port in ports[:MOST_PORTS]:
                console.print(
                    f"  {side:<6}  {port.name}  {describe_port(port, manifest.dimension)}", markup=False, soft_wrap=True
                )
            if len(ports) > MOST_PORTS:
                console.print(f"  {side:<6}  … {len(ports)} in all", markup=False, soft_wrap=True)
    if tenants and config.server.tls is None and not config.clients:
        shown = islice(tenants.items(), MOST_SNIPPETS if len(tenants) <= MOST_SNIPPETS else 1)
        for name, tenant in shown:
            console.print(f"\n{snippets(name, tenant.artifact.manifest, http, grpc)}", markup=False, soft_wrap=True)
        if len(tenants) > MOST_SNIPPETS:
            console.print(f"\n{_how_to_ask_others(grpc)}", markup=False, soft_wrap=True)


def _how_to_ask_others(grpc: str) -> str:
    return (
        "# any other model: once, by its name; and the same snippets for it\n"
        f"veltair query grpc://{grpc} NAME --random\n"
        "veltair inspect ARTIFACT"
    )


def snippets(model: str, manifest: Manifest, http: str, grpc: str) -> str:
    """Several ways to ask the model that is served under this name, at HOST:PORT of both protocols."""
    parts = [f"# once, with random inputs\nveltair query grpc://{grpc} {shlex.quote(model)} --random"]
    least = {each.bounds: 2 if each.form == "ends" else each.features for each in manifest.ragged}
    inputs = [
        msgspec.structs.replace(port, shape=(least[port.name],)) if port.name in least and not port.shape[0] else port
        for port in manifest.client_inputs
    ]
    if len(inputs) <= MOST_INPUTS:
        masks = manifest.dimension.masks if manifest.dimension else ()
        parts.append(f"# Python\n{python_snippet(model, inputs, grpc, masks)}")
        if not masks:  # zeros mask everything
            parts.append(f"# curl: inputs of zeros\n{curl_snippet(model, inputs, http)}")
    return "\n\n".join(parts)


def python_snippet(model: str, inputs: Sequence[Port], grpc: str, masks: Sequence[str] = ()) -> str:
    """Asks once, with one sample of zeros, of the lowest ids, of empty strings; of `masks` all ones."""
    arrays = "".join(f"        {json.dumps(port.name)}: {_array(port, port.name in masks)},\n" for port in inputs)
    return (
        "import numpy as np\nimport veltair\n\n"
        f'with veltair.Client("grpc://{grpc}") as client:\n'
        f"    answer = client.infer({json.dumps(model)}, {{\n{arrays}    }})\n"
        "    print({name: array.shape for name, array in answer.outputs.items()})"
    )


def _array(port: Port, is_mask: bool) -> str:
    shape = port.at(1)
    if is_mask:
        return f"np.ones({shape}, {'bool' if port.dtype == 'bool' else f'np.{port.dtype}'})"
    if port.dtype == "string":
        return f'np.full({shape}, "", object)'
    if port.low:
        return f"np.full({shape}, {port.low}, np.{port.dtype})"
    return f"np.zeros({shape}, {'bool' if port.dtype == 'bool' else f'np.{port.dtype}'})"


def curl_snippet(model: str, inputs: Sequence[Port], http: str) -> str:
    """Asks once, with zeros as raw tensors behind the JSON (the protocol's binary tensor extension)."""
    listed, total = [], 0
    for port in inputs:
        size = LENGTH_BYTES if port.dtype == "string" else ITEM_BYTES[port.dtype]
        for dim in port.at(1):
            size *= dim
        total += size
        entry = {"name": port.name, "shape": port.at(1), "datatype": datatype_name(port.dtype)}
        listed.append(entry | {"parameters": {"binary_data_size": size}})
    head = json.dumps({"inputs": listed}, separators=(",", ":"))
    return (
        f"head={shlex.quote(head)}\n"
        f'{{ printf %s "$head"; head -c {total} /dev/zero; }} | curl -s --data-binary @- \\\n'
        f'  -H "Inference-Header-Content-Length: {len(head.encode())}" \\\n'
        f"  {shlex.quote(f'http://{http}/v2/models/{quote(model)}/infer')}"
    )
