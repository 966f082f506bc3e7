"""llama.cpp's built-in chat templates (src/llama-chat.cpp), by name, as Jinja text.

Most of them are a table: what stands before and after the content of each role, and what begins the
answer.
"""
# ruff: noqa: RUF001 - the models' own characters

from collections.abc import Mapping

from worker.prompt.templates.shapes import (
    ANY,
    Frame,
    alike,
    bailing,
    chat,
    llama2,
    mistral,
    mistral_v7,
    text,
    vicuna,
)

_SYS = ("<<SYS>>\n", "\n<</SYS>>\n\n")
_GRANITE = alike(
    "<|start_of_role|>{role}<|end_of_role|>",
    "<|end_of_text|>\n",
    "<|start_of_role|>assistant<|end_of_role|>",
)
_EXAONE: Mapping[str, Frame] = {
    "system": ("[|system|]", "[|endofturn|]\n", True),
    "user": ("[|user|]", "\n", True),
    "assistant": ("[|assistant|]", "[|endofturn|]\n", True),
}
_EXAONE_MOE = ("system", "user", "assistant", "tool")
_COMMAND = "<|START_OF_TURN_TOKEN|><|{}_TOKEN|>"
_COMMAND_END = "<|END_OF_TURN_TOKEN|>"


_GEMMA = (
    "{% set first = namespace(text='') %}{% for message in messages %}"
    '{% if message.role == "system" %}{% set first.text = first.text ~ message.content | trim %}'
    '{% else %}{% set role = "model" if message.role == "assistant" else message.role %}'
    '{{ "<start_of_turn>" ~ role ~ "\\n" }}'
    '{% if first.text and role != "model" %}{{ first.text ~ "\\n\\n" }}'
    "{% set first.text = '' %}{% endif %}"
    '{{ message.content | trim }}{{ "<end_of_turn>\\n" }}{% endif %}{% endfor %}'
    '{% if add_generation_prompt %}{{ "<start_of_turn>model\\n" }}{% endif %}'
)
_ORION = (
    "{% set first = namespace(text='') %}{% for message in messages %}"
    '{% if message.role == "system" %}{% set first.text = first.text ~ message.content %}'
    '{% elif message.role == "user" %}{{ "Human: " }}'
    "{% if first.text %}{{ first.text ~ \"\\n\\n\" }}{% set first.text = '' %}{% endif %}"
    '{{ message.content ~ "\\n\\nAssistant: </s>" }}'
    '{% else %}{{ message.content ~ "</s>" }}{% endif %}{% endfor %}'
)
_MONARCH = (
    '{% for message in messages %}{{ "" if loop.first else "<s>" }}'
    '{{ message.role ~ "\\n" ~ message.content ~ "</s>\\n" }}{% endfor %}'
    '{% if add_generation_prompt %}{{ "<s>assistant\\n" }}{% endif %}'
)
_OPENCHAT = (
    '{% for message in messages %}{% if message.role == "system" %}{{ message.content }}'
    '{% else %}{{ "GPT4 Correct " ~ message.role[:1] | upper ~ message.role[1:] ~ ": " }}'
    '{{ message.content }}{% endif %}{{ "<|end_of_turn|>" }}{% endfor %}'
    '{% if add_generation_prompt %}{{ "GPT4 Correct Assistant:" }}{% endif %}'
)
_RWKV = (
    '{% for message in messages %}{% if message.role == "system" %}{{ "System: " }}'
    '{{ message.content | trim }}{{ "\\n\\n" }}{% elif message.role == "user" %}{{ "User: " }}'
    '{{ message.content | trim }}{{ "\\n\\n" }}{% if loop.last %}{{ "Assistant:" }}{% endif %}'
    '{% elif message.role == "assistant" %}{{ "Assistant: " }}'
    '{{ message.content | trim }}{{ "\\n\\n" }}{% endif %}{% endfor %}'
)
_GIGACHAT = (
    '{{ "<s>" }}{% for message in messages %}{% if message.role == "system" and loop.first %}'
    '{{ message.content ~ "<|message_sep|>" }}{% elif message.role == "user" %}'
    '{{ "user<|role_sep|>" ~ message.content ~ "<|message_sep|>" }}'
    '{{ "available functions<|role_sep|>[]<|message_sep|>" }}'
    '{% elif message.role == "assistant" %}'
    '{{ "assistant<|role_sep|>" ~ message.content ~ "<|message_sep|>" }}{% endif %}{% endfor %}'
    '{% if add_generation_prompt %}{{ "assistant<|role_sep|>" }}{% endif %}'
)
_PANGU_NAMES = {
    "system": "系统",
    "user": "用户",
    "assistant": "助手",
    "tool": "工具",
    "function": "方法",
}
_PANGU = (
    '{% if messages and messages[0].role != "system" %}{{ "[unused9]系统：[unused10]" }}{% endif %}'
    + chat(
        {role: (f"[unused9]{name}：", "[unused10]") for role, name in _PANGU_NAMES.items()},
        "[unused9]助手：",
    )
)
_FIRST_SYSTEM = (
    '{% if messages and messages[0].role == "system" %}'
    '{{ messages[0].content ~ "<｜hy_place▁holder▁no▁3｜>" }}{% endif %}'
)
_NO_SYSTEM = (
    '{% if not messages or messages[0].role != "system" %}'
    '{{ "<role>SYSTEM</role>detailed thinking off<|role_end|>" }}{% endif %}'
)

