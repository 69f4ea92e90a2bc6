"""ops/observe: the Grafana dashboard and Prometheus' rules name metrics that there are, and are valid.

Whether each alert fires when it should is in ops/observe/prometheus/tests.yml, which `promtool` runs here.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from operators.data.statistics import EdgeStatistics, SpillStatistics
from services.process.metrics import WorkerMetrics

ROOT = Path(__file__).resolve().parents[2]
PROMETHEUS = ROOT / "ops/observe/prometheus"
GRAFANA = ROOT / "ops/observe/grafana"

OTHER_METRICS: dict[str, set[str]] = {"up": set(), "ALERTS": {"alertname", "alertstate"}}
"""Metrics that Prometheus itself makes, with their labels."""

SCRAPED = {"job", "instance"}
"""Labels that a scrape adds."""

FILES = ("recording.yml", "alerts.yml")
"""The files with rules."""

WORDS = {"and", "or", "unless", "offset", "bool", "by", "without", "on", "ignoring", "group_left", "group_right"}
"""The words of PromQL that stand where a name could."""


def loaded(path: Path) -> Any:
    """The document in a YAML file."""
    return yaml.safe_load(path.read_text())


def rules(name: str) -> list[dict[str, Any]]:
    """The rules of a file, of all its groups."""
    return [rule for group in loaded(PROMETHEUS / name)["groups"] for rule in group["rules"]]


def dashboard() -> dict[str, Any]:
    """The Grafana dashboard."""
    found: dict[str, Any] = json.loads((GRAFANA / "dashboards/weir.json").read_text())
    return found


def panels() -> list[dict[str, Any]]:
    """The panels of the dashboard that show something."""
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def panel_expressions() -> Iterator[str]:
    """The queries of all panels, with Grafana's variables replaced as Grafana would."""
    for panel in panels():
        for target in panel["targets"]:
            expression = target["expr"].replace("$__rate_interval", "1m")
            yield expression.replace("$query", ".*").replace("$task", ".*")


def expressions() -> list[str]:
    """All expressions: of the dashboard, its variables, and the rules."""
    variables = [
        re.sub(r"label_values\((.+), \w+\)", r"\1", variable["definition"]).replace("$query", ".*")
        for variable in dashboard()["templating"]["list"]
        if variable["type"] == "query"
    ]
    return [*panel_expressions(), *variables, *(rule["expr"] for name in FILES for rule in rules(name))]


def names_in(expression: str) -> set[str]:
    """The metrics that a PromQL expression names."""
    bare = re.sub(r'"[^"]*"|\'[^\']*\'', "", expression)
    bare = re.sub(r"\{[^}]*\}|\[[^]]*\]", " ", bare)
    bare = re.sub(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)", " ", bare)
    return {name for name in re.findall(r"(?<![\w:.])[A-Za-z_:][\w:]*\b(?!\s*\()", bare) if name not in WORDS}


def labels_in(expression: str) -> set[str]:
    """The labels that a PromQL expression selects or groups by."""
    matched = re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*[\"']", expression)
    grouped = re.findall(r"\b(?:by|without|on|ignoring)\s*\(([^)]*)\)", expression)
    return {*matched, *(label.strip() for labels in grouped for label in labels.split(","))}


@pytest.fixture(scope="module")
def page() -> dict[str, set[str]]:
    """The names on a worker's page, with the labels of each."""
    metrics = WorkerMetrics("q")
    metrics.assigned(0)
    task = metrics.of("0")
    task.epoch.observe(0.01)
    task.commit.observe(0.01)
    task.reached(1_000, 2_000.0)
    task.saved(1_000)
    task.feedback([EdgeStatistics("(A B)", "A", True, suspend=1)])
    task.spill(SpillStatistics("global-output", 1 << 20))
    task.members(1)
    task.member("q").inc()
    task.migrations("done").inc()
    task.decisions("made").inc()
    return {
        sample.name: set(sample.labels)
        for family in text_string_to_metric_families(metrics.page().decode())
        for sample in family.samples
    }


@pytest.fixture(scope="module")
def recorded() -> dict[str, set[str]]:
    """The names that recording rules make, with the labels of each."""
    return {rule["record"]: labels_in(rule["expr"]) for rule in rules("recording.yml")}


def test_names_are_found_in_expressions() -> None:
    """The function that the next tests rely on."""
    found = names_in('sum by (query) (rate(a_total{x="y z"}[5m])) / on (task) (b > 0) unless up{job="weir"} offset 15m')
    assert found == {"a_total", "b", "up"}
    assert names_in("histogram_quantile(0.5, sum by (le) (q:a:rate5m{q=~'.*'})) + vector(1)") == {"q:a:rate5m"}
    assert labels_in('sum by (query, le) (a{task=~"0", x!="y"}) / on (b) c') == {"query", "le", "task", "x", "b"}


def test_named_metrics_are_on_the_page(page: dict[str, set[str]], recorded: dict[str, set[str]]) -> None:
    known = {*page, *recorded, *OTHER_METRICS}
    assert len(page) > 50
    for expression in expressions():
        found = names_in(expression)
        assert found, expression
        assert found <= known, (sorted(found - known), expression)


