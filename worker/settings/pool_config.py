"""Reads the configuration of a command: a file or the host's settings, then the options."""

import os
from pathlib import Path

from protocol.config import config as configs
from protocol.config.config import PoolConfig
from protocol.config.options import table as options
from protocol.config.paths import anchored
from protocol.filenames import absolute, working_directory
from worker.settings.arguments import ExplicitSettings
from worker.settings.host_config import host_settings

_ANY_ORIGIN = configs.GatewayConfig().cors_origins


def read_pool_config(path: Path | None, overrides: ExplicitSettings) -> PoolConfig:
    """Read the file, or the host's settings without one; `overrides` take precedence.

    Relative paths become absolute: those in the file start at its folder, those of options at the
    working directory. Raises `ConfigError`.
    """
    if path is not None:
        config = anchored(configs.load(path), absolute(path).parent)
    else:
        config = options.apply(PoolConfig(), host_settings(os.environ))
    changes = overrides.changes
    if overrides.wants_tools and config.gateway.cors_origins == _ANY_ORIGIN:
        changes = {"gateway.cors_origins": ("localhost",), **changes}
    return anchored(options.apply(config, changes), working_directory())
