"""Which of llama.cpp's built-in templates a Jinja text stands for: what --no-jinja renders.

The rules are those of `llm_chat_detect_template` (src/llama-chat.cpp), in its order: the first that
holds decides. Pure.
"""
# ruff: noqa: RUF001 - the models' own characters

from collections.abc import Sequence
from typing import NamedTuple

from worker.templates.shapes import ANY, chat
from worker.templates.table import BUILT_IN


class Rule(NamedTuple):
    """A template's name, and the texts that must all be in the source."""

    name: str
    texts: tuple[str, ...]


_INST = "[INST]"
_OLD_MISTRAL = ("' [INST] ' + system_message", "[AVAILABLE_TOOLS]")
"""Either of them marks a template of Mistral's from before v7."""
_MISTRAL: Sequence[Rule] = (
    Rule("mistral-v1", (" [INST]",)),
    Rule("mistral-v3-tekken", ('"[INST]"',)),
    Rule("mistral-v3", ()),
)
_LLAMA2: Sequence[Rule] = (
    Rule("llama2-sys-strip", ("content.strip()",)),
    Rule("llama2-sys-bos", ("bos_token + '[INST]",)),
    Rule("llama2-sys", ("<<SYS>>",)),
    Rule("llama2", ()),
)
_BEFORE_INST: Sequence[Rule] = (
    Rule("phi4", ("<|im_start|>", "<|im_sep|>")),
    Rule("smolvlm", ("<|im_start|>", "<end_of_utterance>")),
    Rule("chatml", ("<|im_start|>",)),
)
_GIGACHAT = (
    "message['role'] + additional_special_tokens[0] + message['content']"
    " + additional_special_tokens[1]"
)
_BEHIND_INST: Sequence[Rule] = (
    Rule("phi3", ("<|assistant|>", "<|end|>")),
    Rule("chatglm4", ("[gMASK]<sop>",)),
    Rule("exaone-moe", ("<|assistant|>", "<|user|>", "<|tool_declare|>")),
    Rule("falcon3", ("<|assistant|>", "<|user|>", "</s>")),
    Rule("glmedge", ("<|assistant|>", "<|user|>")),
    Rule("glmedge", ("<|{{ item['role'] }}|>", "<|begin_of_image|>")),
    Rule("zephyr", ("<|user|>", "<|endoftext|>")),
    Rule("monarch", ("bos_token + message['role']",)),
    Rule("gemma", ("<start_of_turn>",)),
    Rule("orion", ("'\\n\\nAssistant: ' + eos_token",)),
    Rule("openchat", ("GPT4 Correct ",)),
    Rule("vicuna-orca", ("USER: ", "ASSISTANT: ", "SYSTEM: ")),
    Rule("vicuna", ("USER: ", "ASSISTANT: ")),
    Rule("deepseek", ("### Instruction:", "<|EOT|>")),
    Rule("command-r", ("<|START_OF_TURN_TOKEN|>", "<|USER_TOKEN|>")),
    Rule("llama3", ("<|start_header_id|>", "<|end_header_id|>")),
    Rule("chatglm3", ("[gMASK]sop",)),
    Rule("minicpm", ("<用户>",)),
    Rule("deepseek2", ("'Assistant: ' + message['content'] + eos_token",)),
    Rule("deepseek3", ("<｜Assistant｜>", "<｜User｜>", "<｜end▁of▁sentence｜>")),
    Rule("exaone4", ("[|system|]", "[|assistant|]", "[|endofturn|]", "[|tool|]")),
    Rule("exaone3", ("[|system|]", "[|assistant|]", "[|endofturn|]")),
    Rule("rwkv-world", ("rwkv-world",)),
    Rule("rwkv-world", ("{{- 'User: ' + message['content']|trim + '\\n\\n' -}}",)),
    Rule("granite-4.0", ("<|start_of_role|>", "<tool_call>", "g4_default_system_message")),
    Rule("granite-4.0", ("<|start_of_role|>", "<tools>", "g4_default_system_message")),
    Rule("granite-4.1", ("<|start_of_role|>", "<tool_call>")),
    Rule("granite-4.1", ("<|start_of_role|>", "<tools>")),
    Rule("granite", ("<|start_of_role|>",)),
    Rule("gigachat", (_GIGACHAT,)),
    Rule("megrez", ("<|role_start|>",)),
    Rule("yandex", (" Ассистент:",)),
    Rule("bailing", ("<role>ASSISTANT</role>", "'HUMAN'")),
    Rule("bailing-think", ("<role>ASSISTANT</role>", '"HUMAN"', "<think>")),
    Rule("bailing2", ("<role>ASSISTANT</role>", "<role>HUMAN</role>", "<|role_end|>")),
    Rule("llama4", ("<|header_start|>", "<|header_end|>")),
    Rule("dots1", ("<|endofuserprompt|>",)),
    Rule("hunyuan-moe", ("<|extra_0|>", "<|extra_4|>")),
    Rule("gpt-oss", ("<|start|>", "<|channel|>")),
    Rule("hunyuan-vl", ("<｜hy_Assistant｜>", "<｜hy_begin▁of▁sentence｜>")),
    Rule("hunyuan-dense", ("<｜hy_Assistant｜>", "<｜hy_place▁holder▁no▁3｜>")),
    Rule("kimi-k2", ("<|im_assistant|>assistant<|im_middle|>",)),
    Rule("seed_oss", ("<seed:bos>",)),
    Rule("grok-2", ("'Assistant: '  + message['content'] + '<|separator|>",)),
    Rule("pangu-embedded", ("[unused9]系统：[unused10]",)),
    Rule("solar-open", ("<|begin|>", "<|end|>", "<|content|>")),
)


_NAMELESS = {
    "dots1": chat(
        {
            "system": ("<|system|>", "<|endofsystem|>"),
            "user": ("<|userprompt|>", "<|endofuserprompt|>"),
            ANY: ("<|response|>", "<|endofresponse|>"),
        },
        "<|response|>",
    )
}
"""Built in, but llama.cpp has no name for it that a person could give."""


def built_in(source: str) -> str:
    """Return the built-in template that a text stands for, as Jinja text; "" if there is none."""
    name = detected(source)
    return BUILT_IN.get(name) or _NAMELESS.get(name, "")


def detected(source: str) -> str:
    """Return the built-in template's name that a text stands for; "" if it is none of them."""
    if source in BUILT_IN:
        return source
    if name := _first(_BEFORE_INST, source):
        return name
    if source.startswith("mistral") or _INST in source:
        return _of_inst(source)
    return _first(_BEHIND_INST, source)


def _of_inst(source: str) -> str:
    if "[SYSTEM_PROMPT]" in source:
        return "mistral-v7"
    is_mistral = any(text in source for text in _OLD_MISTRAL)
    return _first(_MISTRAL if is_mistral else _LLAMA2, source)


def _first(rules: Sequence[Rule], source: str) -> str:
    for rule in rules:
        if all(text in source for text in rule.texts):
            return rule.name
    return ""
