"""What the doctor says of a model's file."""

import pytest

from worker.doctor.finding import Level
from worker.doctor.model import check_model
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
