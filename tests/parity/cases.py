"""Requests that llama-server and llamapool must answer alike.

Each case is sent to a server of one slot (`tests/parity/setups.py`). `text` cases have a fixed seed
or temperature 0, so that the generated text must be equal to the letter.
"""

from dataclasses import dataclass, field, replace
from typing import Any

STORY = "Once upon a time there was"
CHAT = [{"role": "user", "content": "Write one sentence about the sea."}]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One request."""

    name: str
    path: str
    body: Any = None
    method: str = "POST"
    raw: str = ""
    """Sent as it is instead of `body`."""
    text: bool = False
    """The generated text must be equal."""
    exact: bool = False
    """Every value of the answer must be equal, numbers nearly."""
    headers: dict[str, str] = field(default_factory=dict)


def completion(name: str, text: bool = True, **body: Any) -> Case:
    """Ask for a completion that is the same each time."""
    base = {"prompt": STORY, "n_predict": 12, "seed": 42, "temperature": 0.8, "cache_prompt": False}
    return Case(name=name, path="/completion", body=base | body, text=text)


def chat(name: str, text: bool = True, **body: Any) -> Case:
    """Ask for a chat answer that is the same each time."""
    base = {"messages": CHAT, "max_tokens": 12, "seed": 42, "cache_prompt": False}
    return Case(name=name, path="/v1/chat/completions", body=base | body, text=text)


def _probabilities(name: str, **body: Any) -> Case:
    fields = ["content", "completion_probabilities"]
    case = completion(name, n_probs=1, temperature=0, response_fields=fields, **body)
    return replace(case, exact=True)


def _text(name: str, text: bool = True, **body: Any) -> Case:
    base = {"prompt": STORY, "max_tokens": 12, "seed": 42, "cache_prompt": False}
    return Case(name=name, path="/v1/completions", body=base | body, text=text)


def _wrong(name: str, path: str = "/completion", **body: Any) -> Case:
    base = {"prompt": STORY, "n_predict": 2}
    return Case(name=name, path=path, body=base | body)


SAMPLING: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "negative temperature": {"temperature": -1, "n_probs": 2},
    "hot": {"temperature": 1.7},
    "cold dynatemp": {"temperature": 0, "dynatemp_range": 2, "n_predict": 24},
    "negative dynatemp": {"temperature": -1, "dynatemp_range": 2, "n_predict": 24},
    "dynatemp": {"dynatemp_range": 0.5, "dynatemp_exponent": 1.3},
    "top_k 1": {"top_k": 1},
    "top_k 3": {"top_k": 3, "temperature": 1.5},
    "top_k off": {"top_k": 0},
    "top_p": {"top_p": 0.5, "temperature": 1.5},
    "min_p": {"min_p": 0.3, "temperature": 1.5},
    "typical_p": {"typical_p": 0.6, "temperature": 1.5},
    "top_n_sigma": {"top_n_sigma": 1.0, "temperature": 1.5},
    "xtc": {"xtc_probability": 0.9, "xtc_threshold": 0.1, "temperature": 1.2},
    "min_keep": {"min_keep": 10, "top_p": 0.1, "temperature": 1.5},
    "repeat penalty": {"repeat_penalty": 1.4, "repeat_last_n": 32, "prompt": STORY * 3},
    "presence and frequency": {"presence_penalty": 1.5, "frequency_penalty": 1.0},
    "dry": {"dry_multiplier": 0.9, "dry_base": 1.5, "dry_allowed_length": 1, "prompt": STORY * 3},
    "dry breakers": {
        "dry_multiplier": 0.9,
        "dry_sequence_breakers": ["a", "time"],
        "prompt": STORY * 3,
    },
    "mirostat 1": {"mirostat": 1, "mirostat_tau": 3.0, "mirostat_eta": 0.2},
    "mirostat 2": {"mirostat": 2, "mirostat_tau": 3.0, "mirostat_eta": 0.2},
    "samplers list": {"samplers": ["temperature", "top_k"], "top_k": 4},
    "samplers letters": {"samplers": "tk", "top_k": 4},
    "no samplers": {"samplers": []},
    "adaptive_p": {"samplers": ["adaptive_p"], "adaptive_target": 0.5},
    "infill sampler": {"samplers": ["infill", "temperature"]},
    "logit_bias ban": {"logit_bias": [[253, False], [260, False]]},
    "logit_bias text": {"logit_bias": [[" a", False], [" the", 2.5]]},
    "logit_bias object": {"logit_bias": {"253": -100, " the": 2.5}},
    "ignore_eos": {"ignore_eos": True, "prompt": "Hi!"},
    "grammar": {"grammar": 'root ::= [a-z ]+ "."'},
    "grammar greedy": {"grammar": 'root ::= "yes" | "no"', "temperature": 0},
    "stop": {"stop": ["a"], "temperature": 0},
    "stop string": {"stop": " town", "temperature": 0, "n_predict": 24},
    "n_probs": {"n_probs": 3, "temperature": 0, "n_predict": 4},
    "post_sampling_probs": {"n_probs": 3, "post_sampling_probs": True, "n_predict": 4},
    "n_keep": {"n_keep": 5},
    "return_tokens": {"return_tokens": True, "temperature": 0},
    "n_indent": {
        "n_indent": 4,
        "prompt": "def f(x):\n    if x:\n",
        "temperature": 0,
        "n_predict": 24,
    },
    "t_max_predict_ms": {"t_max_predict_ms": 1, "prompt": "a\nb\nc\nd\n", "temperature": 0},
    "null fields": {"top_k": None, "temperature": 0, "stop": None, "grammar": None},
    "token array": {"prompt": [6403, 3172, 253, 655], "temperature": 0},
    "mixed array": {"prompt": ["Once upon", 253, " time"], "temperature": 0},
    "several prompts": {"prompt": ["One two three", "Four five six"], "temperature": 0},
    "prompt in a list": {"prompt": ["One two three"], "temperature": 0},
    "response_fields": {
        "response_fields": ["content", "generation_settings/n_predict", "nothing"],
        "temperature": 0,
    },
}

WRONG: dict[str, dict[str, Any]] = {
    "top_k string": {"top_k": "x"},
    "n_predict -2": {"n_predict": -2},
    "stop number": {"stop": 3},
    "stream string": {"stream": "yes"},
    "prompt empty list": {"prompt": []},
    "prompt number": {"prompt": 7},
    "prompt object": {"prompt": {"a": 1}},
    "bad token": {"prompt": [999999999]},
    "negative token": {"prompt": [-1]},
    "bad grammar": {"grammar": "root ::= ("},
    "grammar number": {"grammar": 7},
    "dry breakers empty": {"dry_sequence_breakers": []},
    "repeat_penalty 0": {"repeat_penalty": 0},
    "id_slot string": {"id_slot": "a"},
    "too long": {"prompt": "word " * 3000},
    "n too many": {"n": 3},
}

CASES: tuple[Case, ...] = (
    *(completion(name, **body) for name, body in SAMPLING.items()),
    completion("stream", stream=True, temperature=0),
    completion("stream timings", stream=True, timings_per_token=True, temperature=0, n_predict=3),
    completion("stream probs", stream=True, n_probs=2, temperature=0, n_predict=3),
    completion("stream progress", stream=True, return_progress=True, temperature=0, n_predict=3),
    completion("stream stop", stream=True, stop=[" town"], temperature=0, n_predict=24),
    *(_wrong(name, **body) for name, body in WRONG.items()),
    _probabilities("n_probs before a stop", stop=[" town"], n_predict=24),
    _probabilities("n_probs of an end", grammar='root ::= "yes"'),
    Case(name="no prompt", path="/completion", body={"n_predict": 1}),
    Case(name="bad JSON", path="/completion", raw="{"),
    Case(name="empty body", path="/completion"),
    Case(
        name="no content type",
        path="/completion",
        raw='{"prompt":"Hi","n_predict":1}',
        headers={"Content-Type": "text/plain"},
    ),
    chat("chat", temperature=0),
    chat("chat seed", temperature=1.2),
    chat("chat stream", temperature=0, stream=True),
    chat("chat usage", temperature=0, stream=True, stream_options={"include_usage": True}),
    chat("chat logprobs", temperature=0, logprobs=True, top_logprobs=2, max_tokens=3),
    chat(
        "chat stream logprobs",
        temperature=0,
        logprobs=True,
        top_logprobs=2,
        max_tokens=3,
        stream=True,
    ),
    chat("chat stop", temperature=0, stop=["the"], max_tokens=24),
    chat("chat max_completion_tokens", temperature=0, max_tokens=None, max_completion_tokens=3),
    chat(
        "chat system", temperature=0, messages=[{"role": "system", "content": "Be brief."}, *CHAT]
    ),
    chat(
        "chat parts",
        temperature=0,
        messages=[
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "Write one sentence"},
                    {"type": "text", "text": "about the sea."},
                ],
            }
        ],
    ),
    chat("chat native fields", temperature=1.2, top_k=3, min_p=0.2, repeat_penalty=1.2),
    chat(
        "chat turns",
        temperature=0,
        messages=[
            *CHAT,
            {"role": "assistant", "content": "Blue."},
            {"role": "user", "content": "Longer."},
        ],
    ),
    Case(name="chat without messages", path="/v1/chat/completions", body={"max_tokens": 1}),
    Case(name="chat messages string", path="/v1/chat/completions", body={"messages": "hi"}),
    Case(
        name="chat message without content",
        path="/v1/chat/completions",
        body={"messages": [{"role": "user"}]},
    ),
    Case(
        name="chat content number",
        path="/v1/chat/completions",
        body={"messages": [{"role": "user", "content": 5}]},
    ),
    Case(
        name="chat bad part",
        path="/v1/chat/completions",
        body={"messages": [{"role": "user", "content": [{"type": "magic"}]}]},
    ),
    Case(
        name="chat top_logprobs alone",
        path="/v1/chat/completions",
        body={"messages": CHAT, "top_logprobs": 2},
    ),
    Case(
        name="chat bad tool_choice",
        path="/v1/chat/completions",
        body={"messages": CHAT, "tool_choice": "foo"},
    ),
    Case(
        name="chat bad response_format",
        path="/v1/chat/completions",
        body={"messages": CHAT, "response_format": {"type": "sound"}},
    ),
    _text("text", temperature=0),
    _text("text stream", temperature=0, stream=True),
    _text("text usage", temperature=0, stream=True, stream_options={"include_usage": True}),
    _text("text logprobs", temperature=0, logprobs=2, max_tokens=3),
    _text("text several", temperature=0, prompt=["One two three", "Four five six"]),
    Case(name="tokenize", path="/tokenize", body={"content": "Hello é😀 world"}, exact=True),
    Case(
        name="tokenize special",
        path="/tokenize",
        body={"content": "<|im_start|>x", "add_special": True, "parse_special": False},
        exact=True,
    ),
    Case(name="tokenize parsed", path="/tokenize", body={"content": "<|im_start|>x"}, exact=True),
    Case(
        name="tokenize pieces",
        path="/tokenize",
        body={"content": "é😀 a", "with_pieces": True},
        exact=True,
    ),
    Case(
        name="tokenize mixed",
        path="/tokenize",
        body={"content": ["Hello", 253, " you"]},
        exact=True,
    ),
    Case(name="tokenize nothing", path="/tokenize", body={}, exact=True),
    Case(name="detokenize", path="/detokenize", body={"tokens": [19556, 905, 1, 2]}, exact=True),
    Case(name="detokenize nothing", path="/detokenize", body={}, exact=True),
    Case(name="health", path="/health", method="GET"),
    Case(name="v1 health", path="/v1/health", method="GET"),
    Case(name="models", path="/v1/models", method="GET"),
    Case(name="props", path="/props", method="GET"),
    Case(name="slots", path="/slots", method="GET"),
    Case(name="metrics", path="/metrics", method="GET"),
    Case(name="unknown path", path="/nowhere", method="GET"),
    Case(name="wrong method", path="/completion", method="GET"),
    Case(
        name="options",
        path="/completion",
        method="OPTIONS",
        headers={"Origin": "http://example.org"},
    ),
    Case(name="save without path", path="/slots/0?action=save", body={"filename": "x"}),
    Case(name="post props", path="/props", body={}),
)
