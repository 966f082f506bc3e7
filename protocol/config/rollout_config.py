"""How workers are replaced while the pool serves: every key of the table `[rollout]`."""

from dataclasses import dataclass

from protocol.wire.schema import param


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenConfig:
    """A prompt that a new worker must answer as it should: a table `[[rollout.golden]]`."""

    prompt: str = param("", "Prompt that each new worker is asked, as plain text.")
    answer: str | None = param(
        None,
        "What its greedy answer must begin with. Unset: what the old worker answers, if model "
        "and options are such that both must answer alike; else any answer will do.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutConfig:
    """A rolling change, by `llamapool rollout` or by reading the configuration again."""

    golden: tuple[GoldenConfig, ...] = param((), "Prompts that each new worker is asked.")
    golden_tokens: int = param(16, "Tokens of the answer to a golden prompt.", low=1, high=1024)
    surge: str = param(
        "auto",
        "Start the new worker before the old one leaves: `on`, `off`, or `auto`, where memory "
        "allows it.",
        choices=("auto", "on", "off"),
    )
    start_s: float = param(
        600.0,
        "Seconds within which a new worker must be ready, or the change is rolled back.",
        low=1,
    )
    probation_s: float = param(
        5.0,
        "Seconds that a new worker must serve before the next one is replaced; if it dies, the "
        "change is rolled back.",
        low=0,
    )
