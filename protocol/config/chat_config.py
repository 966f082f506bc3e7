"""The keys of a `[[worker]]` table about prompts and chat templates."""

from dataclasses import dataclass

from protocol.wire.schema import param


@dataclass(frozen=True, kw_only=True)
class ChatConfig:
    """How a model's chats become prompts, and what becomes of their answers."""

    special: bool = param(False, "Write control tokens into the generated text.")
    system_prompt_file: str = param(
        "",
        "File with a system prompt that every plain prompt begins with: text, or the JSON of "
        "the field system_prompt. Empty: none.",
    )
    json_schema: str = param(
        "", "JSON schema that every answer must match unless a request sets its own; empty: none."
    )
    chat_template: str = param(
        "", "Chat template, as Jinja text or the name of a built-in one; empty: the model's."
    )
    jinja: bool = param(
        True,
        "Render the chat template with Jinja. Off: llama.cpp's built-in form of the template, "
        "without tools and reasoning.",
    )
    template_kwargs: str = param("", "JSON object of further variables for the chat template.")
    reasoning: str = param(
        "auto",
        "Let the model reason before it answers: on, off, or auto, which is the template's "
        "default.",
        choices=("auto", "on", "off"),
    )
    reasoning_effort: str = param(
        "",
        "Reasoning effort, in the template's words, such as low or high; empty: the template's "
        "default.",
    )
    reasoning_preserve: bool = param(
        True, "Keep the reasoning of earlier answers in the prompt of a chat."
    )
    skip_chat_parsing: bool = param(
        False, "Return the generated text as it is, without separating reasoning and tool calls."
    )
    reasoning_format: str = param(
        "deepseek",
        "Where a chat's reasoning goes if the request does not say: `none` leaves it in the "
        "text, the others into `reasoning_content`.",
        choices=("none", "auto", "deepseek", "deepseek-legacy"),
    )
    prefill_assistant: bool = param(
        True,
        "If the last message of a chat is the assistant's, continue it instead of starting a "
        "new one.",
    )
    chat_prompt: str | None = param(
        None,
        "Compatibility with api_like_OAI.py: text before the chat. Any of these five options "
        "replaces the template by its format.",
    )
    user_name: str | None = param(
        None, "Compatibility with api_like_OAI.py: text before a user's message."
    )
    ai_name: str | None = param(
        None, "Compatibility with api_like_OAI.py: text before the assistant's message."
    )
    system_name: str | None = param(
        None, "Compatibility with api_like_OAI.py: text before a system message."
    )
    chat_stop: str | None = param(
        None,
        "Compatibility with api_like_OAI.py: text after the assistant's message; it also ends "
        "an answer.",
    )
    spm_infill: bool = param(False, "Infill with the suffix before the prefix.")
