"""Opens the reader of prompts for a loaded model."""

from protocol.config.config import WorkerConfig
from protocol.errors import ConfigError
from worker.engine.backend import Backend
from worker.link.tasks.preparation import Overrun, within
from worker.prompt.prompt import PromptReader
from worker.prompt.prompt_log import PromptLog

TEMPLATE_S = 10.0
"""Time limit for the chat template to render a few messages at the start."""


def open_reader(
    config: WorkerConfig, backend: Backend, *, limit_s: float = TEMPLATE_S
) -> PromptReader:
    """Read the chat template; raises `ConfigError`, also if it never comes to an end."""

    def open_it() -> PromptReader:
        return PromptReader(
            backend,
            cuts_long=config.context_shift and config.grp_attn_n == 1,
            chat_stop=config.chat_stop or "",
            prompt_log=PromptLog(logs=config.verbose_prompt, folder=config.prompts_dir),
        )

    try:
        return within(limit_s, open_it)
    except Overrun as error:
        raise ConfigError(
            f"the chat template takes more than {limit_s:g} s for a few words: check the file of "
            "--chat-template-file, or the model's own template"
        ) from error
