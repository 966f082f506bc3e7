"""Writes prompts for --verbose-prompt and --log-prompts-dir: log lines, and files."""

import logging
import time
from pathlib import Path

logger = logging.getLogger(__name__)


class PromptLog:
    """Logs each prompt as the model reads it; any thread may call it."""

    def __init__(self, *, logs: bool = False, folder: str = "") -> None:
        self._logs = logs
        self._folder = Path(folder) if folder else None

    def __bool__(self) -> bool:
        return self._logs or self._folder is not None

    def note(self, task_id: int, n_tokens: int, text: str) -> None:
        """Write a prompt to log and folder; an error is logged only."""
        if self._logs:
            logger.info("prompt", extra={"task": task_id, "n_prompt": n_tokens, "text": text})
        if self._folder is None:
            return
        path = self._folder / f"{time.time_ns() // 1_000_000:012d}-{task_id}.txt"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", errors="replace")
        except OSError as error:
            logger.error(
                "prompt not written",
                extra={
                    "file": path,
                    "cause": error,
                    "action": "its task goes on",
                    "hint": "is the disk full? may this user write there?",
                },
            )
