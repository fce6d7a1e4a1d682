"""A real Prometheus scrapes a real daemon with the shipped configuration, rules and queries of the dashboard."""

import json
import re
import shutil
import signal
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from dashboard_queries import DEPLOY, expressions
from free_ports import free_ports
from running_daemon import Daemon, configuration, running, until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("prometheus") is None, reason="there is no Prometheus (Debian: apt-get install prometheus)"
    ),
]
# Every second in place of 5 and 15: rates need two scrapes, and recorded series an evaluation behind them.
FASTER = {"scrape_interval: 5s": "scrape_interval: 1s", "evaluation_interval: 15s": "evaluation_interval: 1s"}


@dataclass
class Prometheus:
    address: str

    def ask(self, path: str, **parameters: str) -> Any:
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url) as answer:
            document = json.load(answer)
        assert document["status"] == "success", document
        return document["data"]

    def series(self, expression: str) -> list[Any]:
        found: list[Any] = self.ask("query", query=expression)["result"]
        return found

    def value(self, expression: str) -> float | None:
        found = self.series(expression)
        return float(found[0]["value"][1]) if found else None


def ask_daemon(daemon: Daemon, deadline_us: int | None = None) -> None:
    """One query; a `deadline_us` that nobody can meet makes it a miss."""
    x = {"name": "x", "shape": [1, 16], "datatype": "FP32", "data": [0.5] * 16}
    parameters = {} if deadline_us is None else {"parameters": {"timeout": deadline_us}}
    body = json.dumps({"inputs": [x]} | parameters).encode()
    try:
        with urllib.request.urlopen(f"http://{daemon.http}/v2/models/mlp/infer", data=body) as answer:
            answer.read()
    except urllib.error.HTTPError as error:
        assert deadline_us is not None
        error.close()


@pytest.fixture(scope="module")
def daemon(artifacts: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with running(tmp_path_factory.mktemp("daemon"), configuration(artifacts, "mlp")) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def prometheus(daemon: Daemon, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    folder = tmp_path_factory.mktemp("prometheus")
    text = (DEPLOY / "prometheus" / "prometheus.yml").read_text("utf-8")
    for old, new in {**FASTER, "veltair:8002": daemon.http}.items():
        assert old in text
        text = text.replace(old, new)
    (folder / "prometheus.yml").write_text(text)
    rules = (DEPLOY / "prometheus" / "veltair.rules.yml").read_text("utf-8")
    (folder / "veltair.rules.yml").write_text(rules)
    (port,) = free_ports(1)
    server = Prometheus(f"127.0.0.1:{port}")
    options = ("--config.file=prometheus.yml", f"--web.listen-address={server.address}", "--storage.tsdb.path=data")
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(["prometheus", *options], cwd=folder, stdout=log, stderr=log)
    try:

        def scraped() -> bool:
            assert process.poll() is None, (folder / "log").read_text()
            try:
                return server.value('up{job="veltair"}') == 1
            except OSError:  # it does not listen yet
                return False

        until("a first scrape", scraped)
        yield server
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def test_every_rule_is_evaluated_without_a_fault(daemon: Daemon, prometheus: Prometheus) -> None:
    def rules() -> list[Any]:
        return [rule for group in prometheus.ask("rules")["groups"] for rule in group["rules"]]

    until("an evaluation of every rule", lambda: all(rule["health"] != "unknown" for rule in rules()))
    assert len(rules()) > 15
    assert [(rule["name"], rule.get("lastError")) for rule in rules() if rule["health"] != "ok"] == []


def test_queries_that_miss_burn_the_budget_of_their_tenant(daemon: Daemon, prometheus: Prometheus) -> None:
    def burn() -> float:
        ask_daemon(daemon)
        ask_daemon(daemon, deadline_us=1)
        return prometheus.value('tenant:veltair_slo_burn_rate:5m{tenant="mlp"}') or 0.0

    def causes() -> set[str]:
        missed = prometheus.series('tenant_cause:veltair_slo_misses:rate5m{tenant="mlp"} > 0')
        return {series["metric"]["cause"] for series in missed}

    until("a burn rate of misses", lambda: burn() > 1)
    until("a rate of missed deadlines", lambda: "deadline" in causes())  # the rules' groups are not evaluated at once
    assert causes() <= {"deadline", "late"}  # on a busy machine others come late


def test_the_dashboards_queries_are_answered(prometheus: Prometheus) -> None:
    """After the queries of the test before: what stays empty tells of faults and refusals that nobody had."""
    filled = [expression.replace("$__rate_interval", "1m") for expression in expressions()]
    found = {text: prometheus.series(re.sub(r"\$\{?\w+\}?", ".*", text)) for text in filled}
    empty = [text for text, series in found.items() if not series and "certificate" not in text]  # it has no TLS
    assert len(empty) < len(found) / 4, empty


def test_a_daemon_that_is_gone_is_told_of(
    artifacts: Path, daemon: Daemon, prometheus: Prometheus, tmp_path: Path
) -> None:
    """The last test of the module: it ends the daemon of all."""
    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.process.wait() == 0
    until("a scrape that fails", lambda: prometheus.value('up{job="veltair"}') == 0)

    def alerts() -> dict[str, str]:
        return {alert["labels"]["alertname"]: alert["state"] for alert in prometheus.ask("alerts")["alerts"]}

    until("an alert", lambda: alerts().get("VeltairDown") in ("pending", "firing"))
