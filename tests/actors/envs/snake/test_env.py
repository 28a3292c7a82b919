"""Snake: the boards against a naive one that shifts a list of cells, and what an agent sees of them."""

from __future__ import annotations

import numpy as np
import pytest

from actors.config import EnvConfig
from actors.envs.make import make_env
from actors.envs.snake.env import Rules, SnakeBoards, SnakeEnv, parse_rules
from tests.actors.playing import refusal

AROUND = [(-1, 0), (0, 1), (1, 0), (0, -1)]  # up, right, down, left


class NaiveSnake:
    """One board as anybody would write it. It takes the place of the food, the one thing left to chance, from outside."""

    def __init__(self, body: list[tuple[int, int]], heading: int, dim: int, food: tuple[int, int] | None) -> None:
        self.body, self.heading, self.dim, self.food, self.hunger = list(body), heading, dim, food, 0

    def step(self, action: int) -> tuple[float, bool]:
        """Gives the reward and whether the episode is over."""
        self.heading = (self.heading + action - 1) % 4
        head = (self.body[0][0] + AROUND[self.heading][0], self.body[0][1] + AROUND[self.heading][1])
        ate = head == self.food
        self.hunger = 0 if ate else self.hunger + 1
        if not ate:
            self.body.pop()
        if head in self.body or not (0 <= head[0] < self.dim and 0 <= head[1] < self.dim):
            return -1.0, True
        self.body.insert(0, head)
        starved = self.hunger >= max(80 + 4 * len(self.body), 2 * self.dim**2)
        return float(ate) - float(starved), starved or len(self.body) == self.dim**2


