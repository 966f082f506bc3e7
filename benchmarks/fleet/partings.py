"""Where two answers to one request part, and whether rounding explains it.

The model alone reads the prompt and what both answers begin with, and says how likely it finds the
two next tokens. Two tokens of a greedy answer must be nearly equal. A seeded one draws a number for
each token, which is known (`std::mt19937`): it must fall beside the border between the two.
"""

import bisect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import orjson

from gateway.bench.client.connection import Client
from gateway.soak.asking import RequestOutcome
from gateway.soak.requests import SoakRequest
from worker.llama.sampling.discrete_distribution import DiscreteDistribution

NEAR_LOGIT, NEAR_DRAW = 0.6, 0.06
"""What rounding changes: docs/notes/rounding.md. A draw is a number from 0 to 1."""
_N_PROBS = 2000
_LIKE = 0.2
"""Candidates whose probabilities differ by a smaller share may change places."""
_SAMPLING = ("seed", "temperature", "dry_multiplier", "dry_penalty_last_n")


@dataclass(frozen=True, slots=True)
class Parting:
    """The first token in which an answer differs from the one of the unbroken run."""

    request: str
    place: int
    """Tokens before it."""
    got: str
    wanted: str
    distance: float
    """Between the two in logits, or of the draw from the border between them."""
    is_drawn: bool

    @property
    def is_near(self) -> bool:
        """Whether rounding explains it."""
        return self.distance <= (NEAR_DRAW if self.is_drawn else NEAR_LOGIT)

    def __str__(self) -> str:
        what = "draw" if self.is_drawn else "logits"
        verdict = "rounding" if self.is_near else "NOT rounding"
        return (
            f"{self.request} parts at token {self.place}: {self.got!r} for {self.wanted!r}, "
            f"{what} {self.distance:.3f} apart: {verdict}"
        )


class PartingJudge:
    """Asks a pool on which nothing else runs."""

    def __init__(self, url: str) -> None:
        self._client = Client(url)

    async def judge(self, outcome: RequestOutcome, wanted: Mapping[str, str]) -> Parting | None:
        """Compare an answer with the right one; None if its text does not show its tokens."""
        names = [name for name in wanted if "text" in name.partition(".")[2]]
        name = next((one for one in names if outcome.parts.get(one) != wanted[one]), None)
        if name is None or not wanted[name]:
            return None
        request = outcome.request
        got_ids, wanted_ids = [
            await self._tokens(text) for text in (outcome.parts.get(name, ""), wanted[name])
        ]
        place = next(
            (i for i, (a, b) in enumerate(zip(got_ids, wanted_ids, strict=False)) if a != b),
            min(len(got_ids), len(wanted_ids)),
        )
        end = (await self._tokens("<|im_end|>", parse_special=True))[0]
        got, want = (ids[place] if place < len(ids) else end for ids in (got_ids, wanted_ids))
        prompt = [*await self._prompt(request), *wanted_ids[:place]]
        is_drawn = bool(request.body.get("temperature"))
        choice = int(name.partition(".")[0])
        if is_drawn:
            distance = await self._draw_distance(request, prompt, (got, want), choice, place)
        else:
            distance = await self._logit_distance(request, prompt, (got, want))
        texts = [await self._text([one]) for one in (got, want)]
        return Parting(request.name, place, texts[0], texts[1], distance, is_drawn)

    async def _logit_distance(
        self, request: SoakRequest, prompt: list[int], pair: tuple[int, int]
    ) -> float:
        found = await self._next(request, prompt, temperature=0)
        known: dict[int, float] = {one["id"]: one["logprob"] for one in found["top_logprobs"]}
        return abs(known.get(pair[0], math.inf) - known.get(pair[1], -math.inf))

    async def _draw_distance(
        self,
        request: SoakRequest,
        prompt: list[int],
        pair: tuple[int, int],
        choice: int,
        place: int,
    ) -> float:
        """Return how far the draw is from the nearer end of what stands for the token that came.

        Candidates that are about as likely may stand in another order: the best order counts.
        """
        seed = int(request.body["seed"]) + choice
        draws = DiscreteDistribution(seed)
        draws.skip(place)
        drawn = draws.unit()
        found = await self._next(
            request,
            prompt,
            post_sampling_probs=True,
            **{name: request.body[name] for name in _SAMPLING if name in request.body},
        )
        candidates = [(one["id"], one["prob"]) for one in found["top_probs"]]
        return max(_from_interval(candidates, token, drawn) for token in pair)

    async def _next(self, request: SoakRequest, prompt: list[int], **more: Any) -> dict[str, Any]:
        body = {
            "prompt": prompt,
            "n_predict": 1,
            "n_probs": _N_PROBS,
            "cache_prompt": False,
            "ignore_eos": bool(request.body.get("ignore_eos")),
            **more,
        }
        answer = await self._ask("/completion", body)
        return dict(answer["completion_probabilities"][0])

    async def _prompt(self, request: SoakRequest) -> list[int]:
        body = request.body
        text = body.get("prompt")
        if text is None:
            messages = body.get("messages") or [{"role": "user", "content": body["input"]}]
            known = {name: body[name] for name in ("tools", "tool_choice") if name in body}
            text = (await self._ask("/apply-template", {"messages": messages, **known}))["prompt"]
        return await self._tokens(text, add_special=True, parse_special=True)

    async def _tokens(self, text: str, **more: bool) -> list[int]:
        body = {"content": text, "parse_special": False, **more}
        return list((await self._ask("/tokenize", body))["tokens"])

    async def _text(self, tokens: Sequence[int]) -> str:
        return str((await self._ask("/detokenize", {"tokens": list(tokens)}))["content"])

    async def _ask(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return dict(orjson.loads(await self._client.fetch("POST", path, orjson.dumps(body))))


def _from_interval(candidates: Sequence[tuple[int, float]], token: int, drawn: float) -> float:
    """Return how far a draw is from the share of a token; inf if it is no candidate."""
    p = dict(candidates).get(token)
    if p is None:
        return math.inf
    others = [one for identity, one in candidates if identity != token]
    sums = [0.0, *accumulate(others)]
    falling = [-one for one in others]
    first = bisect.bisect_left(falling, -p * (1 + _LIKE))
    last = bisect.bisect_right(falling, -p * (1 - _LIKE))
    total = sums[-1] + p
    return min(
        max(start / total - drawn, drawn - (start + p) / total, 0.0)
        for start in sums[first : last + 1]
    )
