"""The earlier name of HumanStepsSource, which `headrace dataset` imports."""

from actors.datasets.human_steps import HumanStepsSource as PeopleSource

__all__ = ["PeopleSource"]
