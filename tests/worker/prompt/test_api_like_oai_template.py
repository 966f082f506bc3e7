"""The chat format of api_like_OAI.py: the prompt that its note of 2023 prints."""

from protocol.config.config import WorkerConfig
from protocol.wire.messages import Chat, Generate
from protocol.wire.sampling import SamplingParams
from tests.worker.prompt.read_task import read_task
from worker.engine.fake.backend import FakeBackend
from worker.prompt.api_like_oai_template import formatted
from worker.prompt.prompt import PromptReader

MESSAGES = (
    {"role": "system", "content": "You are an assistant."},
    {"role": "user", "content": "How are you?"},
    {"role": "assistant", "content": "I'm fine. And you?"},
    {"role": "user", "content": "Fine. Thanks."},
)
GOLDEN = (
    "A chat between a curious user and an artificial intelligence assistant. The assistant "
    "follows the given rules no matter what.\n\nASSISTANT's RULE: You are an assistant.\n"
    "USER: How are you?\nASSISTANT: I'm fine. And you?</s>\nUSER: Fine. Thanks.\nASSISTANT:"
)


def prompt(config: WorkerConfig) -> str:
    config = formatted(config)
    backend = FakeBackend(config)
    reader = PromptReader(backend, cuts_long=False, chat_stop=config.chat_stop or "")
    params = SamplingParams(stop=("own",))
    task = read_task(reader, Generate(chat=Chat(messages=MESSAGES), params=params))
    assert task.params.stop[-1] == "own"
    assert list(task.params.stop[:-1]) == ([config.chat_stop] if config.chat_stop else [])
    return backend.vocabulary.render(task.prompt).removeprefix("<bos>")


def test_one_of_its_options_gives_the_prompt_of_the_note() -> None:
    assert prompt(WorkerConfig(backend="fake", n_ctx=2048, chat_stop="</s>")) == GOLDEN


def test_each_string_can_be_changed() -> None:
    config = WorkerConfig(
        backend="fake",
        n_ctx=2048,
        chat_prompt="P\n",
        user_name='"U": ',
        ai_name="A\\: ",
        system_name="S ",
        chat_stop="<END>",
    )
    assert prompt(config) == (
        'P\nS You are an assistant."U": How are you?A\\: I\'m fine. And you?<END>'
        '"U": Fine. Thanks.A\\:'
    )


def test_without_its_options_nothing_changes() -> None:
    config = WorkerConfig()
    assert formatted(config) is config


def test_a_template_that_is_given_stands() -> None:
    assert formatted(WorkerConfig(chat_template="x", user_name="U")).chat_template == "x"


def test_deciding_twice_changes_nothing() -> None:
    once = formatted(WorkerConfig(user_name="U"))
    assert formatted(once) == once
