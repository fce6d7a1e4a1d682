"""The rules and the dashboard ask for nothing that the daemon does not export; Prometheus' own tool reads them."""

import json
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from dashboard_queries import DEPLOY, RULES, dashboard, expressions, rules
from prometheus_client.parser import text_string_to_metric_families
from promql_names import metric_names
from running_daemon import configuration, running, until

from veltair.errors import FailureReason, RefusalReason
from veltair.server.front.request_counts import OUTCOMES, SLO_CAUSES
from veltair.server.ipc.stages import STAGES

OF_PROMETHEUS = {"up"}
VALUES = {"outcome": OUTCOMES, "cause": SLO_CAUSES, "stage": [stage.name for stage in STAGES]}

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="there is no promtool (Debian: apt-get install prometheus)"
)


@pytest.fixture(scope="module")
def page(artifacts: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """/metrics of a daemon that has answered a query, so that nothing is absent."""
    with running(tmp_path_factory.mktemp("daemon"), configuration(artifacts, "mlp")) as daemon:
        told: list[str] = []

        def with_level() -> bool:
            """The level is there for two seconds after a block."""
            x = {"name": "x", "shape": [1, 16], "datatype": "FP32", "data": [0.5] * 16}
            body = json.dumps({"inputs": [x]}).encode()
            with urllib.request.urlopen(f"http://{daemon.http}/v2/models/mlp/infer", data=body) as answer:
                answer.read()
            with urllib.request.urlopen(f"http://{daemon.http}/metrics") as answer:
                told[:] = [answer.read().decode()]
            return "veltair_interference_level{" in told[0]

        until("a page with an interference level", with_level)
        yield told[0]


@pytest.mark.slow
def test_every_metric_that_is_asked_for_is_exported(page: str) -> None:
    exported = {sample.name for family in text_string_to_metric_families(page) for sample in family.samples}
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    asked = set().union(*map(metric_names, expressions()))
    assert len(asked) > 25
    with_tls = {"veltair_certificate_days_left"}  # tests/server/daemon/test_tls.py
    assert asked - exported - recorded - OF_PROMETHEUS == with_tls


@pytest.mark.slow
@needs_promtool
def test_promtool_has_nothing_to_say_about_the_metrics(page: str) -> None:
    done = subprocess.run(["promtool", "check", "metrics"], input=page, text=True, capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@needs_promtool
@pytest.mark.parametrize(
    "command", ["check rules veltair.rules.yml", "test rules rules_test.yml", "check config prometheus.yml"]
)
def test_promtool_takes_the_rules(command: str) -> None:
    done = subprocess.run(["promtool", *command.split()], cwd=RULES.parent, text=True, capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_has_a_case_where_it_fires_and_one_where_it_does_not() -> None:
    tests = yaml.safe_load((RULES.parent / "rules_test.yml").read_text())["tests"]
    cases = [case for test in tests for case in test.get("alert_rule_test", [])]
    alerts = {rule["alert"] for rule in rules() if "alert" in rule}
    assert {case["alertname"] for case in cases if case["exp_alerts"]} == alerts
    assert {case["alertname"] for case in cases if not case["exp_alerts"]} == alerts


@needs_promtool
def test_prometheus_parses_what_the_dashboard_asks(tmp_path: Path) -> None:
    asked = [re.sub(r"\$__rate_interval", "1m", expression) for expression in expressions()]
    recorded = [{"record": f"panel:{number}", "expr": text} for number, text in enumerate(asked)]
    file = tmp_path / "panels.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": recorded}]}))
    done = subprocess.run(["promtool", "check", "rules", str(file)], text=True, capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_label_values_in_expressions_are_of_the_fixed_lists() -> None:
    for expression in expressions():
        for label, value in re.findall(r'\b(outcome|cause|stage|reason)!?="([^"]+)"', expression):
            assert value in VALUES.get(label, [*RefusalReason, *FailureReason]), expression


def test_every_alert_says_what_to_do() -> None:
    alerts = [rule for rule in rules() if "alert" in rule]
    page = (DEPLOY.parent / "docs" / "operations" / "observability.md").read_text("utf-8")
    assert len({alert["alert"] for alert in alerts}) == len(alerts) >= 10
    for alert in alerts:
        assert alert["labels"]["severity"] in ("critical", "warning")
        assert set(alert["annotations"]) == {"summary", "description"}
        assert f"`{alert['alert']}`" in page


def test_the_dashboard_is_one_that_grafana_imports() -> None:
    document = dashboard()
    assert document["uid"] == "veltair" and document["id"] is None
    assert "datasource" in {v["name"] for v in document["templating"]["list"] if v["type"] == "datasource"}
    panels = document["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    rows = [panel["title"] for panel in panels if panel["type"] == "row"]
    assert rows == ["Who misses", "Since when", "Why", "The daemon", "What to do"]
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        if panel["type"] not in ("row", "text"):
            assert panel["description"] and panel["targets"]
            assert panel["datasource"]["uid"] == "${datasource}"
            assert all(target["datasource"]["uid"] == "${datasource}" for target in panel["targets"])
            assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
