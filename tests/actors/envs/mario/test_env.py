"""Super Mario Bros.: what is progress, an end, an observation. The emulator is deterministic, so runs are scripts."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from importlib.util import find_spec
from typing import cast
from unittest.mock import Mock

import cv2
import numpy as np
import pytest

from actors.config import EnvConfig
from actors.envs.make import EnvError, make_env, open_family, read_env
from actors.envs.mario import console, family, native_console
from actors.envs.mario import env as mario
from actors.envs.mario.console import BUTTONS, patch_rom_header
from actors.envs.mario.env import FrameShrinker, MarioEnv, noop_frames
from tests.actors.playing import refusal

needs_mario = pytest.mark.skipif(find_spec("nes_py") is None, reason="nes-py is not installed: pip install 'headrace[mario]'")

# From the start of 1-1 to the flag, one digit per action of the simple set.
TO_THE_FLAG = (
    "444231112444444444442441344144421414134331111444244344443444444341444433344414434423444343342244113434324411434244444241"
    "434241444344424413414444344424134434441444343424132444442114444441141444324434342432441442344424414424414431142444214441"
    "432444144222242211434444441443434444444314241442431441444344111311244244444114314344344444134244442443444312242424444444"
    "4442411414424344444442444431441441444444434234424444441144443243414421334424441444"
)
# Onto the pipe at x = 916 of 1-1; then down, in the complex set.
ONTO_THE_PIPE = "44441244234324234411444443441314413342421412441444143442423434313444344431444431444424423444441122412111"
DOWN = 10
FIRST_FRAME = {"noops": 0}  # these scripts begin in the level's first frame


@pytest.fixture(autouse=True)
def nes_py(monkeypatch: pytest.MonkeyPatch) -> None:
    """The emulator of these tests: the others are compared with it in test_other_consoles.py."""
    monkeypatch.setattr(family, "find_spec", lambda name: None)
    monkeypatch.setattr(native_console, "can_be_used", lambda: False)


@pytest.fixture
def env() -> Iterator[MarioEnv]:
    env = cast(MarioEnv, make_env(EnvConfig(id="mario")))
    yield env
    env.close()


def naive_shrink(frame: np.ndarray) -> np.ndarray:
    """Grey by the usual weights, the top 32 rows black, each pixel the mean of the area that it covers."""
    blue, green, red = (frame[..., channel].astype(np.float64) for channel in range(3))
    grey = 0.114 * blue + 0.587 * green + 0.299 * red
    grey[:32] = 0

    def cover(size: int) -> np.ndarray:  # [84, size]: how much of each source row a target row covers
        edges = np.linspace(0, size, 85)
        low, high = edges[:-1, None], edges[1:, None]
        places = np.arange(size)[None]
        return np.clip(np.minimum(high, places + 1) - np.maximum(low, places), 0, 1) / (size / 84)

    return cover(240) @ grey @ cover(256).T


def test_a_frame_is_shrunk_by_area_with_the_status_lines_masked() -> None:
    frame = np.random.default_rng(0).integers(256, size=(240, 256, 4)).astype(np.uint8)
    shrink = FrameShrinker(240, 256, 32, 84)
    small = shrink(lambda rows: cv2.cvtColor(frame[32:], cv2.COLOR_BGRA2GRAY, dst=rows))
    assert small.shape == (84, 84) and small.dtype == np.uint8
    assert np.abs(small - naive_shrink(frame)).max() <= 1.5
    assert not small[:11].any()
    kept = small.copy()
    shrink(lambda rows: rows.fill(0))
    assert np.array_equal(small, kept), "a new array each time"


@needs_mario
def test_the_observed_frame_has_the_size_that_is_asked_for() -> None:
    env = make_env(read_env({"id": "mario", "size": 42}))
    seen = [env.reset()[0], env.step(1)[0]]
    assert [frame.shape for frame in seen] == [(42, 42)] * 2 and env.observation_space.shape == (42, 42)
    env.close()
    assert "size" in refusal(make_env, read_env({"id": "mario", "size": 20}))


@needs_mario
def test_greys_of_more_contrast_tell_enemies_from_hills_and_leave_the_status_lines_out(env: MarioEnv) -> None:
    other = make_env(read_env({"id": "mario", "view": "contrast", "size": 208}))
    masked, seen = env.reset()[0], other.reset()[0]
    assert not masked[:11].any() and seen[:8].all(), "the sky instead of a black bar"
    goomba, hill, sky, brick = 0xE45C10, 0x00A800, 0x6888FC, 0xE45C10
    frame = np.array([[[colour & 255, colour >> 8 & 255, colour >> 16, 0] for colour in (goomba, hill, sky, brick)]], np.uint8)
    found = {name: np.empty((1, 4), np.uint8) for name in mario.VIEWS}
    for name, (grey, _) in mario.VIEWS.items():
        grey(frame, found[name])
    assert found["grey"].tolist() == [[124, 99, 140, 124]] and found["contrast"].tolist() == [[187, 50, 114, 187]]
    other.close()


def test_idle_frames_are_0_to_30() -> None:
    random = np.random.default_rng(0)
    assert {noop_frames(None, random) for _ in range(1_000)} == set(range(31)) and noop_frames({"noops": 30}, random) == 30
    with pytest.raises(ValueError, match="0 to 30"):
        noop_frames({"noops": 31}, random)


@pytest.mark.parametrize("stage", ["0-1", "9-1", "1-5", "1", "1-", "one", "1-1-1", "1-1,", "1-1,9-1"])
def test_a_stage_that_is_not_there_is_refused(stage: str) -> None:
    assert "no such stage; write mario:1-1 to mario:8-4" in refusal(make_env, EnvConfig(id=f"mario:{stage}"))


def test_missing_packages_name_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gym_super_mario_bros", None)
    with pytest.raises(EnvError, match=r"pip install .*\[mario\]'|--deploy\.actor-python"):
        make_env(EnvConfig(id="mario"))


@needs_mario
def test_actions_are_called_by_their_buttons(env: MarioEnv) -> None:
    names = open_family(EnvConfig(id="mario")).action_names(env)
    assert names == ["NOOP", "right", "right+A", "right+B", "right+B+A", "A", "left"]


@needs_mario
@pytest.mark.parametrize("version", ["7.0.1", "10.0.0"])
def test_a_generation_that_is_not_known_is_refused_and_never_mended(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: version)
    monkeypatch.setattr(console, "patch_rom_header", lambda rom: pytest.fail("patched"))
    with pytest.raises(EnvError, match=rf"needs nes-py 8.2 \(Python before 3.13\) or 9 \(from 3.13\), not {version}"):
        make_env(read_env({"id": "mario", "backend": "nes_py"}))


def test_the_sizes_in_a_cartridge_header_do_not_overflow() -> None:
    class Rom:
        header = np.array([0, 0, 0, 0, 64, 40], np.uint8)

    patch_rom_header(Rom)
    assert Rom().prg_rom_size * 2**10 == 2**20  # type: ignore[attr-defined]
    assert Rom().chr_rom_size * 2**10 == 320 * 2**10  # type: ignore[attr-defined]


@needs_mario
def test_making_it_prints_nothing() -> None:
    code = "from actors.config import EnvConfig; from actors.envs.make import make_env; make_env(EnvConfig()).reset()"
    done = subprocess.run([sys.executable, "-W", "default", "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")


@needs_mario
@pytest.mark.parametrize(("name", "size"), [("right", 5), ("", 7), ("simple", 7), ("complex", 12)])
def test_the_action_sets_never_pause_the_game(name: str, size: int) -> None:
    env = make_env(EnvConfig(id="mario", options={"actions": name}))
    assert env.action_space.n == size  # type: ignore[attr-defined]
    assert not any(press & (BUTTONS["start"] | BUTTONS["select"]) for press in env._presses)  # type: ignore[attr-defined]
    env.close()
    assert "mario has right, simple, complex" in refusal(make_env, EnvConfig(id="mario", options={"actions": "all"}))


@needs_mario
@pytest.mark.parametrize("stage", ["1-1", "1-2", "2-2", "4-2", "5-3", "8-4"])
def test_a_stage_begins_where_the_player_may_move(stage: str) -> None:
    env = make_env(EnvConfig(id=f"mario:{stage}"))
    observation, info = env.reset(options=FIRST_FRAME)
    assert f"{info['world']}-{info['stage']}" == stage
    assert (info["x_pos"], info["life"], info["coins"]) == (40, 2, 0)
    assert info["time"] in (300, 400)
    assert observation.std() > 10  # a level, not a black screen
    walked = [env.step(1)[4]["x_pos"] for _ in range(6)]
    assert walked[-1] > 40
    env.close()


@needs_mario
def test_the_same_seed_begins_alike_in_every_instance(env: MarioEnv) -> None:
    other = make_env(EnvConfig(id="mario"))
    first, _ = env.reset(seed=1, options=FIRST_FRAME)
    for seed, script in enumerate(("3334443", "1516", "3334443")):
        observation, _ = env.reset(options=FIRST_FRAME)
        assert np.array_equal(observation, first)
        observation, twin = env.reset(seed=seed)[0], other.reset(seed=seed)[0]
        assert np.array_equal(observation, twin)
        for digit in script:
            left, right = env.step(int(digit)), other.step(int(digit))
            assert np.array_equal(left[0], right[0]) and left[1:] == right[1:]
    other.close()


@needs_mario
def test_episodes_begin_with_drawn_idle_frames(env: MarioEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    advance = Mock(wraps=env.console.advance)
    monkeypatch.setattr(env.console, "advance", advance)
    for seed in range(40):
        env.reset(seed=seed)
    frames = {call.args[0] for call in advance.call_args_list}
    assert frames <= set(range(31)) and len(frames) > 10


@needs_mario
def test_idle_frames_after_a_reset_are_those_asked_for(env: MarioEnv) -> None:
    env.reset(options=FIRST_FRAME)
    env.console.advance(24)
    expected = env._observation()
    observation, info = env.reset(options={"noops": 24})
    assert np.array_equal(observation, expected)
    assert info["x_pos"] == 40


@needs_mario
def test_reaching_the_flag_is_a_success_that_pays_for_the_way_and_the_flag(env: MarioEnv) -> None:
    _, info = env.reset(options=FIRST_FRAME)
    total, furthest = 0.0, info["x_pos"]
    for digit in TO_THE_FLAG:
        _, reward, terminated, truncated, info = env.step(int(digit))
        gain = max(0, info["x_pos"] - furthest)
        furthest += gain
        assert reward == pytest.approx(gain - 0.001 + (50 if terminated else 0))
        assert info["score"] == furthest
        total += reward
    assert terminated and not truncated and info["flag_get"] and info["is_success"]
    assert total == pytest.approx(info["x_pos"] - 40 + 50 - 0.001 * len(TO_THE_FLAG))
    assert info["x_pos"] > 3_100


@needs_mario
def test_losing_a_life_ends_the_episode_and_costs_25(env: MarioEnv) -> None:
    env.reset(options=FIRST_FRAME)
    for _ in range(60):
        _, reward, terminated, truncated, info = env.step(3)  # runs into the first enemy
        if terminated:
            break
    assert terminated and not truncated
    assert reward == pytest.approx(-25.001)
    assert not info["is_success"] and not info["flag_get"]
    _, info = env.reset()
    assert info["life"] == 2


@needs_mario
def test_going_back_costs_only_time_and_the_same_ground_is_not_paid_twice(env: MarioEnv) -> None:
    env.reset(options=FIRST_FRAME)
    out = sum(env.step(1)[1] for _ in range(10))
    assert out > 30
    back = [env.step(6)[1] for _ in range(12)]
    assert back[-1] == pytest.approx(-0.001)
    x = env.step(6)[4]["x_pos"]
    rewards = []
    while x < env.step(0)[4]["score"] - 12:
        _, reward, _, _, info = env.step(1)
        rewards.append(reward)
        x = info["x_pos"]
    assert rewards and all(reward == pytest.approx(-0.001) for reward in rewards)


@needs_mario
def test_a_pipe_to_a_bonus_room_and_back_pays_no_more_than_the_cap() -> None:
    env = make_env(EnvConfig(id="mario", options={"actions": "complex"}))
    env.reset(options=FIRST_FRAME)
    for digit in ONTO_THE_PIPE:
        before = env.step(int(digit))[4]
    _, reward, _, _, info = env.step(DOWN)
    assert (before["x_pos"], info["x_pos"]) == (916, 24)  # the room has an axis of its own
    assert reward == pytest.approx(-0.001)
    assert info["score"] == 916
    for step in range(60):
        _, reward, terminated, _, info = env.step(4 if step % 12 < 6 else 1)
        assert not terminated and float(reward) <= 30
        if info["x_pos"] > 1_000:
            break
    assert info["x_pos"] == info["score"] == 2_616  # back on the surface, far ahead
    assert reward == pytest.approx(29.999)
    env.close()


@needs_mario
def test_left_of_the_start_x_is_below_zero_and_falling_out_of_a_cloud_area_is_no_death(env: MarioEnv) -> None:
    env.reset()
    env.console.ram[mario.X_PAGE], env.console.ram[mario.X_PIXEL] = 255, 250
    assert env._x() == -6, "not 65535"
    env.console.ram[mario.Y_PAGE] = 2
    assert env._died()
    env.console.ram[mario.CLOUD_AREA] = 1
    assert not env._died()


@needs_mario
def test_a_warp_to_another_level_is_a_success(env: MarioEnv) -> None:
    env.reset()
    env.console.ram[mario.WORLD] = 3
    _, reward, terminated, _, info = env.step(0)
    assert terminated and info["is_success"] and reward == pytest.approx(49.999)


@needs_mario
def test_a_warp_zone_is_no_progress(env: MarioEnv) -> None:
    env.reset()
    env.step(1)
    env.console.ram[mario.WARP_ZONE] = 4
    before = env.step(0)[4]
    for _ in range(5):
        _, reward, _, _, info = env.step(1)
        assert reward == pytest.approx(-0.001)
    assert info["x_pos"] > before["x_pos"] and info["score"] == before["score"]


@needs_mario
def test_standing_still_is_truncated_after_300_steps() -> None:
    env = make_env(EnvConfig(id="mario", options={"skip": 1}))
    env.reset(options=FIRST_FRAME)
    ends = [env.step(0)[2:4] for _ in range(300)]
    assert ends[-1] == (False, True)
    assert not any(terminated or truncated for terminated, truncated in ends[:-1])
    env.close()


@needs_mario
def test_a_step_limit_of_the_users_truncates_and_closing_twice_is_no_error() -> None:
    env = make_env(EnvConfig(id="mario", max_episode_steps=3))
    env.reset()
    assert [env.step(1)[3] for _ in range(3)] == [False, False, True]
    env.close()
    env.close()


@needs_mario
def test_the_whole_screen_can_be_shown(env: MarioEnv) -> None:
    env.reset()
    screen = env.render()
    assert screen.shape == (240, 256, 3) and screen.dtype == np.uint8
    assert screen[100, 5].tolist() == [104, 136, 252]  # the sky is blue, in red, green, blue
