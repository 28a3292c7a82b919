"""Trying an environment before a run, in a process of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import msgspec
import numpy as np
import pytest
from gymnasium import spaces

from actors.config import EnvConfig
from actors.envs.foreign.batched.vector import VectorSimulators
from actors.envs.foreign.masks import MaskFromInfo
from actors.envs.make import EnvError, make_env, read_env
from actors.envs.preflight import parent
from actors.envs.preflight.notes import integer_notes, left_out_notes, scaling_notes, stack_notes
from actors.envs.preflight.parent import Line, preflight
from actors.envs.spaces import describe_space, read_space
from actors.envs.spec import experience_spec
from tests.actors.playing import TOYS, refusal, tried
from tests.actors.toy_envs import OneAtATime
from tests.harness.waiting import wait_until

SEGFAULT = "signal SIGSEGV" if os.name == "posix" else "exit status 11"
GUARDED = "tests.extension.stranger.guarded:Guarded"  # raises where a forbidden action arrives


@pytest.mark.parametrize("name", ["CartPole-v1", f"{TOYS}:Rover", f"{TOYS}:Chatty", GUARDED])
def test_a_good_environment_gives_the_spec_that_its_spaces_give(name: str) -> None:
    config = EnvConfig(id=name)
    facts = preflight(config, "lz4")
    assert facts.spec == experience_spec(make_env(config), config, "lz4")
    assert 0 < facts.slowest_seconds < config.preflight_seconds


def test_times_are_measured_and_what_is_being_done_is_told_again_and_again_where_it_takes_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parent, "TELL_SECONDS", 0.1)
    told: list[str] = []
    assert preflight(EnvConfig(id=f"{TOYS}:SlowReset"), "none", tell=told.append).slowest_seconds >= 0.3 and len(told) >= 3
    assert preflight(EnvConfig(id=f"{TOYS}:SlowMake"), "none").make_seconds >= 0.3


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("RaisesInReset", "in reset: FileNotFoundError: no level file level.bin"),
        ("DiesInStep", f"died in step ({SEGFAULT}): assertion failed in physics"),
        ("LeavesInReset", "died in reset (exit status 7)"),
        ("RaisesInReset", f"{Path('tests/actors/toy_envs.py')}:"),
        ("NoInfoFromReset", "reset must return a dict as info, not None"),
        ("NoInfoFromStep", "step must return a dict as info, not None"),
        ("OldStep", "step must return (observation, reward, terminated, truncated, info), not 4 values"),
        ("WrongShape", "step gave observation of shape (4,); its observation_space says (3,)"),
        ("NotFinite", "step gave observation with a value that is not finite"),
        ("NotFiniteReward", "it must be one finite number"),
        ("NothingAllowed", "the action_mask [0, 0, 0] must be 1 where an action is allowed, 0 elsewhere, not all 0"),
        ("Camra", "has no Camra; did you mean Camera?"),
    ],
)
def test_a_bad_environment_is_one_line_that_names_the_phase(name: str, message: str) -> None:
    told = refusal(preflight, EnvConfig(id=f"{TOYS}:{name}"), "none")
    assert message in told and f"{TOYS}:{name}" in told and "NoneType" not in told


@pytest.mark.skipif(os.name != "posix", reason="forks")
def test_an_environment_that_hangs_is_killed_with_its_helpers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    note = tmp_path / "group"
    monkeypatch.setenv("TOY_ENV_NOTE", str(note))
    config = EnvConfig(id=f"{TOYS}:HangsInReset", preflight_seconds=5.0)
    told = refusal(preflight, config, "none")
    if not note.exists():  # a busy machine has not come as far as the reset
        config = msgspec.structs.replace(config, preflight_seconds=60.0)
        told = refusal(preflight, config, "none")
    assert f"reset did not return within {config.preflight_seconds:g} s (raise --env.preflight_seconds" in told
    group = int(note.read_text())
    wait_until(lambda: not _group_lives(group), what="no process of the environment is left behind")


def _group_lives(group: int) -> bool:
    """Whether a process of the group still runs; one that is dead and waits for a parent to notice does not."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, member_of = stat.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(member_of) == group and state != "Z":
            return True
    return False


def test_the_parent_imports_neither_torch_nor_gymnasium() -> None:
    heavy = "print([m for m in ('torch', 'gymnasium', 'cv2') if m in sys.modules])"
    code = f"import sys, actors.envs.preflight, actors.envs.make; {heavy}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ}, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("env", "options", "codes", "endless"),
    [
        ("Codes", {}, True, True),
        ("Codes", {"bound": 10}, False, True),
        ("Codes", {"greatest": 200}, False, True),
        ("Codes", {"greatest": 0}, False, True),  # a screen that is black at first
        ("limited", {}, False, False),
        ("Codes", {"max_episode_steps": 50}, True, False),
    ],
)
def test_what_is_often_a_mistake_is_noted(env: str, options: dict[str, int], codes: bool, endless: bool) -> None:
    facts = preflight(read_env({"id": f"{TOYS}:{env}"} | options), "none")
    notes = facts.notes
    assert facts.endless == endless
    assert any("none above 10 was seen: such a small one counts as a grid of codes" in note for note in notes) == codes
    assert (facts.spec.field("observation").scale == 1 / 10) == (codes or options == {"bound": 10})
    assert any("has ended in 2,000 random steps" in note and "--env.max-episode-steps" in note for note in notes) == endless


@pytest.mark.parametrize("quantise", [False, True])
def test_an_image_of_floats_is_noted_unless_it_is_quantised(quantise: bool) -> None:
    facts = preflight(EnvConfig(id=f"{TOYS}:FloatPicture", quantise=quantise), "none")
    (field,) = facts.spec.fields
    assert field.is_image == quantise
    assert any("an image of floats" in note and "--env.quantise true" in note for note in facts.notes) != quantise


