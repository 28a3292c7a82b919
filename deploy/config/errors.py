"""Moved to run.py."""

from deploy.config.run import ConfigError as ConfigError
