"""The rules, the dashboard and the page for who is on call say the same, of metrics that exist."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.fakes.echo import FakeOptions
from tests.gateway.inprocess import running
from tests.monitoring.expressions import (
    ROOT,
    RULES,
    alerts,
    dashboard,
    metrics_of,
    panels,
)

PAGE = ROOT / "docs" / "running" / "on-call.md"


@pytest.fixture
async def scraped(tmp_path: Path) -> str:
    """The text of a real scrape."""
    async with running(tmp_path, metrics=True) as gateway:
        worker = await gateway.add_worker(FakeOptions())
        await gateway.post("/completion", {"prompt": "a b", "n_predict": 2})
        await worker.wait_heartbeats(1)
        return (await gateway.client.get("/metrics")).text


@pytest.fixture
def names(scraped: str) -> set[str]:
    """Every name of a sample in a real scrape."""
    families = text_string_to_metric_families(scraped)
    found = {sample.name for one in families for sample in one.samples}
    return found | set(re.findall(r"^# TYPE (\S+) ", scraped, re.MULTILINE))


async def test_every_metric_of_a_rule_is_in_a_real_scrape(names: set[str]) -> None:
    assert len(alerts()) >= 10
    for alert, expr in alerts().items():
        assert metrics_of(expr) <= names, alert
        assert metrics_of(expr) or expr.startswith("up{")


async def test_every_metric_of_the_dashboard_is_in_a_real_scrape(names: set[str]) -> None:
    for title, expr in panels():
        assert metrics_of(expr) and metrics_of(expr) <= names, title


async def test_what_each_gateway_tells_of_a_worker_is_not_added_up(scraped: str) -> None:
    """Two gateways that are scraped apart, as on Kubernetes, showed twice the tokens."""
    families = list(text_string_to_metric_families(scraped))
    told = {one.name for family in families for one in family.samples if "worker" in one.labels}
    assert "llamapool_predicted_tokens_total" in told
    for title, expr in (*panels(), *alerts().items()):
        if metrics_of(expr) & told and " / " not in expr:
            assert re.search(r"max by \([a-z, ]*worker", expr), title


def test_the_dashboard_can_be_imported() -> None:
    board = dashboard()
    assert {"title", "uid", "schemaVersion", "panels", "templating", "time"} <= board.keys()
    assert [one["name"] for one in board["templating"]["list"]] == ["datasource", "model"]
    ids = [one["id"] for one in board["panels"]]
    assert len(ids) == len(set(ids))
    assert [one["title"] for one in board["panels"] if one["type"] == "row"] == [
        *("What clients see", "Queue", "Workers and slots", "Cache"),
        *("Faults and continued answers", "By key"),
    ]
    places: set[tuple[int, int]] = set()
    for one in board["panels"]:
        place = one["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & places, f"{one['title']} lies over another panel"
        places |= cells
        if one["type"] != "row":
            assert one["datasource"]["uid"] == "${datasource}"
            assert one["targets"] and all(target["legendFormat"] for target in one["targets"])


def test_each_alert_has_its_section_for_who_is_on_call() -> None:
    page = PAGE.read_text(encoding="utf-8")
    sections = re.split(r"^## (Llamapool\w+)$", page, flags=re.MULTILINE)
    told = dict(zip(sections[1::2], sections[2::2], strict=True))
    assert told.keys() == alerts().keys()
    for name, text in told.items():
        for part in ("**Seen.**", "**Means.**", "**Do.**"):
            assert part in text, f"{name} lacks {part}"
    rules = RULES.read_text(encoding="utf-8")
    for name in alerts():
        assert f"runbook: docs/running/on-call.md#{name.lower()}\n" in rules


def test_the_commands_for_who_is_on_call_exist() -> None:
    page = PAGE.read_text(encoding="utf-8")
    options = (ROOT / "docs" / "using" / "options.md").read_text(encoding="utf-8")
    commands = set(re.findall(r"`?llamapool ([a-z]+)\b", page))
    declared = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for command in commands:
        assert re.search(rf'^{command} = "\w', declared, re.MULTILINE), command
    for option in set(re.findall(r"`(--[a-z-]+)", page)):
        assert f"`{option}" in options or option in options, option


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool: Debian's prometheus")
def test_promtool_finds_each_alert_as_its_tests_say() -> None:
    tests = RULES.with_name("llamapool.rules.test.yml")
    done = subprocess.run(
        ["promtool", "test", "rules", tests.name],
        cwd=tests.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    text = tests.read_text(encoding="utf-8")
    fires = set(re.findall(r"eval_time: .*\n        alertname: (\w+)\n        exp_alerts", text))
    quiet = set(re.findall(r"\{eval_time: 20m, alertname: (\w+)\}", text))
    assert fires == quiet == alerts().keys(), "each one is tested to fire, and not to"


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool: Debian's prometheus")
def test_promtool_finds_nothing_wrong_with_names_of_our_own(scraped: str) -> None:
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=scraped, capture_output=True, text=True, check=False
    )
    assert "vllm:num_requests_running" in done.stderr, "it has looked: other servers' have colons"
    assert [line for line in done.stderr.splitlines() if "llamapool" in line] == []


def test_the_command_of_the_documents_makes_the_rules_a_resource_of_the_operator() -> None:
    page = (ROOT / "docs" / "running" / "kubernetes.md").read_text(encoding="utf-8")
    found = re.search(r"^(\(printf .*?) \| kubectl apply -f -$", page, re.MULTILINE | re.DOTALL)
    assert found
    done = subprocess.run(found[1], shell=True, cwd=ROOT, capture_output=True, check=True)
    resource = yaml.safe_load(done.stdout)
    assert resource["kind"] == "PrometheusRule"
    assert resource["spec"] == yaml.safe_load(RULES.read_text(encoding="utf-8"))


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool: Debian's prometheus")
def test_the_configuration_is_one_that_prometheus_takes() -> None:
    done = subprocess.run(
        ["promtool", "check", "config", "prometheus.yml"],
        cwd=RULES.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
