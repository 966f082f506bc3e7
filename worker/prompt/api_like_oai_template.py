r"""The chat format of api_like_OAI.py, as a chat template made from its five strings.

Its `convert_chat`: the prompt, then each message behind the name of its role, the model's own with
the stop after it, and the model's name without the blanks at its end.
"""

import json
from dataclasses import replace
from typing import Any

from protocol.config.config import WorkerConfig

_PROMPT = (
    "A chat between a curious user and an artificial intelligence assistant. "
    "The assistant follows the given rules no matter what.\n"
)
_DEFAULTS = {
    "chat_prompt": _PROMPT,
    "user_name": "\nUSER: ",
    "ai_name": "\nASSISTANT: ",
    "system_name": "\nASSISTANT's RULE: ",
    "chat_stop": "</s>",
}

_TEMPLATE = """\
{{- %(chat_prompt)s -}}
{%%- for message in messages -%%}
{%%- if message.role == "system" -%%}{{- %(system_name)s + message.content -}}
{%%- elif message.role == "user" -%%}{{- %(user_name)s + message.content -}}
{%%- elif message.role == "assistant" -%%}
{{- %(ai_name)s + message.content + %(chat_stop)s -}}
{%%- endif -%%}
{%%- endfor -%%}
{%%- if add_generation_prompt -%%}{{- (%(ai_name)s).rstrip() -}}{%%- endif -%%}
"""


def formatted(worker: WorkerConfig) -> WorkerConfig:
    """Return the worker with that template and stop, if one of the five strings is given."""
    given = {name: getattr(worker, name) for name in _DEFAULTS}
    if all(text is None for text in given.values()):
        return worker
    texts: dict[str, Any] = {
        name: _DEFAULTS[name] if text is None else text for name, text in given.items()
    }
    literals = {name: json.dumps(text, ensure_ascii=False) for name, text in texts.items()}
    return replace(worker, **texts, chat_template=worker.chat_template or _TEMPLATE % literals)
