"""Moved to run.py."""

from deploy.config.run import DeployConfig as DeployConfig
