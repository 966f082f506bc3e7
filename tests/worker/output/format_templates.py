"""Templates that write earlier calls as those of some models do, and are otherwise small."""

_MESSAGES = r"""{% if tools %}{{ tools | tojson }}{% endif %}
{%- for message in messages %}{{- '[' + message.role + ']' + message.content }}
{%- if message.tool_calls %}CALLS{% endif %}{{- '[end]\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '[assistant]' }}{% endif %}{# MARKS #}"""


def _template(calls: str, marks: str = "") -> str:
    return _MESSAGES.replace("CALLS", calls).replace("MARKS", marks)


_FIRST = """{%- set call = message.tool_calls[0].function %}"""
_OBJECT = """'{"name": "' + call.name + '", "arguments": ' + (call.arguments | tojson) + '}'"""

JSON_TEMPLATES = {
    "gigachat-3.1": _template(
        f"{_FIRST}{{{{- '<|function_call|>' + {_OBJECT} }}}}", "<|role_sep|> <|message_sep|>"
    ),
    "gigachat-3": _template(
        rf"{_FIRST}{{{{- '<|message_sep|>\n\nfunction call<|role_sep|>\n' + {_OBJECT} }}}}"
    ),
}