def snake_of(boards: SnakeBoards, k: int) -> tuple[list[tuple[int, int]], tuple[int, int] | None]:
    """Board k's body from head to tail, and its food."""
    left, food = boards.cells(k)
    order = np.argsort(-left.ravel())[: int((left > 0).sum())]
    cells = [(int(cell) // left.shape[1], int(cell) % left.shape[1]) for cell in order]
    assert sorted(left.ravel()[order], reverse=True) == list(range(len(order), 0, -1)), "one cell frees itself per step"
    return cells, None if food < 0 else divmod(food, left.shape[1])


def heading_of(body: list[tuple[int, int]]) -> int:
    return AROUND.index((body[0][0] - body[1][0], body[0][1] - body[1][1]))


def naive_view(snake: NaiveSnake) -> np.ndarray:
    """[2, 2 dim - 1, 2 dim - 1]: where each cell lies ahead of and to the right of the head, cell by cell."""
    reach, (head_row, head_column) = snake.dim - 1, snake.body[0]
    (up_row, up_column), (right_row, right_column) = AROUND[snake.heading], AROUND[(snake.heading + 1) % 4]
    view = np.zeros((2, 2 * reach + 1, 2 * reach + 1), np.uint8)
    for i in range(2 * reach + 1):
        for j in range(2 * reach + 1):
            ahead, aside = reach - i, j - reach
            cell = (head_row + ahead * up_row + aside * right_row, head_column + ahead * up_column + aside * right_column)
            from_board = max(-cell[0], -cell[1], cell[0] - snake.dim + 1, cell[1] - snake.dim + 1)
            if from_board == 1:
                view[0, i, j] = 255
            if cell in snake.body:
                left = len(snake.body) - snake.body.index(cell)
                view[0, i, j] = int(255 * (0.4 + 0.6 * np.sqrt(left / snake.dim**2)))
            if cell == snake.food:
                view[1, i, j] = int(255 - 127 * snake.hunger / max(80 + 4 * len(snake.body), 2 * snake.dim**2))
    return view


def started(rules: Rules, seeds: list[int], restarts: float = 0.0) -> tuple[SnakeBoards, np.ndarray]:
    boards = SnakeBoards(len(seeds), rules, 0, restarts)
    return boards, boards.reset(np.arange(len(seeds)), seeds)["observation"]


def reachable_action(snake: NaiveSnake, random: np.random.Generator) -> int:
    """A random action, mostly one that does not kill and often one that nears the food, so that snakes grow."""
    best, choice = 10**6, int(random.integers(3))
    if random.random() < 0.02:
        return choice
    for action in random.permutation(3):
        row, column = AROUND[(snake.heading + int(action) - 1) % 4]
        head = (snake.body[0][0] + row, snake.body[0][1] + column)
        free = 0 <= head[0] < snake.dim and 0 <= head[1] < snake.dim and head not in snake.body[:-1]
        food = snake.food or head
        distance = abs(head[0] - food[0]) + abs(head[1] - food[1])
        if free and distance < best:
            best, choice = distance, int(action)
    return choice


@pytest.mark.parametrize("rules", [Rules(), Rules(1, 5, 0), Rules(4, 8, 3)])
def test_boards_play_as_the_naive_one_does(rules: Rules) -> None:
    random = np.random.default_rng(0)
    boards, seen = started(rules, [1, 2, 3, 4])
    naive: list[NaiveSnake | None] = [None] * 4
    longest, deaths, meals, follows = 0, 0, 0, 0
    for _ in range(700):
        for k in range(4):
            if naive[k] is None:
                body, food = snake_of(boards, k)
                assert len(body) == rules.starting_blocks and food not in body
                heading = heading_of(body) if len(body) > 1 else int(boards._heading[k])
                naive[k] = NaiveSnake(body, heading, rules.dim, food)
        playing = [snake for snake in naive if snake is not None]
        assert np.array_equal(seen, [naive_view(snake) for snake in playing])
        actions = np.array([reachable_action(snake, random) for snake in playing])
        tails = [snake.body[-1] for snake in playing]
        outcome = boards.step(actions)
        seen = outcome.observation["observation"]
        for k, snake in enumerate(playing):
            assert (outcome.reward[k], outcome.terminated[k]) == snake.step(int(actions[k]))
            if outcome.terminated[k]:
                deaths += 1
                seen[k] = boards.reset(np.array([k]), [None])["observation"][0]
                naive[k] = None
                continue
            body, food = snake_of(boards, k)
            assert body == snake.body and food not in body
            assert outcome.score[k] == len(body) - rules.starting_blocks
            assert outcome.reward[k] == 1 or food == snake.food, "food stays until it is eaten"
            snake.food = food
            longest, meals = max(longest, len(body)), meals + int(outcome.reward[k] == 1)
            follows += len(body) > 3 and body[0] == tails[k]
    assert longest >= 8 and deaths >= 3 and meals >= 50, "the play was too poor to say anything"
    assert rules.dim > 5 or follows, "no snake ever followed its tail"


def test_a_wall_kills_and_the_body_kills() -> None:
    boards, _ = started(Rules(), [0])
    rewards = [float(boards.step(np.array([1])).reward[0]) for _ in range(7)]
    assert -1.0 in rewards
    boards, _ = started(Rules(5, 12, 4), [0])
    outcomes = [boards.step(np.array([2])) for _ in range(3)]  # the third turn meets the body of five
    assert [bool(outcome.terminated[0]) for outcome in outcomes] == [False, False, True]
    assert not outcomes[2].success[0] and outcomes[2].reward[0] == -1


def test_a_snake_that_never_eats_starves_and_sees_it_coming() -> None:
    boards, _ = started(Rules(), [5])
    for step in range(1, 201):
        outcome = boards.step(np.array([2]))
        brightest = outcome.observation["observation"][0, 1].max()
        assert outcome.terminated[0] == (step == 200)
    assert outcome.reward[0] == -1 and not outcome.truncated[0] and brightest == 128


def test_a_full_board_is_success() -> None:
    """On 6x6 a closed path over all cells; the snake follows it to the end, whatever the food does."""
    cycle = [(0, column) for column in range(6)]
    for row in range(1, 6):
        cycle += [(row, column) for column in (range(5, 0, -1) if row % 2 else range(1, 6))]
    cycle += [(row, 0) for row in range(5, 0, -1)]
    after = {cell: cycle[(i + 1) % 36] for i, cell in enumerate(cycle)}
    wins = 0
    for seed in range(20):
        boards, _ = started(Rules(1, 6, 0), [seed])
        for _ in range(36 * 36):
            (row, column), heading = snake_of(boards, 0)[0][0], int(boards._heading[0])
            turn = (AROUND.index((after[row, column][0] - row, after[row, column][1] - column)) - heading + 1) % 4
            outcome = boards.step(np.array([min(turn, 2)]))  # a start against the path is lost at times
            if outcome.terminated[0]:
                break
        if outcome.success[0]:
            wins += 1
            assert outcome.score[0] == 35 and outcome.reward[0] == 1 and boards.cells(0)[1] == -1
            assert not outcome.observation["observation"][0, 1].any()
    assert wins >= 5


def test_the_view_is_the_same_whichever_way_the_snake_heads() -> None:
    boards = SnakeBoards(4, Rules())
    boards.reset(np.arange(4), [7] * 4)
    side, dim, reach = boards._side, 10, 9
    for k in range(4):  # the same scene, turned k quarters about the board's middle
        boards._taken.reshape(4, -1)[k] = boards._empty
        turned = [(3, 4), (4, 4), (5, 4)], (1, 7)
        cells = []
        for row, column in [*turned[0], turned[1]]:
            for _ in range(k):
                row, column = column, dim - 1 - row  # clockwise
            cells.append((row + reach) * side + column + reach)
        boards._taken[boards._base[k] + cells[:3]] = [3, 2, 1]
        boards._head[k], boards._food[k], boards._heading[k] = cells[0], cells[3], k
    seen = boards._observe(np.arange(4))
    assert all(np.array_equal(seen[0], view) for view in seen[1:])
    assert seen[0, 0, reach, reach] > seen[0, 0, reach + 1, reach] > seen[0, 0, reach + 2, reach] > 0
    assert seen[0, 1, reach - 2, reach + 3] == 255


@pytest.mark.parametrize("restarts", [0.0, 0.5])
def test_a_board_does_not_depend_on_its_neighbours(restarts: float) -> None:
    random = np.random.default_rng(3)
    actions = random.choice(3, size=(400, 3), p=[0.15, 0.7, 0.15])

    def life(seeds: list[int], column: int, place: int) -> list[bytes]:
        boards, seen = started(Rules(), seeds, restarts)
        views = []
        for step in range(400):
            views.append(seen[place].tobytes())
            outcome = boards.step(np.roll(actions, place - column, 1)[step, : len(seeds)])
            seen = outcome.observation["observation"]
            for k in np.flatnonzero(outcome.terminated):
                seen[k] = boards.reset(np.array([k]), [None])["observation"][0]
        return views

    alone = life([11], 0, 0)
    assert alone == life([5, 11], 0, 1) == life([11, 8, 9], 0, 0)
    assert len(set(alone)) > 50


def playing(restarts: float, steps: int) -> list[tuple[list[tuple[int, int]], int]]:
    """Body and heading at each start of an episode, of four boards that are played well for so many steps."""
    random = np.random.default_rng(0)
    boards, _ = started(Rules(), [1, 2, 3, 4], restarts)
    starts = []
    for _ in range(steps):
        snakes = []
        for k in range(4):
            body, food = snake_of(boards, k)
            snakes.append(NaiveSnake(body, int(boards._heading[k]), 10, food))
        outcome = boards.step(np.array([reachable_action(snake, random) for snake in snakes]))
        for k in np.flatnonzero(outcome.terminated).tolist():
            boards.reset(np.array([k]), [len(starts)])  # actors give seeds again and again
            body, food = snake_of(boards, k)
            assert food is not None and food not in body
            starts.append((body, int(boards._heading[k])))
    return starts


def test_a_share_of_the_episodes_begins_from_an_earlier_position_of_any_length() -> None:
    assert {len(body) for body, _ in playing(0.0, 2_000)} == {3}
    starts = playing(0.5, 6_000)
    later = [(body, heading) for body, heading in starts if len(body) > 3]
    assert len(starts) >= 60 and 0.25 < len(later) / len(starts) < 0.75
    assert len({len(body) // 4 for body, _ in later}) >= 4, "short snakes and long ones"
    assert all(heading == heading_of(body) for body, heading in later)


def test_evaluation_always_begins_anew() -> None:
    env = EnvConfig(id="snake", options={"restarts": 1.0})
    for evaluation in (False, True):
        boards = make_env(env, evaluation=evaluation).unwrapped.simulators(1)  # type: ignore[attr-defined]
        assert bool(boards._restarts) is not evaluation
    assert "restarts" in refusal(make_env, EnvConfig(id="snake", options={"restarts": 1.5}))


def test_one_board_with_gymnasiums_api_is_one_of_many_and_a_step_limit_truncates_it() -> None:
    env = make_env(EnvConfig(id="snake", max_episode_steps=5))
    boards, seen = started(Rules(), [4, 9])
    observation, _ = env.reset(seed=9)
    assert np.array_equal(observation, seen[1])
    for number, action in enumerate((1, 0, 1, 2, 1), 1):
        observation, reward, terminated, truncated, info = env.step(action)
        outcome = boards.step(np.array([1, action]))
        assert np.array_equal(observation, outcome.observation["observation"][1])
        assert (reward, terminated, truncated) == (outcome.reward[1], outcome.terminated[1], number == 5)
        assert info == {"score": outcome.score[1], "is_success": False}


def test_food_appears_on_every_free_cell_alike() -> None:
    boards, _ = started(Rules(1, 5, 2), list(range(6_000)))  # the head is in the middle
    counts = np.bincount([boards.cells(k)[1] for k in range(6_000)], minlength=25)
    assert counts[12] == 0
    expected = 6_000 / 24
    assert ((counts - expected) ** 2 / expected).sum() - expected < 50  # chi-squared, 23 degrees: 99.9 % lie below 50


def test_a_start_keeps_its_distance_from_every_wall() -> None:
    boards, _ = started(Rules(3, 10, 3), list(range(200)))
    heads = {snake_of(boards, k)[0][0] for k in range(200)}
    assert heads == {(row, column) for row in range(3, 7) for column in range(3, 7)}
    assert len({heading_of(snake_of(boards, k)[0]) for k in range(200)}) == 4


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        ("", Rules(3, 10, 3)),
        ("8", Rules(3, 8, 3)),
        ("5", Rules(3, 5, 2)),
        ("dim=12,starting_blocks=5,dist_to_border=4", Rules(5, 12, 4)),
    ],
)
def test_the_rules_come_from_the_name(text: str, rules: Rules) -> None:
    assert parse_rules(text) == rules
    width = 2 * rules.dim - 1
    assert make_env(EnvConfig(id=f"snake:{text}")).observation_space.shape == (2, width, width)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("4", "dim must be 5 to 32, not 4"),
        ("33", "dim must be 5 to 32"),
        ("big", "no option 'big'; write snake:8 or snake:starting_blocks=3,dim=10,dist_to_border=3"),
        ("starting_block=4", "did you mean starting_blocks?"),
        ("dim=-3", "dim must be a whole number, as in dim=10"),
        ("dist_to_border=5", "dist_to_border must be at most 4 on a board of 10"),
        ("starting_blocks=5", "starting_blocks must be 1 to dist_to_border + 1 = 4"),
        ("starting_blocks=0", "not 0"),
    ],
)
def test_rules_that_cannot_be_are_refused_with_the_fix(text: str, words: str) -> None:
    assert words in refusal(make_env, EnvConfig(id=f"snake:{text}"))


def test_a_person_can_watch() -> None:
    env = SnakeEnv()
    env.reset(seed=2)
    picture = env.render()
    assert picture.dtype == np.uint8 and picture.shape == (256, 256, 3)
    assert len(np.unique(picture.reshape(-1, 3), axis=0)) >= 6  # border, lines, grass, head, body, food
