"""The shapes that built-in chat templates have, as Jinja text.

`{role}` in what stands before a content is the role's name. Line breaks are written as expressions:
Jinja would drop those after a block.
"""

import json
from collections.abc import Mapping

Frame = tuple[str, str] | tuple[str, str, bool]
"""Before and after the content, and whether that is trimmed."""

ANY = ""
"""The row of all roles that have none."""


def chat(frames: Mapping[str, Frame], answer: str = "", *, start: str = "") -> str:
    """Write a template whose turns know nothing of each other."""
    named = [role for role in frames if role != ANY]
    turn = ""
    for i, role in enumerate(named):
        turn += "{% " + ("el" if i else "") + f'if message.role == "{role}" %}}'
        turn += _turn(frames[role])
    if ANY in frames:
        turn += ("{% else %}" if named else "") + _turn(frames[ANY])
    if named:
        turn += "{% endif %}"
    end = f"{{% if add_generation_prompt %}}{text(answer)}{{% endif %}}" if answer else ""
    return text(start) + "{% for message in messages %}" + turn + "{% endfor %}" + end


def _turn(frame: Frame) -> str:
    before, after, *is_trimmed = frame
    content = "message.content | trim" if is_trimmed else "message.content"
    head, has_role, tail = before.partition("{role}")
    role = "{{ message.role }}" if has_role else ""
    return f"{text(head)}{role}{text(tail)}{{{{ {content} }}}}{text(after)}"


def text(text: str) -> str:
    """Write a text as an expression."""
    return "{{ " + json.dumps(text, ensure_ascii=False) + " }}" if text else ""


def mistral(lead: str, trail: str, content: str = "message.content") -> str:
    """Write Mistral's way of before v7: a system's text is part of the first question."""
    return (
        "{% set turn = namespace(is_open=false) %}{% for message in messages %}"
        f"{{% if not turn.is_open %}}{text(lead + '[INST]' + trail)}"
        "{% set turn.is_open = true %}{% endif %}"
        '{% if message.role == "system" %}{{ message.content ~ "\\n\\n" }}'
        f'{{% elif message.role == "user" %}}{{{{ message.content }}}}{text(lead + "[/INST]")}'
        f'{{% else %}}{text(trail)}{{{{ {content} ~ "</s>" }}}}'
        "{% set turn.is_open = false %}{% endif %}{% endfor %}"
    )


def llama2(system: tuple[str, str], *, bos: str = "", content: str = "message.content") -> str:
    """Write Llama 2's way: an answer closes a turn, what follows opens one."""
    before, after = system
    return (
        '{{ "[INST] " }}{% set turn = namespace(is_open=true) %}{% for message in messages %}'
        f"{{% if not turn.is_open %}}{text(bos + '[INST] ')}"
        "{% set turn.is_open = true %}{% endif %}"
        f'{{% if message.role == "system" %}}{text(before)}{{{{ {content} }}}}{text(after)}'
        f'{{% elif message.role == "user" %}}{{{{ {content} }}}}{{{{ " [/INST]" }}}}'
        f'{{% else %}}{{{{ {content} ~ "</s>" }}}}{{% set turn.is_open = false %}}'
        "{% endif %}{% endfor %}"
    )


def alike(before: str, after: str, answer: str, *, start: str = "", trims: bool = False) -> str:
    """Write a template that frames all roles alike."""
    frame: Frame = (before, after, True) if trims else (before, after)
    return chat({ANY: frame}, answer, start=start)


def bailing(after: str = "", thought: str = "") -> str:
    """Write Ling's way: the roles in capitals, the user's as HUMAN."""
    role = '{{ "HUMAN" if message.role == "user" else message.role | upper }}'
    return (
        f'{{% for message in messages %}}{{{{ "<role>" }}}}{role}{{{{ "</role>" }}}}'
        f"{{{{ message.content }}}}{text(after)}{{% endfor %}}"
        f"{{% if add_generation_prompt %}}{text('<role>ASSISTANT</role>' + thought)}{{% endif %}}"
    )


def vicuna(system: Frame) -> str:
    """Write Vicuna's way."""
    turns: dict[str, Frame] = {"user": ("USER: ", "\n"), "assistant": ("ASSISTANT: ", "</s>\n")}
    return chat({"system": system, **turns}, "ASSISTANT:")


def mistral_v7(blank: str) -> str:
    """Write Mistral's way since v7."""
    return chat(
        {
            "system": (f"[SYSTEM_PROMPT]{blank}", "[/SYSTEM_PROMPT]"),
            "user": (f"[INST]{blank}", "[/INST]"),
            ANY: (blank, "</s>"),
        }
    )
