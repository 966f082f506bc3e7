"""What the doctor says of a model's file."""

import pytest

from protocol.config.config import WorkerConfig
from worker.doctor.finding import Level
from worker.doctor.model import check_model, check_template, not_here
from worker.files.gguf_header import Header


@pytest.mark.parametrize(
    ("header", "level", "text"),
    [
        (Header(n_tensors=2, values={"general.architecture": "llama"}), Level.OK, "m: llama"),
        (Header(fault="it is cut short or broken", values={}), Level.FAIL, "cut short"),
        (Header(n_tensors=0, values={}), Level.FAIL, "vocabulary without a model"),
    ],
)
def test_a_model_is_judged_by_its_header(header: Header, level: Level, text: str) -> None:
    finding = check_model("m", header)
    assert finding.level is level
    assert text in finding.text


def test_a_template_that_does_not_compile_is_a_failure() -> None:
    assert list(check_template(WorkerConfig())) == []
    assert list(check_template(WorkerConfig(chat_template="chatml"))) == []
    (finding,) = check_template(WorkerConfig(name="w", chat_template="{% if %}"))
    assert finding.level is Level.FAIL
    assert "w: the chat template does not compile" in finding.text


def test_a_model_to_be_fetched_without_the_network_is_a_failure() -> None:
    assert not_here("u/m", offline=False).level is Level.WARN
    assert not_here("u/m", offline=True).level is Level.FAIL
