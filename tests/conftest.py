"""What all tests share."""

from hypothesis import HealthCheck, settings

# A loaded machine makes generation slow; that says nothing about the code under test.
_CALM = [HealthCheck.too_slow]
# A merge must not depend on luck; `--hypothesis-profile=explore` looks for what is new.
settings.register_profile("shared", deadline=None, derandomize=True, suppress_health_check=_CALM)
settings.register_profile("explore", deadline=None, suppress_health_check=_CALM)
# `make quick`: every property is tried, with a tenth of the examples (see tests/examples.py).
settings.register_profile("quick", settings.get_profile("shared"), max_examples=10)
settings.load_profile("shared")
