"""Snake as an environment family. Its rules are part of the id."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from actors.envs.base import EnvironmentFamily, Setup, Simulators, variant

if TYPE_CHECKING:
    import gymnasium

    from actors.envs.snake.env import SnakeEnv


class Snake(EnvironmentFamily):
    """snake, snake:DIM or snake:dim=…,starting_blocks=…,dist_to_border=…."""

    about = (
        "Snake, 10x10, seen from its head; snake:8 for another size, "
        "snake:dim=10,starting_blocks=3,dist_to_border=3 for all its rules"
    )
    ends_episodes = True
    default_stack = 1  # one observation shows the whole state
    reports_success = True
    pictures_may_be_published = True

    def make(self, setup: Setup) -> gymnasium.Env:
        from actors.envs.snake.env import SnakeEnv, parse_rules

        return SnakeEnv(parse_rules(variant(self.env_id)), setup.max_episode_steps)

    def simulators(self, env: gymnasium.Env, count: int) -> Simulators | None:
        return cast("SnakeEnv", env).simulators(count) if env is env.unwrapped else None
