"""Chat templates as small as they can be and still be told from each other."""

TOOLS = r"""{% if tools %}{{ '<tools>' }}
{%- for tool in tools %}{{ tool | tojson }}{% endfor %}{{ '</tools>\n' }}{% endif %}"""

MESSAGES = r"""{% for message in messages %}
{{- '[' + message.role + ']' + message.content + '\n' }}
{%- for call in message.tool_calls or [] %}
{{- '<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- (call.function.arguments | tojson) + '}\n</tool_call>\n' }}
{%- endfor %}
{%- endfor %}"""

HERMES = TOOLS + MESSAGES + "{% if add_generation_prompt %}{{ '[assistant]' }}{% endif %}"

_REASONING = r"""('<think>\n' + message.reasoning_content + '\n</think>\n\n'
    if message.reasoning_content else '') + message.content"""

THINKER = (
    TOOLS
    + MESSAGES.replace("message.content", _REASONING)
    + r"""{% if add_generation_prompt %}{{ '[assistant]' }}
{%- if not enable_thinking %}{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}"""
)

OPENER = (
    TOOLS
    + MESSAGES
    + r"{% if add_generation_prompt %}{{ '[assistant]<think>\n' }}{% endif %}"
    + "{# content.split('</think>') #}"
)

NO_SYSTEM = r"""{% for message in messages %}
{%- if message.role == 'system' %}{{ raise_exception('no system role') }}{% endif %}
{{- '[' + message.role + ']' + message.content + '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '[assistant]' }}{% endif %}"""

TEXT_ARGUMENTS = r"""{% for message in messages %}
{{- '[' + message.role + ']' + message.content + '\n' }}
{%- for call in message.tool_calls or [] %}
{{- '>>>' + call.function.name + '\n' + call.function.arguments + '\n' }}
{%- endfor %}
{%- endfor %}
{#- tools >>>all >>>${recipient} #}
{%- if add_generation_prompt %}{{ '[assistant]>>>' }}{% endif %}"""
