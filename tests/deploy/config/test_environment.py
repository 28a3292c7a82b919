"""The env section: one flat table, whatever the environment, checked before anything is launched."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from deploy.cli import main as cli
from deploy.config.checks import fixed_keys
from deploy.config.files import FLAGS, Layer, read_run, write_config
from deploy.config.layers import load_run_config, resolve
from deploy.config.values import Text
from deploy.errors import ConfigError
from tests.extension.stranger.envs import MODULE
from transport.run_dir import RunDir

MAZE, FAMILY = f"{MODULE}:make_maze", f"{MODULE}:Corridors"


def env(**section: Any) -> Any:
    return resolve([Layer(FLAGS, {"env": section})]).env


def refusal(**section: Any) -> str:
    with pytest.raises(ConfigError) as refused:
        env(**section)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_a_built_in_family_has_all_its_options_written_out() -> None:
    options = env(id="robot", tolerance=0.05).options
    assert (options.tolerance, options.reward, options.backend) == (0.05, "dense", "auto")


def test_a_factorys_options_have_the_types_of_its_signature() -> None:
    options = env(id=MAZE, size=Text("12"), slip=Text("0.5"), walls=Text("yes"), look=Text("near"), rooms=Text("1,2")).options
    assert (options.size, options.slip, options.walls, options.look, options.rooms) == (12, 0.5, True, "near", (1, 2))


@pytest.mark.parametrize(("typed", "value"), [("12", 12), ("0.5", 0.5), ("1e3", 1000)])
def test_where_a_default_alone_says_that_an_option_is_a_whole_number_any_number_is_taken(typed: str, value: float) -> None:
    defaults = f"{MODULE}:by_defaults"
    size = env(id=defaults, size=Text(typed)).options.size
    assert size == value and type(size) is type(value)
    assert "--env.size: 'big' is not a number" in refusal(id=defaults, size=Text("big"))
    assert "expected int | float, got str" in refusal(id=defaults, size="big")


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"id": MAZE, "siz": Text("12")}, "unknown option --env.siz; did you mean --env.size?"),
        ({"id": MAZE, "size": Text("big")}, "--env.size: 'big' is not a whole number"),
        ({"id": MAZE, "look": Text("up")}, "--env.look: 'up' is not one of its values; known: far, near"),
        (
            {"id": MAZE, "tolerance": Text("0.1")},
            f"env.tolerance: only robot has it; {MAZE} does not",
        ),
        ({"id": f"{MODULE}:needy", "color": Text("red")}, f"{MODULE}:needy needs --env.size"),
        ({"id": FAMILY, "length": Text("1")}, "--env.length: expected int >= 2, got 1"),
        ({"id": "CartPole-v1", "skip": Text("4")}, "env.skip: only mario and ALE/… have it; CartPole-v1 does not"),
        ({"id": "Pendulum-v1", "g": Text("down")}, "--env.g: 'down' is not a number"),
        ({"id": "robot", "tolerance": Text("2")}, "--env.tolerance: expected float < 1.0, got 2.0"),
        ({"id": "robot", "tier": Text("foo")}, "--env.tier: 'foo' is not one of its values; known: all, easy, hard, medium"),
        (
            {"id": "robot", "backend": Text("retro")},
            "--env.backend: 'retro' is not one of its values; known: auto, kinematic, pybullet",
        ),
        ({"id": "snake", "stak": Text("1")}, "unknown option --env.stak; did you mean --env.stack?"),
        ({"id": "no_such_module:make", "x": Text("1")}, "no module 'no_such_module'"),
    ],
)
def test_a_wrong_option_is_one_line(section: dict[str, Any], words: str) -> None:
    assert words in refusal(**section)


def test_a_file_with_an_option_of_another_family_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^mine.toml: env.urdf: only robot has it; snake does not$"):
        resolve([Layer("mine.toml", {"env": {"id": "snake", "urdf": "arm.urdf"}})])


def test_a_registered_ids_options_are_its_keyword_arguments() -> None:
    assert env(id="Pendulum-v1", g=Text("3.5")).options.g == 3.5


def test_what_was_given_is_written_and_read_again_without_importing_anyones_module(tmp_path: Path) -> None:
    config = resolve([Layer(FLAGS, {"env": {"id": MAZE, "size": Text("12"), "rooms": Text("1,2")}})])
    path = tmp_path / "config.toml"
    path.write_bytes(write_config(config))
    assert read_run(path).values["env"] | {"stack": 0} == {
        "id": MAZE, "stack": 0, "max_episode_steps": 0, "quantise": False, "chunk_length": 0, "wrappers": [],
        "info_keywords": [], "preflight_seconds": 60.0, "size": 12, "rooms": [1, 2],
    }  # fmt: skip
    path.write_text(path.read_text().replace(MODULE, "gone_away"))
    assert load_run_config(RunDir(path.parent), trusted=True).env.options.size == 12
    assert MODULE not in set(sys.modules) - {MODULE} and "gone_away" not in sys.modules


def test_a_run_of_format_1_loses_the_options_of_other_families(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text('[env]\nid = "CartPole-v1"\nskip = 0\nurdf = ""\ntolerance = 0.02\nstack = 2\n')
    assert read_run(path).values["env"] == {"id": "CartPole-v1", "stack": 2}
    path.write_text('[env]\nid = "robot"\nskip = 0\nurdf = ""\ntolerance = 0.05\n')
    assert load_run_config(RunDir(path.parent), trusted=True).env.options.tolerance == 0.05


@pytest.mark.parametrize(
    ("env_id", "fixed", "free"),
    [
        ("robot", {"urdf", "arm", "reward"}, {"tolerance", "tier", "curriculum", "backend"}),
        ("mario", {"actions", "skip", "size", "view"}, {"backend"}),
        ("ALE/Pong-v5", {"skip", "fire", "size"}, {"backend"}),
    ],
)
def test_a_resume_keeps_what_the_weights_depend_on(env_id: str, fixed: set[str], free: set[str]) -> None:
    keys = {key.removeprefix("env.") for key in fixed_keys(resolve([Layer(FLAGS, {"env": {"id": env_id}})])) if key[:4] == "env."}
    common = {"id", "stack", "max_episode_steps", "quantise", "chunk_length", "wrappers"}
    assert keys == common | fixed and not keys & free


def test_the_help_of_up_shows_the_options_of_the_environment_that_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["up", "--env", MAZE, "--help"])
    text = capsys.readouterr().out
    assert "--env.size N" in text and "--env.look {near,far}" in text and "(default: 5)" in text
    assert "--env.tier" not in text, "an option of another environment"


def test_headrace_envs_lists_each_family_with_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["envs"]) == 0
    text = capsys.readouterr().out
    assert "--env.tolerance" in text and "--env.skip" in text
    assert "package.module:factory" in text and "in Gymnasium's registry" in text
