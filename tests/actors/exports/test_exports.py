"""Exported policies against the policies themselves."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import headrace
from actors.exports.c.header import identifier, write_header
from actors.exports.c.run import CRunner
from actors.exports.check import compare, refuse
from actors.exports.onnx.run import OnnxRunner
from actors.exports.write import main, onnx_payload
from learner.weights.checkpoint import CheckpointError
from tests.actors.exports.portable import portable, save

pytest.importorskip("onnxruntime")

BOX = spaces.Box(-np.inf, np.inf, (5,), np.float32)
BOUNDED = spaces.Box(np.array([-1.0, 0.0, -5.0], np.float32), np.array([1.0, 2.0, 3.0], np.float32))
TWO, REALS = spaces.Discrete(2), spaces.Box(np.array([-1.0, -2.0], np.float32), np.array([1.0, 3.0], np.float32))
GOAL = spaces.Dict({"observation": BOX, "achieved_goal": BOUNDED, "desired_goal": BOUNDED})
MASKED = spaces.Dict({"seen": BOX, "action_mask": spaces.MultiBinary(4)})
MANY = spaces.Dict(
    {"kind": spaces.Discrete(3, start=2), "parts": spaces.MultiDiscrete([2, 4]), "bits": spaces.MultiBinary(3), "where": BOUNDED}
)
PICTURE = spaces.Box(0, 255, (36, 36, 3), np.uint8)
MIXED = spaces.Dict({"picture": spaces.Box(0, 255, (36, 40), np.uint8), "where": BOUNDED})
FLOATS = spaces.Box(0.0, 2.0, (36, 36, 1), np.float32)
INTEGERS = spaces.Box(-500, 500, (40, 40), np.int32)
JOINT = spaces.MultiDiscrete([3, 2], start=[1, 0])
WIDE = spaces.MultiDiscrete([40, 40, 3])
REST = spaces.Tuple((spaces.MultiBinary(2), spaces.Discrete(3, start=-1)))
PARTS = spaces.Dict({"first": spaces.Discrete(2, start=4), "rest": REST})
FAR, HALF = spaces.Box(100.0, 200.0, (3,), np.float32), spaces.Box(-2.0, 7.0, (), np.float16)
SMALL = {"hidden": 16}

DENSE: dict[str, tuple[spaces.Space[Any], spaces.Space[Any], dict[str, Any], dict[str, Any]]] = {
    "dqn": (BOX, spaces.Discrete(3, start=-1), {"name": "dqn", **SMALL}, {}),
    "dqn normalised": (BOX, TWO, {"name": "dqn", **SMALL, "normalize_observation": True, "normalize_reward": True}, {}),
    "masked": (MASKED, spaces.Discrete(4), {"name": "dqn", **SMALL}, {}),
    "pqn": (BOX, TWO, {"name": "pqn", **SMALL}, {}),
    "ppo": (MANY, TWO, {"name": "ppo", **SMALL, "normalize_observation": True}, {}),
    "ppo continuous": (BOUNDED, REALS, {"name": "ppo", **SMALL, "normalize_observation": True}, {}),
    "ppo quantised": (BOUNDED, REALS, {"name": "ppo", **SMALL}, {"quantise": True}),
    "ppo joint": (BOX, JOINT, {"name": "ppo", **SMALL}, {}),
    "ppo wide": (BOX, WIDE, {"name": "ppo", **SMALL}, {}),
    "ppo structured": (BOX, PARTS, {"name": "ppo", **SMALL}, {}),
    "ppo far": (FAR, HALF, {"name": "ppo", **SMALL}, {"quantise": True}),
    "sac": (BOX, REALS, {"name": "sac", **SMALL, "layer_norm": True}, {}),
    "sac goals": (GOAL, REALS, {"name": "sac", **SMALL, "normalize_observation": True}, {}),
    "reppo": (BOX, REALS, {"name": "reppo", **SMALL}, {}),
}
OTHERS: dict[str, tuple[spaces.Space[Any], spaces.Space[Any], dict[str, Any], dict[str, Any]]] = {
    "stack": (BOX, TWO, {"name": "dqn", **SMALL}, {"stack": 3}),
    "stack normalised": (MANY, TWO, {"name": "ppo", **SMALL, "normalize_observation": True}, {"stack": 2}),
    "lstm": (BOX, TWO, {"name": "ppo", **SMALL, "memory": "lstm"}, {}),
    "gru": (BOUNDED, REALS, {"name": "ppo", **SMALL, "memory": "gru", "normalize_observation": True}, {}),
    "r2d2": (BOX, TWO, {"name": "r2d2", **SMALL}, {}),
    "compact": (PICTURE, TWO, {"name": "dqn", "network": "compact", **SMALL}, {}),
    "nature": (PICTURE, TWO, {"name": "ppo", "network": "nature", **SMALL}, {"stack": 2}),
    "mixed": (MIXED, TWO, {"name": "pqn", "network": "compact", **SMALL}, {}),
    "floats": (FLOATS, TWO, {"name": "dqn", **SMALL}, {}),
    "integers": (INTEGERS, TWO, {"name": "dqn", "network": "compact", **SMALL}, {}),
}


@pytest.mark.parametrize("name", [*DENSE, *OTHERS])
def test_an_onnx_model_acts_as_the_policy(name: str) -> None:
    observation, action, algorithm, env = (DENSE | OTHERS)[name]
    policy = portable(observation, action, algorithm, **env)
    agreement = compare(policy, OnnxRunner(onnx_payload(policy)))
    assert agreement.exact, str(agreement)


@pytest.mark.parametrize("name", DENSE)
def test_a_c_header_acts_as_the_policy(name: str, tmp_path: Path) -> None:
    observation, action, algorithm, env = DENSE[name]
    policy = portable(observation, action, algorithm, **env)
    text, outputs = write_header(policy, "robot")
    (tmp_path / "robot.h").write_text(text, encoding="utf-8")
    with CRunner(policy, tmp_path / "robot.h", "robot", outputs, "-Wall", "-Wextra", "-Werror") as runner:
        agreement = compare(policy, runner)
    assert agreement.exact, str(agreement)


def test_a_policy_that_acts_otherwise_is_refused() -> None:
    policy = portable(BOX, TWO, {"name": "dqn", **SMALL})
    other = OnnxRunner(onnx_payload(portable(BOX, TWO, {"name": "dqn", **SMALL}, seed=1)))
    agreement = compare(policy, other)
    assert agreement.actions > 100 and not agreement.exact
    with pytest.raises(CheckpointError, match="nothing is written.*other actions"):
        refuse(agreement, "ONNX")


@pytest.mark.parametrize("name", ["dqn", "ppo continuous", "lstm", "stack", "mixed", "masked"])
def test_a_loaded_onnx_file_acts_as_the_exported_one(name: str, tmp_path: Path) -> None:
    observation, action, algorithm, env = (DENSE | OTHERS)[name]
    policy = portable(observation, action, algorithm, **env)
    plain, onnx = tmp_path / "policy.safetensors", tmp_path / "policy.onnx"
    save(policy, plain)
    assert main(["onnx", str(plain), str(onnx)]) == 0
    ours, theirs = headrace.load(plain), headrace.load(onnx)
    observation.seed(3)
    for step in range(20):
        if step in (0, 7):
            ours.reset(), theirs.reset()
        seen = observation.sample()
        np.testing.assert_allclose(ours.predict(seen), theirs.predict(seen), atol=1e-5)
    assert theirs.about == ours.about


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_not_finite_are_refused(value: float) -> None:
    policy = portable(BOX, REALS, {"name": "sac", **SMALL})
    runner = OnnxRunner(onnx_payload(policy))
    next(iter(policy.weights.values())).reshape(-1)[0] = value
    with pytest.raises(CheckpointError, match="not finite"):
        compare(policy, runner)


def test_a_model_that_gives_no_number_does_not_agree() -> None:
    policy = portable(BOX, REALS, {"name": "sac", **SMALL})
    whole = OnnxRunner(onnx_payload(policy))

    def without(observation: Any, reset: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        action, outputs = whole(observation, reset)
        return action * np.nan, outputs * np.nan

    agreement = compare(policy, without)
    assert not agreement.exact and "differ by nan" in str(agreement)


def test_c_takes_any_number_for_an_index(tmp_path: Path) -> None:
    policy = portable(MANY, TWO, {"name": "dqn", **SMALL})
    text, outputs = write_header(policy, "robot")
    (tmp_path / "robot.h").write_text(text, encoding="utf-8")
    flags = ("-fsanitize=address,undefined", "-fno-sanitize-recover") if shutil.which("gcc") else ()
    with CRunner(policy, tmp_path / "robot.h", "robot", outputs, *flags) as runner:
        for odd in (-5.0, 1e30, np.nan, np.inf, 2.5):
            seen = {name: np.full((1, *(space.shape or ())), odd) for name, space in policy.observations.items()}
            assert runner(seen, np.ones(1, bool))[0] in (0, 1)


@pytest.mark.parametrize("name", ["outputs", "reset"])
def test_a_part_with_a_name_of_the_models_own_is_refused(name: str) -> None:
    policy = portable(spaces.Dict({name: BOX, "other": BOX}), TWO, {"name": "dqn", **SMALL})
    with pytest.raises(CheckpointError, match="rename it"):
        onnx_payload(policy)


def test_an_int8_model_is_smaller_and_says_how_many_actions_differ(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy = portable(BOX, TWO, {"name": "dqn", "hidden": 128})
    exported = tmp_path / "policy.safetensors"
    save(policy, exported)
    sizes = {}
    for form in ("onnx", "int8"):
        assert main([form, str(exported), str(tmp_path / f"{form}.onnx")]) == 0
        sizes[form] = (tmp_path / f"{form}.onnx").stat().st_size
    assert sizes["int8"] < 0.6 * sizes["onnx"] and "outputs by" in capsys.readouterr().out
    assert headrace.load(tmp_path / "int8.onnx").predict(np.zeros(5, np.float32)) in (0, 1)
    save(portable(PICTURE, TWO, {"name": "dqn", "network": "compact", **SMALL}), exported)
    assert main(["int8", str(exported), str(tmp_path / "images.onnx")]) == 0


@pytest.mark.parametrize(
    ("name", "said"), [("stack", "a stack of 3"), ("lstm", "a memory"), ("compact", "images"), ("mixed", "images")]
)
def test_a_header_of_what_c_has_not_is_refused(name: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    observation, action, algorithm, env = OTHERS[name]
    save(portable(observation, action, algorithm, **env), tmp_path / "policy.safetensors")
    assert main(["c", str(tmp_path / "policy.safetensors"), str(tmp_path / "policy.h")]) == 2
    assert said in (line := capsys.readouterr().err) and line.count("\n") == 1
    assert not (tmp_path / "policy.h").exists()


@pytest.mark.parametrize("content", [b"", b"\x08\x07", b"\x08" * 100, b"not a model at all"])
def test_a_damaged_or_foreign_model_is_one_line(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "policy.onnx"
    path.write_bytes(content)
    with pytest.raises(headrace.ConfigurationError) as error:
        headrace.load(path)
    assert "\n" not in str(error.value)


def test_a_cut_model_is_one_line(tmp_path: Path) -> None:
    whole = onnx_payload(portable(BOX, TWO, {"name": "dqn", **SMALL}))
    path = tmp_path / "policy.onnx"
    for share in (0.1, 0.5, 0.9, 0.99):
        path.write_bytes(whole[: int(share * len(whole))])
        with pytest.raises(headrace.ConfigurationError) as error:
            headrace.load(path)
        assert "\n" not in str(error.value)


IDENTIFIERS = {"lander": "lander", "my-robot 2": "my_robot_2", "2cm": "policy_2cm", "é": "policy_", "_x": "policy_x"}


@pytest.mark.parametrize(("stem", "name"), IDENTIFIERS.items())
def test_names_of_files_become_identifiers(stem: str, name: str) -> None:
    assert identifier(stem) == name
