"""What the engine says of a chat, on its way out of the worker."""

import pytest

from protocol.config.config import WorkerConfig
from protocol.errors import ErrorCode
from protocol.wire.messages import (
    Delta,
    Done,
    Envelope,
    Failed,
    Finish,
    FrameItem,
    Heartbeat,
    TaskKey,
)
from tests.envelopes import payload_of
from tests.worker.chat_cases import HERMES, expect
from worker.engine.backend import Vocabulary
from worker.engine.fake.backend import FakeBackend
from worker.link.outbound import RunningTasks
from worker.output.chat_parser.parser import ChatParser
from worker.output.chat_parser.sink import ParsedPart
from worker.output.recorded import RecordedAnswer
from worker.prompt.prompt import parser_of, shown_tokens

DONE = Envelope(TaskKey(1), Done(finish=Finish.EOS, n_predicted=9))


def answers(*ids: int) -> RunningTasks:
    """Chats with these ids."""
    found = RunningTasks(lambda key, error: fault(found, key, error))
    for task_id in ids:
        parser = parser_of(expect("hermes"), is_whole=False)
        assert parser is not None
        found.add(TaskKey(task_id), parser)
    return found


def fault(running: RunningTasks, key: TaskKey, error: Exception) -> Envelope:
    """What ends a task whose parser failed."""
    running.drop(key)
    return Envelope(key, Failed(code=ErrorCode.INTERNAL, message=repr(error)))


def said(running: RunningTasks, items: list[FrameItem]) -> list[FrameItem]:
    return running.outgoing(items)[0]


def delta(text: str, task_id: int = 1) -> Envelope:
    """A step's text."""
    return Envelope(TaskKey(task_id), Delta(text=text, tokens=(5,), n_predicted=3))


def test_texts_of_chats_are_taken_apart_and_others_are_not() -> None:
    found = answers(1)
    found.add(TaskKey(2))
    told = said(found, [delta(HERMES), delta(HERMES, 2), Heartbeat(step=1, busy=1)])
    chat, plain, heartbeat = map(payload_of, told)
    assert isinstance(chat, Delta) and isinstance(plain, Delta)
    assert chat.text == "" and chat.tool_calls[0].name == "special_function"
    assert (chat.tokens, chat.n_predicted) == ((5,), 3)
    assert plain.text == HERMES and isinstance(heartbeat, Heartbeat)


def test_what_is_only_words_goes_on_as_it_came() -> None:
    words = delta("just words ")
    (told,) = said(answers(1), [words])
    assert told is words


def test_what_was_held_back_goes_out_before_the_end() -> None:
    found = answers(1)
    (held,) = map(payload_of, said(found, [delta("a <tool_")]))
    assert isinstance(held, Delta) and held.text == "a "
    rest, end = said(found, [DONE])
    assert rest == Envelope(TaskKey(1), Delta(text="<tool_", n_predicted=9))
    assert end == DONE
    assert said(found, [delta("b")]) == [] and TaskKey(1) not in found


def test_an_answer_that_is_recorded_is_told_as_it_was_written() -> None:
    found = answers()
    parser = parser_of(expect("hermes"), is_whole=True)
    assert parser is not None
    found.add(TaskKey(1), RecordedAnswer(parser, "begun "))
    *_, end = map(payload_of, said(found, [delta(HERMES), delta(" <tool_"), DONE]))
    assert isinstance(end, Done) and end.raw == f"begun {HERMES} <tool_"


def test_a_failed_task_says_nothing_more() -> None:
    found = answers(1)
    said(found, [delta("a <tool_")])
    failed = Envelope(TaskKey(1), Failed(code=ErrorCode.INTERNAL, message="x"))
    assert said(found, [failed]) == [failed]


def test_only_the_end_of_a_running_task_is_an_end() -> None:
    found = answers(1)
    end = Envelope(TaskKey(2), Done(finish=Finish.EOS))
    assert found.outgoing([delta("a", 2), end, Heartbeat(step=1, busy=1)])[1] is False
    assert found.outgoing([DONE])[1] is True


def test_parsers_are_forgotten_with_their_gateway() -> None:
    found = answers(1, 2)
    found.clear(0, ())
    assert said(found, [delta(HERMES)]) == []


def test_a_parser_that_fails_ends_its_task_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    feed = ChatParser.feed

    def fail(parser: ChatParser, text: str) -> ParsedPart:
        if text == "bad":
            raise RecursionError
        return feed(parser, text)

    monkeypatch.setattr(ChatParser, "feed", fail)
    found = answers(1, 2)
    items: list[FrameItem] = [delta("good"), delta("bad"), delta("more"), DONE, delta("words", 2)]
    failed = Envelope(TaskKey(1), Failed(code=ErrorCode.INTERNAL, message="RecursionError()"))
    assert said(found, items) == [delta("good"), failed, delta("words", 2)]
    assert said(found, [delta("words", 2)]) == [delta("words", 2)]


def test_control_tokens_in_markers_are_shown() -> None:
    backend = FakeBackend(WorkerConfig(backend="fake"))
    plain, special = list(backend.vocabulary.pieces), list(backend.vocabulary.special_pieces)
    plain[7], special[7] = b"", b"\x07"
    plain[8], special[8] = b"", b"\x08"
    backend.vocabulary = Vocabulary(plain, special, backend.vocabulary.is_eog, add_bos=True)
    assert shown_tokens(backend, ["<a\x07>"]) == {7}
