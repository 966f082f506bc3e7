"""What a model is told to do with a sound."""

from dataclasses import replace

import pytest

from gateway.api.openai.transcriptions import plan
from tests.gateway.cards import CARD

HEARING = replace(CARD, media_marker="<M>", has_audio=True)
LFM2 = replace(HEARING, chat_template="... <|tool_list_start|> ... <|tool_list_end|> ...")


@pytest.mark.parametrize(
    ("card", "fields", "messages"),
    [
        (HEARING, {}, [("user", "Transcribe audio to text<M>")]),
        (HEARING, {"prompt": "Say it"}, [("user", "Say it<M>")]),
        (HEARING, {"prompt": "Say<M> it"}, [("user", "Say it<M>")]),
        (LFM2, {}, [("system", "Perform ASR."), ("user", "<M>")]),
        (LFM2, {"language": "en"}, [("system", "Perform ASR."), ("user", " (language: en)<M>")]),
    ],
)
def test_the_instruction_is_llama_servers(
    card: object, fields: dict[str, str], messages: list[tuple[str, str]]
) -> None:
    chat = plan({"file": b"sound", **fields}, card).tasks[0].chat  # type: ignore[arg-type]
    assert chat is not None
    assert [(message["role"], message["content"]) for message in chat.messages] == messages
