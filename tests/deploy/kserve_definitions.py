"""KServe's definitions of the kinds that deploy/kserve uses, as JSON schemas that know of no other fields.

    python tests/deploy/kserve_definitions.py KSERVE_CHECKOUT

makes `kserve_definitions.json.gz` from a checkout of github.com/kserve/kserve (Apache-2.0): the schemas, without their
descriptions, and the commit that they are of.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator

KEPT = Path(__file__).with_name("kserve_definitions.json.gz")
DEFINITIONS = "config/crd/full/serving.kserve.io_{}.yaml"
PRESERVED = "x-kubernetes-preserve-unknown-fields"


@cache
def validators() -> dict[str, Draft202012Validator]:
    """By `apiVersion kind`."""
    schemas = json.loads(gzip.decompress(KEPT.read_bytes()))["schemas"]
    return {name: Draft202012Validator(schema) for name, schema in schemas.items()}


def strict(schema: Any) -> Any:
    """The same without descriptions, and with no other properties than those that it names."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: strict(value) for key, value in schema.items() if key not in ("description", "properties", PRESERVED)}
    if "properties" in schema:
        kept["properties"] = {name: strict(each) for name, each in schema["properties"].items()}
        if not schema.get(PRESERVED) and "additionalProperties" not in schema:
            kept["additionalProperties"] = False
    return kept


def main(checkout: Path) -> None:
    schemas = {}
    for plural in ("clusterservingruntimes", "inferenceservices"):
        definition = yaml.safe_load((checkout / DEFINITIONS.format(plural)).read_text("utf-8"))["spec"]
        for version in definition["versions"]:
            name = f"{definition['group']}/{version['name']} {definition['names']['kind']}"
            schemas[name] = strict(version["schema"]["openAPIV3Schema"])
    commit = subprocess.check_output(["git", "-C", str(checkout), "rev-parse", "HEAD"], text=True).strip()
    document = {"source": f"github.com/kserve/kserve, commit {commit}", "schemas": schemas}
    text = json.dumps(document, separators=(",", ":"), sort_keys=True)
    KEPT.write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
