"""`veltair init`: writes a configuration in which every key stands with its default and what it means."""

from __future__ import annotations

import argparse
import inspect
import io
import json
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from veltair import access_config, config
from veltair.errors import ConfigError
from veltair.machine.whole_file import whole_file
from veltair.profiles.artifact.artifact_folder import load_artifact

TABLES = (
    ("server", config.ServerConfig),
    ("server.limits", config.LimitsConfig),
    ("server.tls", access_config.TlsConfig),
)
OWN_TABLES = ("limits", "tls")  # keys of [server] that are tables of their own


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("artifacts", type=Path, nargs="*", metavar="ARTIFACT", help="artifacts to serve")
    parser.add_argument("--out", type=Path, default=Path("serve.toml"), metavar="FILE", help="default: serve.toml")
    parser.epilog = """\
examples:
  veltair init artifacts/resnet50 artifacts/dlrm
  veltair init --out serve.toml"""


def run(args: argparse.Namespace) -> int:
    """Write the file. Returns 0; raises ConfigError where it exists already, ArtifactError for a wrong artifact."""
    tenants = [(load_artifact(path).manifest.model, path) for path in args.artifacts]
    text = configuration_text(tenants, args.out.absolute().parent)
    try:
        with whole_file(args.out, new=True) as file:
            file.write(text.encode())
    except OSError as error:
        raise ConfigError(f"{args.out}: {error.strerror}") from None
    print(f"{args.out}: every key with its default; serve it: veltair serve {args.out}")
    return 0


def configuration_text(tenants: Sequence[tuple[str, Path]], folder: Path) -> str:
    """A commented configuration. `tenants`: name and artifact of each; paths are relative to `folder` inside of it."""
    lines = ["# Configuration of `veltair serve`. A key that stands behind # has this value by default."]
    for table, kind in TABLES:
        lines += ["", f"[{table}]" if table == "server" else f"# [{table}]", *_keys(kind, OWN_TABLES)]
    for name, path in tenants or [("model", Path("artifacts/model"))]:
        where = path.absolute()
        shown = where.relative_to(folder) if where.is_relative_to(folder) else where
        own = [f"name = {json.dumps(name)}", f"artifact = {json.dumps(str(shown))}"]
        lines += ["", "[[tenants]]", *own, *_keys(config.TenantConfig, ("name", "artifact"))]
    lines += ["", "# Who may ask. Without such a table everybody may do everything.", "# [[clients]]"]
    lines += _keys(access_config.ClientConfig, ())
    return "\n".join(lines) + "\n"


def _keys(kind: type[msgspec.Struct], left_out: Sequence[str]) -> Iterator[str]:
    """A line for each key, out of effect, with its default and its meaning."""
    meanings = field_comments(kind)
    for field in msgspec.structs.fields(kind):
        if field.name not in left_out:
            meaning = f"  # {meanings[field.name]}" if field.name in meanings else ""
            yield f"# {field.name} = {_value(field.default)}{meaning}"


def _value(default: Any) -> str:
    """A default as TOML writes it."""
    if default is None or default is msgspec.NODEFAULT:
        return "…"
    return json.dumps(msgspec.to_builtins(default), ensure_ascii=False)


def field_comments(kind: type) -> dict[str, str]:
    """What stands in the source behind each field of a class."""
    source = inspect.getsource(kind)
    found, name = {}, ""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NAME and token.start[1] == len(token.line) - len(token.line.lstrip()):
            name = token.string
        elif token.type == tokenize.COMMENT:
            found[name] = token.string.lstrip("# ")
    return found
