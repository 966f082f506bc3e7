"""How many examples a property gets when it needs another number than the usual 100."""

from typing import Any

from hypothesis import settings


def examples(count: int, **others: Any) -> settings:
    """Return settings for `count` examples in the profile `thorough`, in others in proportion."""
    profile = settings()
    return settings(max_examples=max(5, count * profile.max_examples // 100), **others)