@pytest.mark.parametrize(
    ("high", "said"), [(255, ""), (65_535, "stored in 256 levels"), (2**62, "reads it as a vector of unscaled numbers")]
)
def test_an_image_of_integers_that_are_not_bytes_is_noted(high: int, said: str) -> None:
    found = integer_notes(
        spaces.Dict({"depth": spaces.Box(0, high, (84, 84), np.int64), "arm": spaces.Box(0, high, (3,), np.int64)})
    )
    assert len(found) == bool(said)
    assert all(said in note and f"depth is an image of int64 with values from 0 to {high:,}" in note for note in found)


def test_an_image_that_is_a_stack_of_its_own_is_noted() -> None:
    stacked = spaces.Dict({"speed": spaces.Box(-1, 1, (2,), np.float32), "eye": spaces.Box(0, 255, (4, 84, 84), np.uint8)})
    env = gymnasium.Env()
    env.observation_space, env.action_space = stacked, spaces.Discrete(2)
    config = EnvConfig(id="toy")
    spec = experience_spec(env, config, "none")
    assert "eye is an image of 4 channels" in "".join(stack_notes(stacked, spec, config))
    assert stack_notes(stacked, spec, EnvConfig(id="toy", stack=1)) == ()


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Line]:
    """The last word of the pre-flight's child about some environments beside each other, here without a process of its own."""

    def look(name: str, copies: int, when: str = "make", **section: Any) -> Line:
        monkeypatch.setattr(OneAtATime, "ports", set())
        monkeypatch.setattr(OneAtATime, "when", when)
        return tried(tmp_path, {"id": f"{TOYS}:{name}"} | section, copies)

    return look


@pytest.mark.parametrize("when", ["make", "reset", "step"])
@pytest.mark.parametrize("copies", [0, 3])
def test_what_only_one_environment_can_have_is_found_before_the_launch(
    copies: int, when: str, beside: Callable[..., Line]
) -> None:
    error = beside("OneAtATime", copies, when).error
    assert " environments in one process failed, and alone it did not" in error and "of 1 " not in error
    assert "address 5000 is in use" in error
    assert "--actors.envs-per-actor 1" in error and "\n" not in error
    assert beside("OneAtATime", 1, when).facts is not None
    assert beside("numbered", copies, when).facts is not None, "each has its own port"


def test_slow_environments_are_tried_as_far_as_the_time_limit_allows(beside: Callable[..., Line]) -> None:
    facts = beside("OneAtATime", 8, "never", seconds=0.2, preflight_seconds=1.0).facts
    assert facts is not None and any("of the 8 environments of an actor were tried" in note for note in facts.notes)


def test_wrappers_with_statistics_of_their_own_are_noted_with_the_option_to_use_instead(beside: Callable[..., Line]) -> None:
    for options, names in ({}, ["observation"]), ({"reward": True}, ["reward", "observation"]):
        facts = beside("scaled", 1, **options).facts
        found = [note for note in facts.notes if "statistics of its own" in note] if facts else []
        assert all(f"take --algorithm.normalize-{name} true" in note for name, note in zip(names, found, strict=True))


def test_a_wrapper_of_a_batch_is_noted_too() -> None:
    batch = gymnasium.wrappers.vector.NormalizeReward(
        gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="vector_entry_point")
    )
    space = batch.single_observation_space
    simulators = VectorSimulators(batch, space, batch.single_action_space)
    (note,) = scaling_notes(make_env(EnvConfig(id="CartPole-v1")), simulators)
    assert "--algorithm.normalize-reward true" in note


def test_texts_are_left_out_and_a_mask_that_is_not_used_is_noted() -> None:
    config = EnvConfig(id=f"{TOYS}:Told")
    env = make_env(config)
    spec = experience_spec(env, config, "none")
    text, mask = left_out_notes(env, spec)
    assert [field.name for field in spec.fields] == ["place"] and "mission is text" in text and "MaskFromInfo" in mask
    assert read_space(describe_space(env.observation_space)) == spaces.Dict({"place": env.observation_space["place"]})  # type: ignore[index]
    keys = EnvConfig(id=f"{TOYS}:Keyboard")
    (note,) = left_out_notes(keyboard := make_env(keys), experience_spec(keyboard, keys, "none"))
    assert "it has action_masks(), which is not used: such a mask is of Discrete actions only" in note
    masked = MaskFromInfo(env)
    assert masked.reset()[0]["action_mask"].tolist() == [1, 0]
    limited = MaskFromInfo(gymnasium.wrappers.TimeLimit(make_env(config), 1))
    limited.reset()
    seen, _, terminated, truncated, _ = limited.step(0)
    assert truncated and not terminated and seen["action_mask"].tolist() == [1, 0], "its value is estimated"
    assert len(left_out_notes(masked, experience_spec(masked, config, "none"))) == 1


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1", "snake"])
def test_usual_environments_have_no_notes(env: str) -> None:
    assert preflight(read_env({"id": env}), "none").notes == ()


@pytest.mark.skipif(os.name != "posix", reason="a shell script")
def test_a_required_package_that_is_missing_is_named_with_what_installs_it() -> None:
    code = "raise ModuleNotFoundError(\"No module named 'gymnasium'\")"
    with pytest.raises(EnvError, match="^gymnasium is not installed: .*pip install "):
        preflight(EnvConfig(id="CartPole-v1"), "none", [sys.executable, "-c", code])
    elsewhere = shutil.which("sh") or "sh"
    with pytest.raises(EnvError, match="the process died in import"):
        preflight(EnvConfig(id="CartPole-v1"), "none", [elsewhere, "-c", "echo \"No module named 'gymnasium'\" >&2; exit 1"])
