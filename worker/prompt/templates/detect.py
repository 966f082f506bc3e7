"""Detects which of llama.cpp's built-in templates a Jinja text is, for --no-jinja.

The rules are those of `llm_chat_detect_template` (src/llama-chat.cpp), in its order: the first that
holds decides. Pure.
"""
# ruff: noqa: RUF001 - the models' own characters

from collections.abc import Sequence
from typing import NamedTuple

from worker.prompt.templates.shapes import ANY, chat
from worker.prompt.templates.table import BUILT_IN


class TemplateRule(NamedTuple):
    """A template's name, and the texts that must all be in the source."""

    name: str
    texts: tuple[str, ...]


_INST = "[INST]"
_OLD_MISTRAL = ("' [INST] ' + system_message", "[AVAILABLE_TOOLS]")
"""Either of them marks a template of Mistral's from before v7."""
_MISTRAL: Sequence[TemplateRule] = (
    TemplateRule("mistral-v1", (" [INST]",)),
    TemplateRule("mistral-v3-tekken", ('"[INST]"',)),
    TemplateRule("mistral-v3", ()),
)
_LLAMA2: Sequence[TemplateRule] = (
    TemplateRule("llama2-sys-strip", ("content.strip()",)),
    TemplateRule("llama2-sys-bos", ("bos_token + '[INST]",)),
    TemplateRule("llama2-sys", ("<<SYS>>",)),
    TemplateRule("llama2", ()),
)
_BEFORE_INST: Sequence[TemplateRule] = (
    TemplateRule("phi4", ("<|im_start|>", "<|im_sep|>")),
    TemplateRule("smolvlm", ("<|im_start|>", "<end_of_utterance>")),
    TemplateRule("chatml", ("<|im_start|>",)),
)
_GIGACHAT = (
    "message['role'] + additional_special_tokens[0] + message['content']"
    " + additional_special_tokens[1]"
)
_BEHIND_INST: Sequence[TemplateRule] = (
    TemplateRule("phi3", ("<|assistant|>", "<|end|>")),
    TemplateRule("chatglm4", ("[gMASK]<sop>",)),
    TemplateRule("exaone-moe", ("<|assistant|>", "<|user|>", "<|tool_declare|>")),
    TemplateRule("falcon3", ("<|assistant|>", "<|user|>", "</s>")),
    TemplateRule("glmedge", ("<|assistant|>", "<|user|>")),
    TemplateRule("glmedge", ("<|{{ item['role'] }}|>", "<|begin_of_image|>")),
    TemplateRule("zephyr", ("<|user|>", "<|endoftext|>")),
    TemplateRule("monarch", ("bos_token + message['role']",)),
    TemplateRule("gemma", ("<start_of_turn>",)),
    TemplateRule("orion", ("'\\n\\nAssistant: ' + eos_token",)),
    TemplateRule("openchat", ("GPT4 Correct ",)),
    TemplateRule("vicuna-orca", ("USER: ", "ASSISTANT: ", "SYSTEM: ")),
    TemplateRule("vicuna", ("USER: ", "ASSISTANT: ")),
    TemplateRule("deepseek", ("### Instruction:", "<|EOT|>")),
    TemplateRule("command-r", ("<|START_OF_TURN_TOKEN|>", "<|USER_TOKEN|>")),
    TemplateRule("llama3", ("<|start_header_id|>", "<|end_header_id|>")),
    TemplateRule("chatglm3", ("[gMASK]sop",)),
    TemplateRule("minicpm", ("<用户>",)),
    TemplateRule("deepseek2", ("'Assistant: ' + message['content'] + eos_token",)),
    TemplateRule("deepseek3", ("<｜Assistant｜>", "<｜User｜>", "<｜end▁of▁sentence｜>")),
    TemplateRule("exaone4", ("[|system|]", "[|assistant|]", "[|endofturn|]", "[|tool|]")),
    TemplateRule("exaone3", ("[|system|]", "[|assistant|]", "[|endofturn|]")),
    TemplateRule("rwkv-world", ("rwkv-world",)),
    TemplateRule("rwkv-world", ("{{- 'User: ' + message['content']|trim + '\\n\\n' -}}",)),
    TemplateRule("granite-4.0", ("<|start_of_role|>", "<tool_call>", "g4_default_system_message")),
    TemplateRule("granite-4.0", ("<|start_of_role|>", "<tools>", "g4_default_system_message")),
    TemplateRule("granite-4.1", ("<|start_of_role|>", "<tool_call>")),
    TemplateRule("granite-4.1", ("<|start_of_role|>", "<tools>")),
    TemplateRule("granite", ("<|start_of_role|>",)),
    TemplateRule("gigachat", (_GIGACHAT,)),
    TemplateRule("megrez", ("<|role_start|>",)),
    TemplateRule("yandex", (" Ассистент:",)),
    TemplateRule("bailing", ("<role>ASSISTANT</role>", "'HUMAN'")),
    TemplateRule("bailing-think", ("<role>ASSISTANT</role>", '"HUMAN"', "<think>")),
    TemplateRule("bailing2", ("<role>ASSISTANT</role>", "<role>HUMAN</role>", "<|role_end|>")),
    TemplateRule("llama4", ("<|header_start|>", "<|header_end|>")),
    TemplateRule("dots1", ("<|endofuserprompt|>",)),
    TemplateRule("hunyuan-moe", ("<|extra_0|>", "<|extra_4|>")),
    TemplateRule("gpt-oss", ("<|start|>", "<|channel|>")),
    TemplateRule("hunyuan-vl", ("<｜hy_Assistant｜>", "<｜hy_begin▁of▁sentence｜>")),
    TemplateRule("hunyuan-dense", ("<｜hy_Assistant｜>", "<｜hy_place▁holder▁no▁3｜>")),
    TemplateRule("kimi-k2", ("<|im_assistant|>assistant<|im_middle|>",)),
    TemplateRule("seed_oss", ("<seed:bos>",)),
    TemplateRule("grok-2", ("'Assistant: '  + message['content'] + '<|separator|>",)),
    TemplateRule("pangu-embedded", ("[unused9]系统：[unused10]",)),
    TemplateRule("solar-open", ("<|begin|>", "<|end|>", "<|content|>")),
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


def _first(rules: Sequence[TemplateRule], source: str) -> str:
    for rule in rules:
        if all(text in source for text in rule.texts):
            return rule.name
    return ""