def test_named_labels_are_on_the_page(page: dict[str, set[str]], recorded: dict[str, set[str]]) -> None:
    labels = {**page, **recorded, **OTHER_METRICS}
    for expression in expressions():
        known = {label for name in names_in(expression) for label in labels[name]}
        assert labels_in(expression) <= known | SCRAPED, expression


def test_recording_rules_are_used_and_do_not_repeat(recorded: dict[str, set[str]]) -> None:
    assert len(recorded) == len(rules("recording.yml"))
    using = [*panel_expressions(), *(rule["expr"] for rule in rules("alerts.yml"))]
    assert set(recorded) <= {name for expression in using for name in names_in(expression)}


def test_panels_say_what_they_show() -> None:
    every = dashboard()["panels"]
    ids = [panel["id"] for panel in every]
    assert len(set(ids)) == len(ids)
    assert len({panel["title"] for panel in every}) == len(every)
    for panel in panels():
        title = panel["title"]
        assert re.fullmatch(r"[A-Z][^.]+\.", panel["description"]), title
        assert panel["fieldConfig"]["defaults"]["unit"], title
        assert panel["targets"], title
        for holder in (panel, *panel["targets"]):
            assert holder["datasource"] == {"type": "prometheus", "uid": "${datasource}"}, title
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references), title


def test_no_query_is_shown_twice() -> None:
    every = [target["expr"] for panel in panels() for target in panel["targets"]]
    assert len(set(every)) == len(every)


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24, panel["title"]
        taken |= cells


def test_the_dashboard_is_filtered_by_its_variables() -> None:
    variables = {variable["name"]: variable for variable in dashboard()["templating"]["list"]}
    assert list(variables) == ["datasource", "query", "task"]
    assert variables["datasource"]["type"] == "datasource"
    assert variables["datasource"]["query"] == "prometheus"
    for panel in panels():
        for target in panel["targets"]:
            if names_in(target["expr"]) & set(OTHER_METRICS):
                continue  # these are of all queries
            assert 'query=~"$query"' in target["expr"], panel["title"]
            assert 'task=~"$task"' in target["expr"] or "weir_tasks" in target["expr"], panel["title"]


def test_legends_name_labels_of_the_query(recorded: dict[str, set[str]]) -> None:
    for panel in panels():
        for target in panel["targets"]:
            named = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            grouped = re.match(r"(?:\w+\([\d., ]*)?(?:sum|max) by \(([^)]*)\)", target["expr"])
            if grouped is not None:
                assert named <= set(grouped.group(1).split(", ")), panel["title"]
            else:
                assert named <= {label for name in names_in(target["expr"]) for label in recorded.get(name, ())}


def test_alerts_say_what_happened_and_what_to_do() -> None:
    alerts = rules("alerts.yml")
    assert len({rule["alert"] for rule in alerts}) == len(alerts)
    for rule in alerts:
        assert re.fullmatch(r"Weir([A-Z][a-z]+)+", rule["alert"])
        assert rule["labels"]["severity"] in ("warning", "critical"), rule["alert"]
        assert set(rule["annotations"]) == {"summary", "description"}, rule["alert"]
        assert rule["annotations"]["summary"][-1] != ".", rule["alert"]
        assert re.search(r": .+\.$", rule["annotations"]["description"]), rule["alert"]


def test_every_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    cases = [case for test in loaded(PROMETHEUS / "tests.yml")["tests"] for case in test["alert_rule_test"]]
    alerts = {rule["alert"] for rule in rules("alerts.yml")}
    assert {case["alertname"] for case in cases if case.get("exp_alerts")} == alerts
    assert {case["alertname"] for case in cases if not case.get("exp_alerts")} == alerts
    healthy = loaded(PROMETHEUS / "tests.yml")["tests"][-1]
    assert {case["alertname"] for case in healthy["alert_rule_test"]} == alerts
    assert not any(case.get("exp_alerts") for case in healthy["alert_rule_test"])


def test_the_manual_lists_the_alerts() -> None:
    manual = (ROOT / "ops/docs/operations.md").read_text()
    assert re.findall(r"^\| (Weir\w+) \|", manual, re.MULTILINE) == [rule["alert"] for rule in rules("alerts.yml")]


def test_grafana_and_prometheus_know_the_same_scrape_interval() -> None:
    """Grafana takes rates over at least four of them."""
    config = loaded(PROMETHEUS / "prometheus.yml")
    (source,) = loaded(GRAFANA / "provisioning/datasources/prometheus.yml")["datasources"]
    assert source["jsonData"]["timeInterval"] == config["global"]["scrape_interval"]
    assert config["rule_files"] == list(FILES)
    assert [scraped["job_name"] for scraped in config["scrape_configs"]] == ["weir"]


def test_promtool_accepts_all_files_and_the_alerts_fire_when_they_should(tmp_path: Path) -> None:
    if shutil.which("promtool") is None:
        pytest.skip("no promtool on this machine: apt-get install prometheus")
    shown = tmp_path / "dashboard.yml"
    queries = [{"record": f"dashboard:query{n}", "expr": text} for n, text in enumerate(panel_expressions())]
    shown.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": queries}]}))
    for command in (
        ["check", "config", "prometheus.yml"],
        ["check", "rules", *FILES, str(shown)],
        ["test", "rules", "tests.yml"],
    ):
        done = subprocess.run(["promtool", *command], cwd=PROMETHEUS, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"promtool {' '.join(command)}\n{done.stdout}{done.stderr}"