BUILT_IN: Mapping[str, str] = {
    "chatml": alike("<|im_start|>{role}\n", "<|im_end|>\n", "<|im_start|>assistant\n"),
    "llama2": llama2(("", "\n")),
    "llama2-sys": llama2(_SYS),
    "llama2-sys-bos": llama2(_SYS, bos="<s>"),
    "llama2-sys-strip": llama2(_SYS, content="message.content | trim"),
    "mistral-v1": mistral(" ", " "),
    "mistral-v3": mistral("", " ", "message.content | trim"),
    "mistral-v3-tekken": mistral("", ""),
    "mistral-v7": mistral_v7(" "),
    "mistral-v7-tekken": mistral_v7(""),
    "phi3": alike("<|{role}|>\n", "<|end|>\n", "<|assistant|>\n"),
    "phi4": alike("<|im_start|>{role}<|im_sep|>", "<|im_end|>", "<|im_start|>assistant<|im_sep|>"),
    "falcon3": alike("<|{role}|>\n", "\n", "<|assistant|>\n"),
    "zephyr": alike("<|{role}|>\n", "<|endoftext|>\n", "<|assistant|>\n"),
    "monarch": _MONARCH,
    "gemma": _GEMMA,
    "orion": _ORION,
    "openchat": _OPENCHAT,
    "vicuna": vicuna(("", "\n\n")),
    "vicuna-orca": vicuna(("SYSTEM: ", "\n")),
    "deepseek": chat(
        {
            "system": ("", ""),
            "user": ("### Instruction:\n", "\n"),
            "assistant": ("### Response:\n", "\n<|EOT|>\n"),
        },
        "### Response:\n",
    ),
    "deepseek2": chat(
        {
            "system": ("", "\n\n"),
            "user": ("User: ", "\n\n"),
            "assistant": ("Assistant: ", "<｜end▁of▁sentence｜>"),
        },
        "Assistant:",
    ),
    "deepseek3": chat(
        {
            "system": ("", "\n\n"),
            "user": ("<｜User｜>", ""),
            "assistant": ("<｜Assistant｜>", "<｜end▁of▁sentence｜>"),
        },
        "<｜Assistant｜>",
    ),
    "deepseek-ocr": chat({ANY: ("", "")}),
    "command-r": chat(
        {
            "system": (_COMMAND.format("SYSTEM"), _COMMAND_END, True),
            "user": (_COMMAND.format("USER"), _COMMAND_END, True),
            "assistant": (_COMMAND.format("CHATBOT"), _COMMAND_END, True),
        },
        _COMMAND.format("CHATBOT"),
    ),
    "llama3": alike(
        "<|start_header_id|>{role}<|end_header_id|>\n\n",
        "<|eot_id|>",
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
        trims=True,
    ),
    "chatglm3": alike("<|{role}|>\n ", "", "<|assistant|>", start="[gMASK]sop"),
    "chatglm4": alike("<|{role}|>\n", "", "<|assistant|>\n", start="[gMASK]<sop>"),
    "glmedge": alike("<|{role}|>\n", "", "<|assistant|>"),
    "minicpm": chat({"user": ("<用户>", "<AI>", True), ANY: ("", "", True)}),
    "exaone3": chat(_EXAONE, "[|assistant|]"),
    "exaone4": chat({**_EXAONE, "tool": ("[|tool|]", "[|endofturn|]\n", True)}, "[|assistant|]"),
    "exaone-moe": chat(
        {role: (f"<|{role}|>\n", "<|endofturn|>\n", True) for role in _EXAONE_MOE},
        "<|assistant|>\n",
    ),
    "rwkv-world": _RWKV,
    "granite": _GRANITE,
    "granite-4.0": _GRANITE,
    "granite-4.1": _GRANITE,
    "gigachat": _GIGACHAT,
    "megrez": alike(
        "<|role_start|>{role}<|role_end|>", "<|turn_end|>", "<|role_start|>assistant<|role_end|>"
    ),
    "yandex": chat(
        {"user": (" Пользователь: ", "\n\n"), "assistant": (" Ассистент: ", "\n\n")},
        " Ассистент:[SEP]",
    ),
    "bailing": bailing(),
    "bailing-think": bailing(thought="<think>"),
    "bailing2": _NO_SYSTEM + bailing("<|role_end|>"),
    "llama4": alike(
        "<|header_start|>{role}<|header_end|>\n\n",
        "<|eot|>",
        "<|header_start|>assistant<|header_end|>\n\n",
        trims=True,
    ),
    "smolvlm": chat(
        {
            "system": ("", "\n\n"),
            "user": ("User: ", "<end_of_utterance>\n"),
            ANY: ("Assistant: ", "<end_of_utterance>\n"),
        },
        "Assistant:",
        start="<|im_start|>",
    ),
    "hunyuan-moe": chat(
        {
            "system": ("<|startoftext|>", "<|extra_4|>"),
            "assistant": ("", "<|eos|>"),
            ANY: ("<|startoftext|>", "<|extra_0|>"),
        }
    ),
    "gpt-oss": chat(
        {
            "assistant": ("<|start|>assistant<|message|>", "<|return|>"),
            ANY: ("<|start|>{role}<|message|>", "<|end|>"),
        },
        "<|start|>assistant",
    ),
    "hunyuan-dense": _FIRST_SYSTEM
    + chat(
        {
            "assistant": ("<｜hy_Assistant｜>", "<｜hy_place▁holder▁no▁2｜>"),
            "user": ("<｜hy_User｜>", "<｜hy_Assistant｜>"),
        }
    ),
    "hunyuan-vl": text("<｜hy_begin▁of▁sentence｜>")
    + _FIRST_SYSTEM
    + chat({"user": ("", "<｜hy_User｜>"), "assistant": ("", "<｜hy_Assistant｜>")}),
    "kimi-k2": chat(
        {
            "system": ("<|im_system|>system<|im_middle|>", "<|im_end|>"),
            "user": ("<|im_user|>user<|im_middle|>", "<|im_end|>"),
            "assistant": ("<|im_assistant|>assistant<|im_middle|>", "<|im_end|>"),
            "tool": ("<|im_system|>tool<|im_middle|>", "<|im_end|>"),
            ANY: ("", "<|im_end|>"),
        },
        "<|im_assistant|>assistant<|im_middle|>",
    ),
    "seed_oss": chat(
        {
            "assistant": ("<seed:bos>assistant\n", "<seed:eos>", True),
            ANY: ("<seed:bos>{role}\n", "<seed:eos>"),
        },
        "<seed:bos>assistant\n",
    ),
    "grok-2": chat(
        {
            "system": ("System: ", "<|separator|>\n\n", True),
            "user": ("Human: ", "<|separator|>\n\n", True),
            "assistant": ("Assistant: ", "<|separator|>\n\n"),
        },
        "Assistant:",
    ),
    "pangu-embedded": _PANGU,
    "solar-open": alike("<|begin|>{role}<|content|>", "<|end|>", "<|begin|>assistant"),
}
"""Name -> Jinja text."""
