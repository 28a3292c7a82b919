"""How an environment's family is found, what it declares, and what follows from that."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import gymnasium
import msgspec
import pytest

from actors.config import EnvConfig, EvaluatorConfig
from actors.envs.base import FAMILIES, EnvironmentFamily, Setup, builtin_families, find_family, variant
from actors.envs.foreign.options import Option, describe, options_type, struct_of
from actors.envs.make import env_section, make_env, open_family, read_env, resolve_env
from actors.envs.spec import experience_spec
from actors.errors import EnvError
from tests.actors.playing import TOYS, refusal, vector
from tests.extension.stranger.envs import MODULE, Corridors, Doubled, First, Line, LineOptions, Together


def made(env_id: str, **options: Any) -> Line:
    env = make_env(read_env({"id": env_id} | options)).unwrapped
    assert isinstance(env, Line)
    return env


@pytest.mark.parametrize(
    ("env_id", "name", "rest"),
    [
        ("mario", "Mario", ""),
        ("mario:1-2", "Mario", "1-2"),
        ("robot:flat", "Robot", "flat"),
        ("headrace/FanucReach-v0", "Robot", ""),
        ("ALE/Pong-v5", "Atari", ""),
        ("CartPole-v1", "Registered", ""),
        ("headrace/NoSuch-v0", "Registered", ""),
        (f"{TOYS}:Camera", "Factory", ""),
        (f"{TOYS}:HeadraceToy-v0", "Registered", ""),
        (f"{MODULE}:make_maze", "Factory", ""),
        (f"{MODULE}:Corridors", "Corridors", ""),
        (f"{MODULE}:Corridors:wide", "Corridors", "wide"),
    ],
)
def test_a_name_leads_to_a_family(env_id: str, name: str, rest: str) -> None:
    assert find_family(env_id).__name__ == name and variant(env_id) == rest


def test_finding_the_built_in_families_imports_no_simulator_no_gymnasium_and_no_torch() -> None:
    heavy = ("torch", "gymnasium", "cv2", "nes_py", "pybullet", "ale_py")
    code = (
        "import sys; from actors.config import EnvConfig; from actors.envs.make import open_family\n"
        f"for name in {[*FAMILIES, 'CartPole-v1']}: open_family(EnvConfig(id=name)).Options\n"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_hook_has_a_default() -> None:
    class Plain(EnvironmentFamily):
        def make(self, setup: Setup) -> gymnasium.Env:
            return Line()

    family, env = Plain("x", None), Line()
    assert [family.simulators(env, 2), family.map(env)] == [None] * 2
    assert [family.compute_reward(env), family.pin_options(), family.resolve_options()] == [None] * 3
    assert (family.frames_per_step, family.figures(env), family.default_stack) == (1, [], 0)


def test_the_built_in_families_declare_what_differs() -> None:
    families = builtin_families()
    assert {"mario", "robot", "snake", "remote", "openenv", "ALE/…"} == set(families) and all(
        family.about for family in families.values()
    )
    assert [name for name, family in families.items() if family.default_stack == 1] == ["snake"]
    frames = {name: open_family(EnvConfig(id=name.replace("…", "Pong-v5"))).frames_per_step for name in families}
    assert frames == {"mario": 4, "robot": 1, "snake": 1, "remote": 1, "openenv": 1, "ALE/…": 4}
    assert [name for name, family in families.items() if family.decides_steps] == ["remote"]
    assert open_family(EnvConfig(id="ALE/Pong-v5", options={"skip": 2})).frames_per_step == 2


# ---- families and factories of anyone's module


def test_a_strangers_family_makes_what_its_options_and_the_name_say() -> None:
    env = made(f"{MODULE}:Corridors:wide", length=9, max_episode_steps=7)
    assert env.size == 9 and env.options == {"variant": "wide", "evaluation": False, "steps": 7}


def test_a_strangers_hooks_are_used() -> None:
    config = resolve_env(read_env({"id": f"{MODULE}:Corridors"}))
    assert env_section(config)["backend"] == "fast"  # resolved from auto
    assert experience_spec(make_env(config), config, "none").stack == 3
    assert isinstance(vector(config)._simulators, Together)
    step = vector(config).reset()
    assert step["observation"].shape == (3, 5)
    assert open_family(config).figures(make_env(config)) == ["5 places"]


def test_evaluation_is_made_as_the_family_says() -> None:
    config = read_env({"id": f"{MODULE}:Corridors", "backend": "slow"})
    for evaluation in (False, True):
        env: Any = vector(config, evaluation=EvaluatorConfig() if evaluation else None)
        env.reset()
        lines = [line.unwrapped for line in env._simulators._envs]
        assert {line.options["evaluation"] for line in lines} == {evaluation}


def test_a_factory_is_given_its_options_by_name() -> None:
    assert made(f"{MODULE}:make_maze").size == 5
    env = made(f"{MODULE}:make_maze", size=12, walls=True, rooms=[1, 2], title="a", anything={"b": 1})
    assert env.size == 12
    assert env.options == {
        "slip": 0.0, "walls": True, "look": "far", "rooms": (1, 2), "title": "a", "anything": {"b": 1},
    }  # fmt: skip


def test_without_annotations_the_defaults_say_the_types() -> None:
    kind = find_family(f"{MODULE}:by_defaults").options_type(f"{MODULE}:by_defaults")
    assert [(option.name, option.kind, option.default) for option in describe(kind)] == [
        ("size", "int", 7), ("slip", "float", 0.25), ("walls", "bool", True), ("name", "str", "x"),
    ]  # fmt: skip


def test_a_factory_may_take_a_struct_of_options_whole() -> None:
    assert made(f"{MODULE}:by_struct", size=6).options == {"whole": LineOptions(6)}
    assert made(f"{MODULE}:by_struct").size == 4


def test_a_registered_id_is_given_keyword_arguments() -> None:
    env = make_env(read_env({"id": "Pendulum-v1", "g": 3.5, "max_episode_steps": 9}))
    assert env.unwrapped.g == 3.5 and env.spec is not None and env.spec.max_episode_steps == 9  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"id": f"{MODULE}:make_maze", "siz": 3}, f"env.siz: {MODULE}:make_maze has no such option; did you mean size?"),
        ({"id": f"{MODULE}:make_maze", "size": "3"}, "env.size: Expected int, got str"),
        ({"id": f"{MODULE}:make_maze", "look": "up"}, f"env.look: {MODULE}:make_maze has near, far, not up"),
        ({"id": f"{MODULE}:by_struct", "size": 1}, "env.size: Expected int >= 2"),
        ({"id": f"{MODULE}:needy", "color": "red"}, f"{MODULE}:needy needs --env.size"),
        ({"id": f"{MODULE}:needy"}, f"{MODULE}:needy needs --env.size"),
        ({"id": "Pendulum-v1", "gravity": 3}, "env.gravity: Pendulum-v1 has no such option"),
        ({"id": "NoSuch-v0", "gravity": 3}, "unknown environment 'NoSuch-v0'"),
        ({"id": "snake", "skip": 3}, "env.skip: only mario and ALE/… have it; snake does not"),
        ({"id": "snake", "backend": "retro"}, "env.backend: only mario"),
        ({"id": "CartPole-v1", "curriculum": True}, "env.curriculum: only robot has it"),
        ({"id": "mario", "backend": "kinematic"}, "mario has nes_py, retro, native, auto, not kinematic"),
        ({"id": "robot", "tolerance": 1.0}, "env.tolerance: Expected float < 1.0"),
        ({"wrappers": [f"{MODULE}:Tripled"]}, "env.wrappers: wrapper tests.extension.stranger.envs:Tripled: "),
        ({"wrappers": ["Doubled"]}, "env.wrappers: no wrapper is called 'Doubled'"),
        ({"wrappers": ["builtins:str"]}, "env.wrappers: builtins:str returned a str, not a gymnasium.Env"),
    ],
)
def test_a_wrong_option_or_wrapper_is_one_line(section: dict[str, Any], words: str) -> None:
    assert words in refusal(make_env, read_env({"id": "CartPole-v1"} | section))


def test_wrappers_are_put_around_any_environment_in_their_order() -> None:
    names = {"doubled": f"{MODULE}:Doubled", "first": f"{MODULE}:First"}
    env = make_env(read_env({"id": "CartPole-v1", "wrappers": [names["doubled"], names["first"]]}))
    assert isinstance(env, First) and isinstance(env.env, Doubled)
    other = make_env(read_env({"id": f"{MODULE}:make_maze", "wrappers": [names["first"], names["doubled"]]}))
    assert other.observation_space.shape == (2,)


def test_a_wrapper_sees_every_step_of_a_family_that_steps_many_as_one() -> None:
    config = read_env({"id": f"{MODULE}:Corridors", "backend": "fast", "wrappers": [f"{MODULE}:Doubled"]})
    assert vector(config).reset()["observation"].shape == (3, 10)


# ---- the description of options that travels between processes


@pytest.mark.parametrize("kind", [family.Options for family in builtin_families().values()] + [Corridors.Options])
def test_a_description_makes_an_equal_struct(kind: type[msgspec.Struct]) -> None:
    described = msgspec.json.decode(msgspec.json.encode(describe(kind)), type=tuple[Option, ...])
    assert described == describe(kind) == describe(struct_of("Options", described))


def test_the_options_of_anyones_module_are_described_by_another_process() -> None:
    code = (
        "import sys; from actors.envs.foreign.options import options_type\n"
        f"options = options_type('{MODULE}:Corridors')\n"
        "print(options.__struct_fields__, [name for name in sys.modules if 'stranger' in name or name == 'gymnasium'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "('length', 'backend') []"


@pytest.mark.parametrize(
    ("env_id", "words"),
    [
        ("no_such_module:make", "no module 'no_such_module'"),
        (f"{MODULE}:Coridors", "did you mean Corridors?"),
        ("NoSuch-v0", "unknown environment 'NoSuch-v0'"),
    ],
)
def test_what_cannot_be_described_is_one_line(env_id: str, words: str) -> None:
    assert words in refusal(options_type, env_id)


def test_a_module_that_ends_its_process_is_one_line(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "deadly.py").write_text("import os, sys\nprint('x', flush=True)\nos.write(2, b'oh no\\n')\nos._exit(3)\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(tmp_path), *sys.path))))
    with pytest.raises(EnvError, match="deadly:make: importing it to read its options failed: oh no"):
        options_type("deadly:make")
