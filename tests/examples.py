"""How many examples a property gets when it needs another number than the profile's 100."""

from typing import Any

from hypothesis import settings


def examples(count: int, **others: Any) -> settings:
    """Return settings for `count` examples, and in proportion fewer in a profile with fewer."""
    profile = settings()
    return settings(max_examples=max(5, count * profile.max_examples // 100), **others)
