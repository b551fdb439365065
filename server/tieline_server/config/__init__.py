"""The settings of the server: options with a flag and a variable each, and the file's tables."""

from tieline_server.config.options import (
    DAY,
    FLAGLESS,
    KIB,
    MEMORY,
    MIB,
    PREFIX,
    UPSTREAM,
    Config,
    ConfigError,
    flag,
    unknown_variables,
    urls_of,
)

__all__ = [
    "DAY",
    "FLAGLESS",
    "KIB",
    "MEMORY",
    "MIB",
    "PREFIX",
    "UPSTREAM",
    "Config",
    "ConfigError",
    "flag",
    "unknown_variables",
    "urls_of",
]
