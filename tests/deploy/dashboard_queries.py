"""What the shipped rules and dashboard ask of Prometheus."""

import json
import re
from pathlib import Path
from typing import Any

import yaml

DEPLOY = Path(__file__).resolve().parent.parent.parent / "deploy"
RULES = DEPLOY / "prometheus" / "veltair.rules.yml"
DASHBOARD = DEPLOY / "grafana" / "dashboards" / "veltair.json"


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text("utf-8"))["groups"] for rule in group["rules"]]


def dashboard() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(DASHBOARD.read_text("utf-8"))
    return document


def expressions() -> list[str]:
    """Of the rules and the dashboard, and those that fill its variables."""
    variables = [v["definition"] for v in dashboard()["templating"]["list"] if v["type"] == "query"]
    asked = [re.sub(r"label_values\((\w+), \w+\)", r"\1", text) for text in variables]
    panels = [target["expr"] for panel in dashboard()["panels"] for target in panel.get("targets", [])]
    return [*(rule["expr"] for rule in rules()), *panels, *asked]
