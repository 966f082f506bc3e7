"""Prompt tokens that a perfect prefix cache would still have to compute."""

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import orjson

from gateway.bench.client.connection import Client
from gateway.bench.client.dialects import ChatTurn
from gateway.bench.client.transcript import Role, Transcript
from gateway.bench.plan import LoadShape, conversation

_Tree: TypeAlias = "dict[int, _Tree]"


def count_new(requests: Iterable[tuple[Sequence[int], Sequence[int]]]) -> int:
    """Count the prompt tokens that are no beginning of anything computed before.

    A request is its prompt and what the model had computed after it. Every prompt costs one token
    at least: without it there is nothing to choose the next one from.
    """
    tree: _Tree = {}
    n_new = 0
    for prompt, whole in requests:
        n_new += max(1, _insert(tree, prompt))
        _insert(tree, whole)
    return n_new


def _insert(tree: _Tree, tokens: Sequence[int]) -> int:
    """Add a sequence; return how many of its tokens were not there."""
    n_new = 0
    for token in tokens:
        found = tree.get(token)
        if found is None:
            found = tree[token] = {}
            n_new += 1
        tree = found
    return n_new


async def new_tokens(
    client: Client, shape: LoadShape, seed: int, transcripts: Iterable[Transcript]
) -> int:
    """Count for a load of chats, in the order in which they were asked."""
    asked = sorted(
        (transcript for transcript in transcripts if transcript.role is Role.LOAD), key=_start
    )
    texts = {(transcript.conversation, transcript.turn): transcript.text for transcript in asked}
    requests = []
    for transcript in asked:
        prompt = await _rendered(client, _history(shape, seed, transcript, texts))
        whole = await _tokens(client, prompt + transcript.text)
        # The last token of a cut answer was chosen, but never computed.
        computed = whole[:-1] if transcript.finish == "length" else whole
        requests.append((await _tokens(client, prompt), computed))
    return count_new(requests)


def _start(transcript: Transcript) -> float:
    return transcript.start_s


def _history(
    shape: LoadShape, seed: int, transcript: Transcript, texts: dict[tuple[int, int], str]
) -> list[ChatTurn]:
    """Write down again what a request of a conversation said."""
    drawn = conversation(shape, seed, transcript.conversation, transcript.role)
    history = [ChatTurn("system", drawn.system)] if drawn.system else []
    for turn, ask in enumerate(drawn.asks[: transcript.turn + 1]):
        if turn:
            history.append(ChatTurn("assistant", texts[transcript.conversation, turn - 1]))
        history.append(ChatTurn("user", ask.inputs[-1]))
    return history


async def _rendered(client: Client, history: Sequence[ChatTurn]) -> str:
    messages = [{"role": said.role, "content": said.content} for said in history]
    answer = await client.fetch("POST", "/apply-template", orjson.dumps({"messages": messages}))
    return str(orjson.loads(answer)["prompt"])


async def _tokens(client: Client, text: str) -> list[int]:
    body = orjson.dumps({"content": text, "add_special": True, "parse_special": True})
    tokens: list[int] = orjson.loads(await client.fetch("POST", "/tokenize", body))["tokens"]
    return tokens
