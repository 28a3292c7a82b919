"""Snake as an environment family. Its rules are part of the id."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, cast

from msgspec import Meta, Struct

from actors.envs.base import EnvironmentFamily, Setup, Simulators, variant

if TYPE_CHECKING:
    import gymnasium

    from actors.envs.snake.env import SnakeEnv


class SnakeOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """Snake."""

    restarts: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="share of the training episodes that begin from an earlier position of their board, long snakes as often "
            "as short ones; evaluation always begins anew",
        ),
    ] = 0.0


class Snake(EnvironmentFamily):
    """snake, snake:DIM or snake:dim=…,starting_blocks=…,dist_to_border=…."""

    Options = SnakeOptions
    options: SnakeOptions
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

        restarts = 0.0 if setup.evaluation else self.options.restarts
        return SnakeEnv(parse_rules(variant(self.env_id)), setup.max_episode_steps, restarts)

    def simulators(self, env: gymnasium.Env, count: int) -> Simulators | None:
        return cast("SnakeEnv", env).simulators(count) if env is env.unwrapped else None
