"""What `serve` tells on a terminal: it fits on a screen, and says what to do first."""

from typing import Any

import pytest

from protocol.config.config import WorkerConfig
from tests.worker.hosts import flat
from worker.supervisor.start_notice import MAX_MODELS, StartNotice, places


def workers(n: int, **settings: Any) -> list[WorkerConfig]:
    given = {"alias": "m", "n_threads": 2, "n_gpu_layers": 0, **settings}
    return [WorkerConfig(name=f"m-{i}", **given) for i in range(n)]


def test_it_tells_models_places_address_page_and_a_first_request() -> None:
    notice = StartNotice(url="http://h:1", models=("m",), places={"m": "1 worker on the CPU"})
    assert str(notice).splitlines() == [
        "",
        "llamapool answers on http://h:1 after 0.0 s.",
        "",
        "  m  1 worker on the CPU",
        "",
        "  Chat in a browser: http://h:1",
        "  A first request:",
        "",
        "  curl http://h:1/v1/chat/completions \\",
        '    -d \'{"messages": [{"role": "user", "content": "Hello!"}]}\'',
        "",
        "Ctrl-C finishes running requests and ends; a second one ends at once.",
        "Start with -v to see the log; `llamapool doctor` tells about this machine.",
    ]


def test_however_many_models_it_fits_on_a_screen() -> None:
    models = tuple(f"model-{i}" for i in range(100))
    lines = str(StartNotice(url="http://h:1", models=models, has_key=True)).splitlines()
    assert len(lines) <= 24
    assert "  model-7  loaded by its first request" in lines
    assert f"  and {100 - MAX_MODELS} more: GET /v1/models lists them" in lines


def test_the_request_names_a_model_among_several_and_a_key_where_one_is_needed() -> None:
    text = str(StartNotice(url="http://h:1", models=("a", "b"), has_key=True))
    assert '"model": "a"' in text
    assert "Bearer YOUR_KEY" in text


def test_without_the_page_nobody_is_sent_to_it() -> None:
    assert "browser" not in str(StartNotice(models=("a",), has_page=False))


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (workers(1), "1 worker on the CPU, 2 threads"),
        (workers(2, n_threads=1), "2 workers on the CPU, 1 thread each"),
        (workers(2, n_gpu_layers=-1, devices="0"), "2 workers on GPU 0"),
        (
            [*workers(1, n_gpu_layers=-1, devices="0"), *workers(1, n_gpu_layers=-1, devices="1")],
            "2 workers on GPU 0, GPU 1",
        ),
        (workers(1, backend="fake"), "1 worker on the fake backend"),
    ],
)
def test_a_place_is_told_in_words(given: list[WorkerConfig], text: str) -> None:
    assert places(flat(2), given) == {"m": text}
