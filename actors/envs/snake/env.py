"""Snake: K boards, stepped together by array operations.

A board is `dim` x `dim` cells. The snake starts `starting_blocks` long, straight, its head at least `dist_to_border`
cells from every wall. Actions are relative: 0 turns left, 1 goes straight on, 2 turns right. A step moves the head by one
cell; food lengthens the snake by one and reappears on a free cell. The tail moves before the head, so the head may enter the
cell that the tail leaves.

Reward: +1 for food, -1 for hitting a wall or the body, -1 for starving: max(80 + 4 length, 2 dim^2) steps without food.
Each of these ends terminates, and so does a full board (is_success). Starving terminates instead of truncating, because the
observation shows it coming (the food fades) and the agent can prevent it. info["score"] is the food eaten.

Observation: [2, 2 dim - 1, 2 dim - 1] uint8, the cells around the head, which is in the middle and faces up; the whole board
is always in view:
  0  obstacles: the wall around the board 255; the body by how many steps until the cell is free, as 255 (0.4 + 0.6
     sqrt(steps / dim^2)); 0 elsewhere
  1  food: 255, fading to 128 as starvation approaches

With `restarts` a share of the episodes begins from an earlier position of the same board, long snakes as often as short ones. The
last third of a game is about space instead of food, and without restarts a new policy hardly ever reaches it.

Each cell stores the time until which it is occupied, by the board's own clock; a wall is occupied forever. A step advances the
clock, which frees the tail's cell, unless the snake eats. So moving, growing and colliding are one comparison each, and no
list of body cells is shifted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from actors.envs.base import Simulators, SimulatorStep
from actors.errors import EnvError
from transport.names import nearest

FOREVER = np.int32(2**30)  # a wall's time
MIN_DIM, MAX_DIM = 5, 32
UP_RIGHT_DOWN_LEFT = np.array([(-1, 0), (0, 1), (1, 0), (0, -1)])
CELL_PIXELS = 24
LENGTHS, KEPT = 32, 8  # a board keeps the last 8 positions in each of 32 ranges of length


class Rules(NamedTuple):
    """The parameters of a board."""

    starting_blocks: int = 3
    dim: int = 10
    dist_to_border: int = 3


def parse_rules(text: str) -> Rules:
    """Reads "", "DIM" or "key=value,…". The defaults are those of Rules; dist_to_border is smaller on a small board. Raises
    EnvError."""
    given: dict[str, int] = {}
    for part in [f"dim={text}"] if text.isdecimal() else filter(None, text.split(",")):
        key, _, value = part.partition("=")
        if key not in Rules._fields:
            near = nearest(key, Rules._fields)
            raise EnvError(f"snake:{text}: no option {key!r}; {near if near.startswith('did') else EXAMPLE}")
        if not value.isdecimal():
            raise EnvError(f"snake:{text}: {key} must be a whole number, as in {key}={Rules._field_defaults[key]}")
        given[key] = int(value)
    dim = given.get("dim", Rules().dim)
    if not MIN_DIM <= dim <= MAX_DIM:
        raise EnvError(f"snake:{text}: dim must be {MIN_DIM} to {MAX_DIM}, not {dim}")
    middle = (dim - 1) // 2  # the greatest possible distance of the head from every wall
    rules = Rules(**{"dist_to_border": min(Rules().dist_to_border, middle), **given})
    if rules.dist_to_border > middle:
        raise EnvError(f"snake:{text}: dist_to_border must be at most {middle} on a board of {dim}, not {rules.dist_to_border}")
    if not 1 <= rules.starting_blocks <= rules.dist_to_border + 1:
        raise EnvError(
            f"snake:{text}: starting_blocks must be 1 to dist_to_border + 1 = {rules.dist_to_border + 1}, so that the snake "
            f"fits behind its head, not {rules.starting_blocks}"
        )
    return rules


EXAMPLE = "write snake:8 or snake:" + ",".join(f"{name}={value}" for name, value in Rules()._asdict().items())


class SnakeBoards(Simulators):
    """K boards. Each has its own random generator, so that a board depends neither on the others nor on their number."""

    def __init__(self, count: int, rules: Rules, max_steps: int = 0, restarts: float = 0.0) -> None:
        """`max_steps` truncates an episode; 0: never. `restarts`: share of the episodes that begin from an earlier position."""
        self.rules, self._max_steps, self._restarts = rules, max_steps, restarts
        dim = rules.dim
        self._reach = reach = dim - 1  # cells of the view to each side of the head
        self._side = dim + 2 * reach  # of a board with a margin as wide as the view
        rows = np.arange(dim) + reach
        self._inside = (rows[:, None] * self._side + rows).ravel()  # [dim^2] flat places on a board
        empty = np.zeros((self._side, self._side), np.int32)
        empty[reach - 1 : 1 - reach, reach - 1 : 1 - reach] = FOREVER  # the wall
        empty[reach:-reach, reach:-reach] = 0
        self._empty = empty.ravel()
        self._ahead = UP_RIGHT_DOWN_LEFT @ (self._side, 1)  # [4] the change of a flat place by a step, for each heading
        self._window = self._windows()
        self._spot = self._spots()
        self._shade = np.full(dim**2 + 2, 255, np.uint8)  # by remaining time; the first entry: a free cell, the last: a wall
        self._shade[0] = 0
        self._shade[1:-1] = 255 * (0.4 + 0.6 * np.sqrt(np.arange(1, dim**2 + 1) / dim**2))
        self._board = np.arange(count)
        self._base = self._board * self._side**2
        self._taken = np.tile(self._empty, count)  # [K * side^2] flat: the time until which a cell is occupied
        self._generator = np.zeros(count, np.uint64)  # [K] states of SplitMix64
        self._seeded = np.zeros(count, bool)
        self._clock = np.zeros(count, np.int32)
        self.length, self._first_length = np.zeros(count, np.int32), np.zeros(count, np.int32)  # now, and when the episode began
        self._head, self._heading, self._food, self._hunger, self._steps = (np.zeros(count, np.int64) for _ in range(5))
        position = np.dtype([("left", np.int16, (dim**2,)), ("head", np.int32), ("heading", np.int32)])
        self._positions = np.zeros((count, LENGTHS, KEPT) if restarts else 0, position)  # each right after a meal
        self._kept = np.zeros((count, LENGTHS), np.int64)  # number of positions that were kept, by length

    def _windows(self) -> np.ndarray:
        """[4, (2 dim - 1)^2]: the flat places of the view relative to the head, for each heading."""
        up = np.arange(self._reach, -self._reach - 1, -1)[:, None]  # [2 dim - 1, 1] cells ahead
        right = np.arange(-self._reach, self._reach + 1)[None]  # [1, 2 dim - 1]
        return np.stack([(up * self._ahead[h] + right * self._ahead[(h + 1) % 4]).ravel() for h in range(4)])

    def _spots(self) -> np.ndarray:
        """[4, 2 dim - 1, 2 dim - 1]: for each heading, the index in the view of a cell by its rows and columns from the head.

        Negative offsets are negative indices.
        """
        away = np.roll(np.arange(1 - self.rules.dim, self.rules.dim), self.rules.dim)  # 0, 1, … -2, -1
        apart = np.stack(np.meshgrid(away, away, indexing="ij"), axis=-1)  # [.., .., (row, column)]
        spots = []
        for h in range(4):
            ahead, aside = (apart @ UP_RIGHT_DOWN_LEFT[(h + turn) % 4] for turn in (0, 1))
            spots.append((self._reach - ahead) * (2 * self._reach + 1) + self._reach + aside)
        return np.stack(spots)

    def reset(self, where: np.ndarray, seeds: Sequence[int | None]) -> dict[str, np.ndarray]:
        """Starts an episode on boards `where` [M]. A seed seeds a board's generator, and leaves its earlier positions. Gives
        [M, 2, 2 dim - 1, 2 dim - 1]."""
        for k, seed in zip(where, seeds, strict=True):
            if seed is not None or not self._seeded[k]:
                entropy = np.random.SeedSequence(seed)
                self._generator[k], self._seeded[k] = entropy.generate_state(1, np.uint64)[0], True
        blocks, dim, margin = self.rules
        row, column = (self._uniform(where, dim - 2 * margin) + margin + self._reach for _ in range(2))
        heading, head = self._uniform(where, 4), row * self._side + column
        self._taken.reshape(-1, self._side**2)[where] = self._empty
        for block in range(blocks):
            self._taken[self._base[where] + head - block * self._ahead[heading]] = blocks - block
        self._head[where], self._heading[where], self.length[where] = head, heading, blocks
        self._clock[where] = self._hunger[where] = self._steps[where] = 0
        if self._restarts:
            self._restart(where[self._uniform(where, 1_000) < 1_000 * self._restarts])
        self._first_length[where] = self.length[where]
        self._place_food(where)
        return {"observation": self._observe(where)}

    def step(self, actions: np.ndarray) -> SimulatorStep:
        """Moves all snakes by actions [K] of 0, 1 or 2. Boards whose episode ended must be reset before the next step."""
        self._heading = (self._heading + actions - 1) % 4
        ahead = self._head + self._ahead[self._heading]
        ate = ahead == self._food
        self._clock += ~ate
        hit = self._taken[self._base + ahead] > self._clock
        self._head = np.where(hit, self._head, ahead)
        self.length += ate
        self._taken[self._base + self._head] = self._clock + self.length
        self._hunger = np.where(ate, 0, self._hunger + 1)
        self._steps += 1
        full = self.length == self.rules.dim**2
        starved = ~hit & (self._hunger >= self._patience())
        terminated = hit | starved | full
        truncated = ~terminated & (self._steps >= self._max_steps) if self._max_steps else np.zeros_like(hit)
        if ate.any():
            self._food[full] = -1
            fed = np.flatnonzero(ate & ~full)
            self._place_food(fed)
            if self._restarts:
                self._remember(fed)
        reward = ate.astype(np.float32) - (hit | starved)
        score = (self.length - self._first_length).astype(np.float64)
        return SimulatorStep({"observation": self._observe(self._board)}, reward, terminated, truncated, score, full)

    def close(self) -> None:
        """Does nothing: there is nothing to free."""

    def cells(self, k: int) -> tuple[np.ndarray, int]:
        """Board k: [dim, dim] steps until each cell is free (for the head, the length), and the flat index of the food, or -1."""
        time_left = self._taken[self._base[k] + self._inside] - self._clock[k]
        food = np.flatnonzero(self._inside == self._food[k])
        return np.maximum(time_left, 0).reshape(self.rules.dim, self.rules.dim), int(food[0]) if len(food) else -1

    def _patience(self) -> np.ndarray:
        """[K] steps without food after which a snake starves."""
        return np.maximum(80 + 4 * self.length, 2 * self.rules.dim**2)

    def _remember(self, where: np.ndarray) -> None:
        """Keeps the positions of boards `where` [M], in place of the oldest of such lengths."""
        lengths = self.length[where] * LENGTHS // (self.rules.dim**2 + 1)
        kept = (where, lengths, self._kept[where, lengths] % KEPT)
        left = self._taken[self._base[where, None] + self._inside] - self._clock[where, None]
        self._positions["left"][kept] = np.maximum(left, 0)
        self._positions["head"][kept], self._positions["heading"][kept] = self._head[where], self._heading[where]
        self._kept[where, lengths] += 1

    def _restart(self, where: np.ndarray) -> None:
        """Gives each of the boards `where` [M] one of its earlier positions, all lengths with the same probability."""
        where = where[self._kept[where].any(1)]
        rank = (self._kept[where] > 0).cumsum(1)  # [M, LENGTHS]
        lengths = (rank > self._uniform(where, rank[:, -1])[:, None]).argmax(1)
        chosen = self._positions[where, lengths, self._uniform(where, np.minimum(self._kept[where, lengths], KEPT))]
        self._taken[self._base[where, None] + self._inside] = chosen["left"]
        self._head[where], self._heading[where], self.length[where] = chosen["head"], chosen["heading"], chosen["left"].max(1)

    def _place_food(self, where: np.ndarray) -> None:
        """Puts food on a free cell of each board `where` [M], all with the same probability."""
        free = self._taken[self._base[where, None] + self._inside] <= self._clock[where, None]  # [M, dim^2]
        rank = free.cumsum(1, dtype=np.int32)  # [M, dim^2] number of free cells up to each cell
        chosen = self._uniform(where, rank[:, -1])
        self._food[where] = self._inside[(rank > chosen[:, None]).argmax(1)]

    def _uniform(self, where: np.ndarray, bound: np.ndarray | int) -> np.ndarray:
        """[M] int64, uniform below `bound`, of boards `where`: SplitMix64, Steele et al. 2014 (10.1145/2660193.2660195)."""
        self._generator[where] += np.uint64(0x9E3779B97F4A7C15)
        z = self._generator[where]
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        high = (z ^ (z >> np.uint64(31))) >> np.uint64(32)
        return (high * np.asarray(bound, np.uint64) >> np.uint64(32)).astype(np.int64)

    def _observe(self, where: np.ndarray) -> np.ndarray:
        """[M, 2, 2 dim - 1, 2 dim - 1] uint8, new."""
        places = self._window[self._heading[where]]
        places += (self._base[where] + self._head[where])[:, None]
        left = self._taken.take(places)  # [M, (2 dim - 1)^2] remaining time
        left -= self._clock[where, None]
        np.maximum(left, 0, out=left)  # clip() costs more than both
        np.minimum(left, len(self._shade) - 1, out=left)
        view = np.zeros((len(where), 2, places.shape[1]), np.uint8)
        view[:, 0] = self._shade.take(left)
        there = np.flatnonzero(self._food[where] >= 0)  # not on a full board
        board = where[there]
        (food_row, food_column), (row, column) = (np.divmod(place[board], self._side) for place in (self._food, self._head))
        spot = self._spot[self._heading[board], food_row - row, food_column - column]
        view[there, 1, spot] = 255 - 127 * (self._hunger / self._patience())[board]
        return view.reshape(-1, 2, 2 * self._reach + 1, 2 * self._reach + 1)


class SnakeEnv(gymnasium.Env):
    """One board with Gymnasium's API. The same code steps many boards at once."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}
    render_mode = "rgb_array"

    def __init__(self, rules: Rules = Rules(), max_steps: int = 0, restarts: float = 0.0) -> None:  # noqa: B008  # a tuple
        """As SnakeBoards."""
        self._rules, self._max_steps, self._restarts = rules, max_steps, restarts
        self._boards = self.simulators(1)
        self.observation_space = gymnasium.spaces.Box(0, 255, (2, 2 * rules.dim - 1, 2 * rules.dim - 1), np.uint8)
        self.action_space = gymnasium.spaces.Discrete(3)

    def get_action_meanings(self) -> list[str]:
        return ["left", "straight", "right"]

    def simulators(self, count: int) -> SnakeBoards:
        """`count` boards with the same rules, stepped by one call."""
        return SnakeBoards(count, self._rules, self._max_steps, self._restarts)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        """Starts an episode. Without restarts the same seed gives the same episode."""
        super().reset(seed=seed)
        return self._boards.reset(np.zeros(1, np.int64), [seed])["observation"][0], {"score": 0.0, "is_success": False}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        step = self._boards.step(np.array([action]))
        info = {"score": float(step.score[0]), "is_success": bool(step.success[0])}
        return step.observation["observation"][0], float(step.reward[0]), bool(step.terminated[0]), bool(step.truncated[0]), info

    def render(self) -> np.ndarray:  # type: ignore[override]
        """[H, W, 3] RGB uint8, the whole board: a green snake, paler towards its tail, a dark head, red food."""
        left, food = self._boards.cells(0)
        picture = np.full((*left.shape, 3), (34, 40, 34), np.uint8)
        fresh = (left / left.max())[..., None]
        body = (1 - fresh) * (190, 220, 170) + fresh * (60, 160, 60)
        picture = np.where(left[..., None] > 0, body, picture).astype(np.uint8)
        picture[left == left.max()] = (20, 90, 200)
        if food >= 0:
            picture[divmod(food, self._rules.dim)] = (220, 50, 40)
        picture = np.kron(picture, np.ones((CELL_PIXELS, CELL_PIXELS, 1), np.uint8))
        picture[::CELL_PIXELS], picture[:, ::CELL_PIXELS] = 24, 24
        return np.pad(picture, ((8, 8), (8, 8), (0, 0)), constant_values=120)
