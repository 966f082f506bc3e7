"""Chat templates in files that a worker cannot use."""

import re

import pytest

from protocol.config.config import WorkerConfig
from protocol.errors import ConfigError
from tests.worker.link.tasks.test_tasks import LOOPS
from worker.engine.fake.backend import FakeBackend
from worker.link.tasks.opening import open_reader


def opened(template: str, limit_s: float = 60.0) -> None:
    config = WorkerConfig(model="m", backend="fake", chat_template=template)
    open_reader(config, FakeBackend(config), limit_s=limit_s)


@pytest.mark.slow
def test_a_template_that_loops_ends_the_start_with_its_name() -> None:
    named = "the chat template takes more than 0.2 s.*--chat-template-file"
    with pytest.raises(ConfigError, match=named):
        opened(LOOPS, limit_s=0.2)


@pytest.mark.parametrize(
    "template",
    ["{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}", "{% if 1 %}" * 3000 + "{% endif %}" * 3000],
)
def test_a_template_that_is_nested_too_deep_ends_the_start_with_its_name(template: str) -> None:
    with pytest.raises(ConfigError, match=re.escape("the chat template does not compile")):
        opened(template)


def test_a_template_that_fails_for_the_first_words_is_kept() -> None:
    opened("{{ raise_exception('only with tools') }}")
