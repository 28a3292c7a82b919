"""Mario on retro and on native is Mario on nes-py: the same inputs give the same rewards, ends, info, RAM and pictures."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from actors.compiling import compiler
from actors.config import EnvConfig
from actors.envs.make import EnvError, make_env, open_family, resolve_env
from actors.envs.mario import env as mario
from actors.envs.mario import family, native_console, retro_console
from actors.envs.mario.console import Console, cartridge
from actors.envs.mario.env import MarioEnv
from actors.envs.mario.native_console import SOURCE, can_be_used
from actors.envs.spec import experience_spec
from actors.envs.vector import VectorEnv
from learner.algorithms.base import Needs
from tests.actors.envs.mario.test_env import DOWN, FIRST_FRAME, ONTO_THE_PIPE, TO_THE_FLAG

needs_mario = pytest.mark.skipif(find_spec("nes_py") is None, reason="nes-py is not installed: pip install 'headrace[mario]'")
needs_retro = pytest.mark.skipif(
    find_spec("stable_retro") is None, reason="stable-retro is not installed: pip install 'headrace[retro]'"
)

needs_compiler = pytest.mark.skipif(not can_be_used(), reason="there is no C compiler")
OTHERS = [
    pytest.param("retro", marks=needs_retro),
    pytest.param("native", marks=needs_compiler),
]
others = pytest.mark.parametrize("other", OTHERS)

# What reward, ends and info are made of: an address and how many bytes.
READ = {
    mario.ENGINE: 1, mario.X_PAGE: 1, mario.X_PIXEL: 1, mario.Y_PAGE: 1, mario.CLOUD_AREA: 1, mario.AREA_TYPE: 2,
    mario.LIVES: 1, mario.STAGE: 1, mario.WORLD: 2, mario.MODE: 1, mario.COINS: 2, mario.TIME: 3,
}  # fmt: skip
# What the game plays now, and what it is asked to play next.
MUSIC = (0xF4, 0x7B1, *range(0xFB, 0x100))


def make(stage: str, backend: str, actions: str = "", max_steps: int = 0) -> MarioEnv:
    """Mario on one of the emulators."""
    config = EnvConfig(id=f"mario:{stage}", max_episode_steps=max_steps, options={"backend": backend, "actions": actions})
    return cast(MarioEnv, make_env(config))


def read(console: Console) -> list[bytes]:
    """The RAM that MarioEnv looks at."""
    return [bytes(console.ram[address : address + count]) for address, count in READ.items()]


class Pair:
    """The same stage on nes-py and another emulator, stepped alike and compared at every step."""

    def __init__(self, other: str, stage: str, actions: str = "", max_steps: int = 0, music: bool = True) -> None:
        self.envs = [make(stage, name, actions, max_steps) for name in ("nes_py", other)]
        self.music = music
        self.difference = 0.0  # the largest mean absolute difference of two observations, in steps of grey

    def write(self, address: int, *values: int) -> None:
        """Changes the RAM of both."""
        for env in self.envs:
            env.console.ram[address : address + len(values)] = bytes(values)

    def reset(self, noops: int = 0) -> dict:
        """Starts both; gives what is equal."""
        (one, info), (other, other_info) = (env.reset(options={"noops": noops}) for env in self.envs)
        assert info == other_info
        self._compare(one, other)
        return info

    def step(self, action: int) -> tuple[float, bool, bool, dict]:
        """Steps both; gives what is equal."""
        (one, *said), (other, *other_said) = (env.step(action) for env in self.envs)
        assert said == other_said
        self._compare(one, other)
        return cast(tuple[float, bool, bool, dict], tuple(said))

    def close(self) -> None:
        for env in self.envs:
            env.close()

    def _compare(self, one: np.ndarray, other: np.ndarray) -> None:
        assert read(self.envs[0].console) == read(self.envs[1].console)
        self.difference = max(self.difference, float(np.abs(one.astype(int) - other).mean()))
        if not self.music:
            for address in MUSIC:
                self.write(address, 0)


# Music moves the moment at which the game reads the buttons, about which nes-py is particular: see retro_console.
@needs_mario
@others
@pytest.mark.slow
@pytest.mark.parametrize("stage", ["1-1", "1-2", "1-4", "2-2", "4-1", "8-3"])
def test_random_play_is_the_same_on_both_emulators(stage: str, other: str) -> None:
    rng = np.random.default_rng([ord(letter) for letter in stage])
    pair = Pair(other, stage, "complex", max_steps=120, music=False)
    pair.reset()
    action, ends = 0, [0, 0]
    for _ in range(260):
        if rng.random() < 0.5:
            action = int(rng.choice([1, 2, 3, 4, 4]) if rng.random() < 0.75 else rng.integers(12))
        _, terminated, truncated, _ = pair.step(action)
        if terminated or truncated:
            ends[truncated] += 1
            pair.reset(int(rng.integers(31)))
    assert ends[False] or ends[True] == 2  # died, or lived until the step limit
    assert pair.difference == 0
    assert pair.envs[0].render().tolist() == pair.envs[1].render().tolist()
    pair.close()


@needs_mario
@others
@pytest.mark.slow
def test_a_level_to_its_flag_is_the_same_music_and_all(other: str) -> None:
    pair = Pair(other, "1-1")
    pair.reset()
    said = [pair.step(int(digit)) for digit in TO_THE_FLAG]
    assert said[-1][1] and said[-1][3]["flag_get"] and pair.difference == 0
    pair.close()


@needs_mario
@others
def test_a_pipe_is_the_same_music_and_all(other: str) -> None:
    pair = Pair(other, "1-1", "complex")
    pair.reset()
    for digit in ONTO_THE_PIPE:
        pair.step(int(digit))
    *_, info = pair.step(DOWN)
    assert info["x_pos"] == 24  # in the bonus room
    assert pair.difference == 0
    pair.close()


@needs_mario
@others
def test_a_death_by_time_a_castles_end_and_a_warp_are_the_same(other: str) -> None:
    pair = Pair(other, "1-4")
    pair.reset()
    pair.write(mario.TIME, 0, 0, 1)
    ends = [pair.step(0) for _ in range(20)]
    reward, terminated, _, info = next(said for said in ends if said[1])
    assert reward == pytest.approx(-25.001) and info["time"] == 0
    for address, value in ((mario.MODE, mario.END_OF_CASTLE), (mario.WORLD, 5)):
        pair.reset()
        pair.write(address, value)
        _, terminated, _, info = pair.step(0)
        assert terminated and info["flag_get"]
    assert pair.difference == 0
    pair.close()


@needs_mario
@others
def test_consoles_of_one_process_do_not_disturb_one_another(other: str) -> None:
    stages = ("1-1", "2-2", "1-4", "1-1")
    scripts = np.random.default_rng(0).choice([1, 2, 3, 4], (40, len(stages)))

    def turn(env: MarioEnv, action: int) -> Iterator[bytes]:
        observation, reward, terminated, truncated, info = env.step(action)
        yield from (observation.tobytes(), repr((reward, terminated, info)).encode(), bytes(env.console.ram))
        if terminated or truncated:
            yield env.reset(options=FIRST_FRAME)[0].tobytes()

    alone = []
    for column, stage in enumerate(stages):
        env = make(stage, other)
        env.reset(options=FIRST_FRAME)
        alone.append([list(turn(env, action)) + [env.render().tobytes()] for action in scripts[:, column]])
        env.close()
    envs = [make(stage, other) for stage in stages]
    for env in envs:
        env.reset(options=FIRST_FRAME)
    for row, actions in enumerate(scripts):
        together = [list(turn(env, action)) for env, action in zip(envs, actions, strict=True)]
        shown = [env.render().tobytes() for env in envs]  # each when another's game is in the emulator
        for column in range(len(stages)):
            assert [*together[column], shown[column]] == alone[column][row], (row, column)
    envs[1].close()
    assert envs[0].step(1)[4]["stage"] == 1


@needs_mario
@needs_retro
def test_an_actors_environments_take_turns_in_the_emulator() -> None:
    config = EnvConfig(id="mario", options={"backend": "retro"})
    single = make("1-1", "retro")
    vector = VectorEnv(config, experience_spec(single, config, "none", Needs(n_step=3)), 8, [0] * 8)
    first = vector.reset()["observation"]
    assert (first == single.reset(seed=0)[0]).all()
    for action in (1, 3, 4, 4, 1):
        step, (observation, reward, *_) = vector.step(np.full(8, action)), single.step(action)
        assert (step.observation["observation"] == observation).all() and (step.reward == np.float32(reward)).all()
    vector.close()
    single.close()


def in_a_process(code: str) -> tuple[int, str, str]:
    """Exit status, output and errors of a Python program."""
    done = subprocess.run([sys.executable, "-W", "default", "-c", code], capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


MAKE = "from actors.envs.make import make_env, read_env; make_env(read_env({'id': 'mario', 'backend': 'retro'})).reset()"


@needs_mario
@needs_retro
def test_making_it_on_retro_prints_nothing_and_ends_in_order() -> None:
    assert in_a_process(MAKE) == (0, "", "")


@needs_mario
@needs_retro
def test_a_process_whose_emulator_is_taken_is_told_so_in_one_line() -> None:
    taken = "import stable_retro; from actors.envs.mario.console import cartridge; held = stable_retro.RetroEmulator(cartridge())"
    status, _, error = in_a_process(f"{taken}; {MAKE}")
    assert status == 1 and "EnvError: mario on retro: " in error.splitlines()[-1]


@needs_mario
def test_a_missing_stable_retro_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retro_console, "_machine", retro_console.SharedEmulator)  # a process that has none yet
    monkeypatch.setitem(sys.modules, "stable_retro", None)
    with pytest.raises(EnvError, match=r"pip install .*\[retro\]'.*or --env.backend nes_py"):
        make("1-1", "retro")


def test_auto_the_default_is_the_fastest_that_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for made, spec, settled in ((False, None, "nes_py"), (False, object(), "retro"), (True, None, "native")):
        monkeypatch.setattr(family, "find_spec", lambda name, spec=spec: spec)
        monkeypatch.setattr(native_console, "can_be_used", lambda made=made: made)
        assert [family.emulator(name) for name in ("auto", "", "nes_py", "retro")] == [settled, "nes_py", "nes_py", "retro"]
        kept = [resolve_env(EnvConfig(id="mario", options={"backend": name})).options.backend for name in ("auto", "", "retro")]
        assert kept == [settled, "", "retro"]
        assert resolve_env(EnvConfig(id="mario")).options.backend == settled


@needs_mario
@others
def test_a_share_of_the_episodes_begins_where_an_earlier_one_has_been(other: str) -> None:
    env = MarioEnv(backend=other, restarts=0.5)
    try:
        anew, info = env.reset(seed=1, options=FIRST_FRAME)
        start = info["x_pos"]
        seen = {}
        for action in map(int, TO_THE_FLAG[:200]):
            observation, _, terminated, _, info = env.step(action)
            assert not terminated
            seen.setdefault(info["x_pos"], observation)
        parts, begun = {x // mario.PART for x in seen}, []
        for _ in range(60):
            observation, info = env.reset(options=FIRST_FRAME)
            begun.append(info["x_pos"])
            assert np.array_equal(observation, anew if info["x_pos"] == start else seen[info["x_pos"]])
            assert info["score"] == info["x_pos"] and not info["flag_get"]
        later = {x // mario.PART for x in begun if x != start}
        assert 15 <= sum(x == start for x in begun) <= 45, "the start of the level has its share"
        assert len(later) > len(parts) / 2 and later <= parts
        assert {env.reset(seed=seed)[1]["x_pos"] for seed in range(20)} - {start}, "actors give seeds again and again"
    finally:
        env.close()


@needs_mario
@others
def test_greys_of_more_contrast_are_the_same(other: str) -> None:
    frames = []
    for backend in ("nes_py", other):
        env = MarioEnv("1-2", backend=backend, size=42, view="contrast")
        frames.append([env.reset(options=FIRST_FRAME)[0], *(env.step(action)[0] for action in (1, 2, 3))])
        env.close()
    assert np.array_equal(frames[0], frames[1]) and len(np.unique(frames[0])) > 5


@needs_mario
@others
def test_each_episode_draws_one_of_several_levels_and_begins_anew_in_parts_of_that_one(other: str) -> None:
    alone = [MarioEnv(stage, backend=other) for stage in ("1-1", "4-1")]
    starts = {(world, 1): env.reset(options=FIRST_FRAME)[0] for world, env in zip((1, 4), alone, strict=True)}
    env = MarioEnv("1-1,4-1", backend=other, restarts=0.5)
    begun: dict[tuple[int, int], list[int]] = {stage: [] for stage in starts}
    try:
        for episode in range(60):
            observation, info = env.reset(seed=episode if episode in (0, 30) else None, options=FIRST_FRAME)
            stage = info["world"], info["stage"]
            if info["x_pos"] == 40:
                assert np.array_equal(observation, starts[stage])
            begun[stage].append(info["x_pos"])
            for _ in range(30):
                *_, ended, _, info = env.step(1)
                assert (info["world"], info["stage"]) == stage and not info["flag_get"]
                if ended:
                    break
        assert all(len(found) > 15 and len(set(found)) > 2 for found in begun.values())
    finally:
        for each in (env, *alone):
            each.close()
    with pytest.raises(EnvError, match="several stages need --env.backend native or retro, not nes_py"):
        MarioEnv("1-1,4-1", backend="nes_py")


@needs_mario
@others
def test_the_same_seed_and_actions_give_the_same_restarts(other: str) -> None:
    def starts() -> list[int]:
        env, found = MarioEnv(backend=other, restarts=0.5), []
        env.reset(seed=5)
        for number, action in enumerate(map(int, TO_THE_FLAG[:300])):
            if env.step(action)[2] or number % 40 == 39:
                found.append(env.reset()[1]["x_pos"])
        env.close()
        return found

    first = starts()
    assert first == starts() and len(set(first)) > 2


@needs_mario
@others
def test_evaluation_begins_at_the_start_and_nes_py_does_without_restarts(other: str) -> None:
    def restarts(evaluation: bool, backend: str) -> float:
        config = EnvConfig(id="mario", options={"backend": backend, "restarts": 0.5})
        env = cast(MarioEnv, make_env(config, evaluation=evaluation))
        env.close()
        assert bool(open_family(config).notes()) is (backend == "nes_py")
        return env._restarts

    assert (restarts(False, other), restarts(True, other), restarts(False, "nes_py")) == (0.5, 0.0, 0.0)


NATIVE = MAKE.replace("retro", "native")


@needs_mario
def test_what_cannot_be_compiled_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("HEADRACE_CACHE", raising=False)
    monkeypatch.setenv("CC", "no-such-compiler")
    status, _, error = in_a_process(NATIVE)
    assert status == 1 and "there is no compiler no-such-compiler; --env.backend retro" in error.splitlines()[-1]
    assert in_a_process(NATIVE.replace("native", "auto"))[0] == 0
    monkeypatch.setenv("CC", "'")
    assert "the environment variable CC is no command: No closing quotation" in in_a_process(NATIVE)[2].splitlines()[-1]
    refuses = tmp_path / "refuses"
    refuses.write_text("#!/bin/sh\necho nes.c:1:1: error: no >&2\nexit 1\n")
    refuses.chmod(0o755)
    monkeypatch.setenv("CC", str(refuses))
    assert "refuses nes.c: nes.c:1:1: error: no" in in_a_process(NATIVE)[2].splitlines()[-1]
    assert not list(tmp_path.rglob("*.so"))
    monkeypatch.delenv("CC")
    (tmp_path / "headrace/compiled").chmod(0o777)
    assert "may be written by others: remove it" in in_a_process(NATIVE)[2].splitlines()[-1]


SANITIZED = """\
#include "{source}"
#include <stdlib.h>
int main(void) {{
    static uint8_t file[50000], noise[50000];
    FILE *opened = fopen("{game}", "rb");
    int size = (int)fread(file, 1, sizeof file, opened);
    Nes *n = malloc(sizeof *n);
    if (nes_insert(noise, sizeof noise) || nes_insert(file, 1000) || !nes_insert(file, size)) return 1;
    nes_power_on(n);
    srand(1);
    for (int i = 0; i < 1500; i++) nes_run(n, 1 + i % 4, rand() & 255);
    for (int i = 0; i < 300; i++) {{ /* whatever the memory and the program hold */
        for (int j = 0; j < 40; j++) ((uint8_t *)n)[rand() % 0x1120] = (uint8_t)rand();
        cartridge.prg[rand() & 0x7fff] = (uint8_t)rand();
        nes_run(n, 2, rand() & 255);
    }}
    free(n);
    return fclose(opened);
}}
"""


@needs_mario
@needs_compiler
def test_it_keeps_within_its_memory_whatever_the_game_does(tmp_path: Path) -> None:
    (tmp_path / "main.c").write_text("#include <stdio.h>\n" + SANITIZED.format(source=SOURCE, game=cartridge()))
    command = [
        *compiler(),
        "-std=c99",
        "-g",
        "-O1",
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover",
        "main.c",
        "-o",
        "main",
    ]
    if subprocess.run(command, cwd=tmp_path, capture_output=True).returncode:
        pytest.skip("this compiler has no sanitizers")
    done = subprocess.run([tmp_path / "main"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
