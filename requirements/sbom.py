"""`python requirements/sbom.py PYTHON FILE`: a bill of materials (CycloneDX 1.6, JSON) of an environment with veltair.

Packages, versions and licences are those of the environment that PYTHON belongs to. What the wheel bundles besides its
own code is no package of Python, so it is added here: uPlot, which draws the charts of the dashboard.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

ROOT = Path(__file__).resolve().parent.parent
UPLOT = ROOT / "server" / "static" / "uPlot.iife.min.js"


def bundled_components() -> list[dict[str, Any]]:
    """What lies in the wheel and is not ours."""
    head = UPLOT.read_text("utf-8")[:200]
    version = re.search(r"\(v([0-9.]+)\)", head)
    if version is None:
        sys.exit(f"{UPLOT}: expected its version in the first line")
    purl = f"pkg:npm/uplot@{version[1]}"
    component = {
        "type": "library",
        "bom-ref": purl,
        "name": "uplot",
        "version": version[1],
        "purl": purl,
        "licenses": [{"license": {"id": "MIT", "acknowledgement": "declared"}}],
        "description": "Bundled in server/static, with its licence beside it.",
    }
    return [component]


def complete(bom: dict[str, Any]) -> dict[str, Any]:
    """The bill of an environment with the bundled parts added, which veltair depends on."""
    added = bundled_components()
    references = [component["bom-ref"] for component in added]
    root = bom["metadata"]["component"]["bom-ref"]
    dependencies = [
        each | {"dependsOn": sorted({*each.get("dependsOn", ()), *references})} if each["ref"] == root else each
        for each in bom["dependencies"]
    ]
    # The environment has veltair installed: it is the subject of the bill and none of its own parts.
    components = [each for each in bom["components"] if each["name"] != "veltair"]
    leaves = [{"ref": reference} for reference in references]
    return bom | {"components": [*components, *added], "dependencies": [*dependencies, *leaves]}


def check(text: str) -> None:
    """Exits with the first fault against CycloneDX's schema."""
    fault = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    if fault is not None:
        sys.exit(f"the bill of materials does not fit CycloneDX 1.6: {fault}")


def main() -> None:
    python, file = sys.argv[1], Path(sys.argv[2])
    command = [sys.executable, "-m", "cyclonedx_py", "environment", python, "--pyproject", str(ROOT / "pyproject.toml")]
    command += ["--mc-type", "application", "--spec-version", "1.6", "--output-reproducible", "--of", "JSON"]
    made = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    text = json.dumps(complete(json.loads(made)), indent=2) + "\n"
    check(text)
    file.write_text(text, "utf-8")
    print(f"{file}: {len(json.loads(text)['components'])} components")


if __name__ == "__main__":
    main()
