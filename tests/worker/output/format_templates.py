"""Templates that write earlier calls as those of some models do, and are otherwise small."""

_MESSAGES = r"""{% if tools %}{{ tools | tojson }}{% endif %}
{%- for message in messages %}{{- '[' + message.role + ']' + message.content }}
{%- if message.tool_calls %}CALLS{% endif %}{{- '[end]\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '[assistant]' }}{% endif %}{# MARKS #}"""


def _template(calls: str, marks: str = "") -> str:
    return _MESSAGES.replace("CALLS", calls).replace("MARKS", marks)


_FIRST = """{%- set call = message.tool_calls[0].function %}"""
_OBJECT = """'{"name": "' + call.name + '", "arguments": ' + (call.arguments | tojson) + '}'"""

_OBJECTS = """{%- for one in message.tool_calls %}{%- set call = one.function %}
{{- OBJECT + ('' if loop.last else SEPARATOR) }}{%- endfor %}"""


def _listed(
    begin: str = "''",
    separator: str = "''",
    end: str = "''",
    *,
    call: str = _OBJECT,
    marks: str = "",
) -> str:
    """A template that writes all calls as JSON; all parts are expressions."""
    objects = _OBJECTS.replace("OBJECT", call).replace("SEPARATOR", separator)
    objects = objects.replace("VALUES", "(call.arguments | tojson)")
    return _template(f"{{{{- {begin} }}}}{objects}{{{{- {end} }}}}", marks)


_PARAMETERS = """'{"tool_name": "' + call.name + '", "parameters": ' + VALUES + '}'"""


def _deepseek(name: str) -> str:
    return f"<\uff5c{name.replace(' ', chr(0x2581))}\uff5c>"


_CALLS_BEGIN, _CALLS_END = _deepseek("tool calls begin"), _deepseek("tool calls end")
_CALL_BEGIN, _CALL_END = _deepseek("tool call begin"), _deepseek("tool call end")
_SEP = _deepseek("tool sep")

JSON_TEMPLATES = {
    "hermes": _listed(r"'<tool_call>\n'", r"'\n</tool_call>\n<tool_call>\n'", r"'\n</tool_call>'"),
    "mistral": _listed(
        "'[TOOL_CALLS]['",
        "', '",
        "']'",
        call="""'{"name": "' + call.name + '", "arguments": ' + VALUES + ', "id": "123456789"}'""",
    ),
    "mistral-args": _listed(call="'[TOOL_CALLS]' + call.name + '[ARGS]' + VALUES"),
    "mistral-call-id": _listed(
        call="'[TOOL_CALLS]' + call.name + '[CALL_ID]123456789[ARGS]' + VALUES"
    ),
    "firefunction-v2": _listed("'functools['", "', '", "']'", marks=" functools["),
    "command-r7b": _listed("'<|START_ACTION|>['", "', '", "']<|END_ACTION|>'", call=_PARAMETERS),
    "command-r-plus": _listed(
        r"'Action:\n```json\n['", "', '", "']```'", call=_PARAMETERS, marks="<|CHATBOT_TOKEN|>"
    ),
    "nemotron-v2": _listed("'<TOOLCALL>['", "', '", "']</TOOLCALL>'"),
    "granite": _listed("'<|tool_call|>['", "', '", "']'"),
    "functionary-v3.1": _listed(
        call="'<function=' + call.name + '>' + VALUES + '</function>'", marks="<|python_tag|>"
    ),
    "kimi-k2": _listed(
        "'<|tool_calls_section_begin|>'",
        end="'<|tool_calls_section_end|>'",
        call="""'<|tool_call_begin|>functions.' + call.name + ':0<|tool_call_argument_begin|>'
            + VALUES + '<|tool_call_end|>'""",
    ),
    "deepseek-r1": _listed(
        f"'{_CALLS_BEGIN}'",
        end=f"'{_CALLS_END}'",
        call=rf"""'{_CALL_BEGIN}function{_SEP}' + call.name + '\n```json\n' + VALUES
            + '\n```{_CALL_END}'""",
    ),
    "deepseek-v3.1": _listed(
        f"'{_CALLS_BEGIN}'",
        end=f"'{_CALLS_END}'",
        call=f"'{_CALL_BEGIN}' + call.name + '{_SEP}' + VALUES + '{_CALL_END}'",
    ),
    "gpt-oss": _template(
        f"""{_FIRST}{{{{- '<|channel|>commentary to=functions.' + call.name }}}}
        {{{{- ' json<|message|>' + (call.arguments | tojson) }}}}"""
    ),
    "apertus": _listed(
        "'<|tools_prefix|>['",
        "', '",
        "']<|tools_suffix|>'",
        call="""'{"' + call.name + '": ' + (call.arguments | tojson) + '}'""",
    ),
    "minimax-m1": _listed(
        r"'<tool_calls>\n'", r"'\n'", r"'\n</tool_calls>'", marks="<beginning_of_sentence>"
    ),
    "apriel": _listed("'<tool_calls>['", "', '", "']</tool_calls>'"),
    "solar-open": _template(
        """{{- '<|tool_calls|>' }}{%- for call in message.tool_calls %}
        {{- '<|tool_call:begin|>a1b2c3d4e5<|tool_call:name|>' + call.function.name }}
        {{- '<|tool_call:args|>' + (call.function.arguments | tojson) + '<|tool_call:end|>' }}
        {%- endfor %}"""
    ),
    "gigachat-3.1": _template(
        f"{_FIRST}{{{{- '<|function_call|>' + {_OBJECT} }}}}", "<|role_sep|> <|message_sep|>"
    ),
    "gigachat-3": _template(
        rf"{_FIRST}{{{{- '<|message_sep|>\n\nfunction call<|role_sep|>\n' + {_OBJECT} }}}}"
    ),
}

