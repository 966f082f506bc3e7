"""The container files and the scrape configuration say what the code does."""

import re
from pathlib import Path

from protocol.config.config import GatewayConfig
from protocol.config.options.table import OPTIONS

DEPLOY = Path(__file__).parents[2] / "deploy"


def test_dockerfile_copies_what_is_there_and_uses_known_names() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    for line in re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE):
        *names, _ = line.split()
        assert all((DEPLOY.parent / name).exists() for name in names), line
    known = {option.env for option in OPTIONS}
    assert set(re.findall(r"LLAMA_ARG_\w+", text)) <= known
    assert re.search(r"^USER (?!root)", text, re.MULTILINE)
    # It listens on every address: without a key it must not start.
    assert "LLAMA_ARG_HOST=0.0.0.0 LLAMA_ARG_REQUIRE_KEY=1" in text


def test_prometheus_scrapes_our_address() -> None:
    text = (DEPLOY / "prometheus" / "prometheus.yml").read_text()
    assert f'"{GatewayConfig().host}:{GatewayConfig().port}"' in text
    assert "metrics_path: /metrics" in text
