"""What all tests share."""

from hypothesis import HealthCheck, settings

# A loaded machine makes generation slow; that says nothing about the code under test.
settings.register_profile("shared", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared")