_TAGS = r"""
{{- BEGIN }}
{%- for call in message.tool_calls %}{{- OPEN }}
{%- for key, value in call.function.arguments | items %}{{- ARGUMENT }}{% endfor %}
{{- CLOSE }}{%- endfor %}
{{- END }}"""


def _tagged(marks: str = "", **parts: str) -> str:
    """A template with a tag around each argument; the parts are expressions."""
    calls = _TAGS
    for name in ("BEGIN", "OPEN", "ARGUMENT", "CLOSE", "END"):
        calls = calls.replace(name, parts.get(name.lower(), "''"))
    return _template(calls, marks)


def _dsml(section: str) -> str:
    dsml = "\uff5cDSML\uff5c"
    value = (
        "' string=\"true\">' + value if value is string else ' string=\"false\">' + value | tojson"
    )
    return _tagged(
        "dsml_token",
        begin=rf"'\n\n<{dsml}{section}>\n'",
        open=rf"""'<{dsml}invoke name="' + call.function.name + '">\n'""",
        argument=rf"""'<{dsml}parameter name="' + key + '"' + ({value}) + '</{dsml}parameter>\n'""",
        close=rf"'</{dsml}invoke>\n'",
        end=rf"'</{dsml}{section}>'",
    )


TAGGED_TEMPLATES = {
    "deepseek-v3.2": _dsml("function_calls"),
    "deepseek-v4": _dsml("tool_calls"),
    "hy3": _tagged(
        "':opensource' <tool_sep{}> <arg_key{}> <arg_value{}>",
        begin=r"'<tool_calls:opensource>\n'",
        open=r"'<tool_call:opensource>' + call.function.name + '<tool_sep:opensource>\n'",
        argument=r"""'<arg_key:opensource>' + key + '</arg_key:opensource>\n'
            + '<arg_value:opensource>' + value | string + '</arg_value:opensource>\n'""",
        close=r"'</tool_call:opensource>\n'",
        end="'</tool_calls:opensource>'",
    ),
    "minicpm5": _tagged(
        "Tool usage guidelines:",
        open="""'<function name="' + call.function.name + '">'""",
        argument="""'<param name="' + key + '">' + (
            '<![CDATA[' + value + ']]>' if '<' in value | string else value | string
        ) + '</param>'""",
        close="'</function>'",
    ),
}
