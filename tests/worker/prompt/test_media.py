"""What is said against one of several images names the client's own field."""

from collections.abc import Sequence
from typing import NoReturn

import pytest

from protocol.config.config import WorkerConfig
from protocol.errors import InvalidRequest
from protocol.wire.messages import Chat, Generate
from protocol.wire.sampling import SamplingParams
from protocol.wire.side_tasks import Embed, Render
from worker.engine.fake.backend import FakeBackend
from worker.engine.media import MediumRefused
from worker.prompt.media import read_media


class Blind(FakeBackend):
    """Reads no second image."""

    def read_media(self, text: str, media: Sequence[bytes]) -> NoReturn:
        raise MediumRefused("no picture", 1)


@pytest.mark.parametrize(
    "message",
    [
        Generate(prompt="x", params=SamplingParams(), media_fields=("a", "b")),
        Render(chat=Chat(), media_fields=("a", "b")),
        Embed(inputs=("x",), media_fields=("a", "b")),
    ],
)
def test_the_field_of_the_bad_one_is_named(message: Generate | Render | Embed) -> None:
    with pytest.raises(InvalidRequest, match="no picture") as caught:
        read_media(Blind(WorkerConfig(backend="fake")), "x", message)
    assert caught.value.param == "b"


def test_without_names_none_is_told() -> None:
    message = Generate(prompt="x", params=SamplingParams())
    with pytest.raises(InvalidRequest) as caught:
        read_media(Blind(WorkerConfig(backend="fake")), "x", message)
    assert caught.value.param is None
