import re
import tomllib
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest
from msgspec import Meta, Struct

from deploy.config.checks import changes_refused_on_resume
from deploy.config.files import FLAGS, Layer, Preset, Tree, preset_for, presets, write_config
from deploy.config.layers import layers, load_run_config, origins, resolve
from deploy.config.run import RunConfig
from deploy.errors import ConfigError
from deploy.settings import learning
from learner.algorithms.base import Needs
from learner.algorithms.dqn.algorithm import Dqn
from transport.experience import Categorical, ExperienceSpec, observed
from transport.names import FIXED, Named
from transport.run_dir import RunDir

SAMPLED = ExperienceSpec((observed("observation", (4,), "<f4"),), Categorical(2), 64)


def from_flags(**flags: object) -> RunConfig:
    return resolve([Layer(FLAGS, dict(flags))])


def test_later_layers_win_and_untouched_keys_keep_their_defaults(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("seed = 5\n[learner]\nlearning_rate = 0.5\nbatch_size = 8\n")
    config = resolve(layers({"env": {"id": "CartPole-v1"}, "learner": {"batch_size": 16}}, file))
    assert (config.seed, config.learner.learning_rate, config.learner.batch_size) == (5, 0.5, 16)
    assert config.algorithm.options.n_epochs == 5, "of the preset"
    assert config.learner.prefetch == RunConfig().learner.prefetch


def test_a_file_of_an_editor_on_windows_is_read(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_bytes(b"\xef\xbb\xbfseed = 5\r\n[learner]\r\nbatch_size = 8\r\n")
    config = resolve(layers({"env": {"id": "CartPole-v1"}}, file))
    assert (config.seed, config.learner.batch_size) == (5, 8)


@pytest.mark.parametrize(
    ("env_id", "name"),
    [("mario", "mario"), ("mario:1-2", "mario"), ("CartPole-v1", "cartpole"), ("MountainCar-v0", None), ("mariokart:make", None)],
)
def test_the_preset_goes_by_the_environment(env_id: str, name: str | None) -> None:
    preset = preset_for(env_id)
    assert (preset.name if preset else None) == name


def test_the_environment_of_a_file_chooses_the_preset(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('[env]\nid = "CartPole-v1"\n')
    assert resolve(layers({}, file)).algorithm.options.n_epochs == 5


def test_a_presets_network_options_go_with_its_network() -> None:
    def options(wanted: str | None = None, **algorithm: object) -> dict[str, Any]:
        flags: Tree = {"env": {"id": "snake"}, "algorithm": algorithm}
        return resolve(layers(flags, wanted=wanted)).algorithm.options.network_options

    assert options() == options(network="mlp") == {"activation": "relu"}
    assert options(network="nature") == options(wanted="snake", network="linear") == {}
    assert options(network="nature", network_options={"layer_norm": True}) == {"layer_norm": True}


@pytest.mark.parametrize("preset", presets(), ids=lambda preset: preset.name)
@pytest.mark.parametrize("on_gpu", [False, True])
def test_every_preset_is_valid_on_cpu_and_gpu(preset: Preset, on_gpu: bool) -> None:
    assert preset.about
    if preset.envs:
        resolve(layers({"env": {"id": preset.envs[0]}}, wanted=preset.name), on_gpu)
        return
    for other in presets():  # one without environments of its own lies over another's of its algorithm
        if other.envs and preset.algorithm in ("", other.algorithm) and (preset.algorithm or other.algorithm == "dqn"):
            resolve(layers({"env": {"id": other.envs[0]}}, wanted=preset.name), on_gpu)


def test_every_environment_has_one_preset_that_is_preferred_and_one_per_algorithm() -> None:
    for env_id in {preset.envs[0] for preset in presets() if preset.envs}:
        fit = [preset for preset in presets() if env_id in preset.envs]
        assert [preset.preferred for preset in fit].count(True) == 1, env_id
        assert len({preset.algorithm for preset in fit}) == len(fit), env_id


@pytest.mark.parametrize(
    ("env_id", "algorithm", "origins"),
    [
        ("CartPole-v1", None, ["preset cartpole"]),
        ("CartPole-v1", "ppo", ["preset cartpole"]),
        ("CartPole-v1", "dqn", ["preset cartpole-dqn"]),
        ("CartPole-v1", "sac", []),
        ("Pendulum-v1", None, ["preset pendulum"]),
        ("robot", None, ["preset robot"]),
        ("robot", "sac", ["preset robot-sac"]),
        ("Acrobot-v1", "ppo", ["preset cartpole"]),
        ("Acrobot-v1", "dqn", []),
        ("MountainCar-v0", "ppo", []),
        ("MountainCar-v0", None, []),
    ],
)
def test_an_algorithm_brings_what_it_needs_and_the_environments_preset_for_it(
    env_id: str, algorithm: str | None, origins: list[str]
) -> None:
    asked = {"algorithm": {"name": algorithm}} if algorithm else {}
    stack = layers({"env": {"id": env_id}, **asked})
    assert [layer.origin for layer in stack] == [*origins, FLAGS]
    name = resolve(stack).algorithm.name
    assert name == (algorithm or (preset.algorithm if (preset := preset_for(env_id)) else "dqn"))


def test_options_of_the_replay_choose_the_preset_whose_algorithm_has_one(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("[replay]\nmin_size = 300\n")
    cartpole: Tree = {"env": {"id": "CartPole-v1"}}
    for stack in (layers(cartpole | {"replay": {"shards": 4}}), layers(cartpole, file)):
        assert stack[0].origin == "preset cartpole-dqn"
    named = layers(cartpole | {"algorithm": {"name": "ppo"}, "replay": {"min_size": 300}})
    assert named[0].origin == "preset cartpole", "a name comes first"
    assert layers({"env": {"id": "robot"}, "replay": {"min_size": 300}})[0].origin == "preset robot"


def test_a_preset_that_is_asked_for_alone_brings_its_environment() -> None:
    robot = resolve(layers({}, wanted="robot-sac"))
    assert (robot.env.id, robot.algorithm.name) == ("robot", "sac")
    assert resolve(layers({"env": {"id": "Acrobot-v1"}}, wanted="cartpole")).env.id == "Acrobot-v1"
    assert resolve(layers({}, wanted="collectors")).env.id == "mario", "it has no environments of its own"
    with pytest.raises(ConfigError, match=r"^--preset atari .*--env$"):
        layers({}, wanted="atari")


def test_what_an_algorithm_needs_lies_below_every_preset_and_the_users_word_above_all() -> None:
    ppo = resolve(layers({"env": {"id": "MountainCar-v0"}, "algorithm": {"name": "ppo"}, "learner": {"learning_rate": 0.5}}))
    assert (ppo.learner.batch_size, ppo.learner.learning_rate) == (2048, 0.5)
    cartpole = resolve(layers({"env": {"id": "CartPole-v1"}, "algorithm": {"name": "ppo"}}))
    assert cartpole.learner.learning_rate == 1e-3, "of the preset"


@pytest.mark.parametrize(
    ("flags", "file", "limit"),
    [
        ({}, "", 32.0),
        ({"samples_per_insert_low": 1.0}, "", 32.0),
        ({"samples_per_insert_high": 9.0}, "", 0.0),
        ({}, "samples_per_insert_high = 9.0", 0.0),
        ({"samples_per_insert_limit": 12.0}, "samples_per_insert_high = 9.0", 12.0),
        ({"samples_per_insert_high": 9.0}, "samples_per_insert_limit = 12.0", 0.0),
        ({"samples_per_insert_high": 9.0, "samples_per_insert_limit": 12.0}, "", 12.0),
    ],
)
def test_an_upper_end_of_the_band_that_a_user_sets_holds_with_slow_simulators_too(
    tmp_path: Path, flags: Tree, file: str, limit: float
) -> None:
    (tmp_path / "mine.toml").write_text(f"[replay]\n{file}\n")
    stack = layers({"env": {"id": "Acrobot-v1"}, "algorithm": {"name": "dqn"}, "replay": flags}, tmp_path / "mine.toml")
    for env in (None, SAMPLED):
        assert resolve(stack, env=env).replay.samples_per_insert_limit == limit


def test_a_stopped_run_keeps_its_limit_of_samples_per_insert_until_the_band_is_set(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_bytes(write_config(from_flags(algorithm={"name": "dqn"})))
    run = RunDir(tmp_path)
    assert resolve(layers({}, None, run)).replay.samples_per_insert_limit == 32.0
    assert resolve(layers({"replay": {"samples_per_insert_high": 9.0}}, None, run)).replay.samples_per_insert_limit == 0.0


class TinyConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """An algorithm of somebody's own."""

    width: Annotated[int, Meta(ge=1, description="how wide it is", extra=FIXED)] = 8
    warmth: Annotated[float, Meta(description="how warm it is")] = 0.5


class Tiny(Dqn):
    Config = TinyConfig

    @classmethod
    def defaults(cls, env: ExperienceSpec | None, accelerated: bool) -> dict[str, Any]:
        return {"learner": {"batch_size": 512 if accelerated else 16}} | ({"actors": {"count": 7}} if env else {})

    def needs(self, env: ExperienceSpec) -> Needs:
        return Needs(n_step=3)


TINY = f"{__name__}:Tiny"


def test_options_of_an_algorithm_of_ones_own_are_read_checked_written_and_kept(tmp_path: Path) -> None:
    config = from_flags(algorithm={"name": TINY, "width": 9})
    assert config.algorithm == Named(TINY, TinyConfig(9, 0.5)) and config.learner.batch_size == 16
    (tmp_path / "config.toml").write_bytes(write_config(config))
    assert tomllib.loads((tmp_path / "config.toml").read_text())["algorithm"] == {"name": TINY, "width": 9, "warmth": 0.5}
    assert load_run_config(RunDir(tmp_path), trusted=True) == config
    for wrong, words in (({"width": 0}, "--algorithm.width: expected int >= 1, got 0"), ({"widht": 3}, "did you mean width?")):
        with pytest.raises(ConfigError, match=words):
            from_flags(algorithm={"name": TINY, **wrong})
    other = from_flags(algorithm={"name": TINY, "width": 10, "warmth": 1.0})
    assert changes_refused_on_resume(config, other) == ["algorithm.width (9, now 10)"], "what is marked FIXED, and that alone"


def test_defaults_of_an_algorithm_follow_the_device_and_the_environment() -> None:
    stack = layers({"env": {"id": "Acrobot-v1"}, "algorithm": {"name": TINY}})
    spec = ExperienceSpec((observed("observation", (4,), "<f4"),), Categorical(2), 64)
    assert resolve(stack, on_gpu=True).learner.batch_size == 512
    assert (resolve(stack).actors.count, resolve(stack, env=spec).actors.count) == (RunConfig().actors.count, 7)


def test_an_algorithm_that_cannot_be_found_is_one_line() -> None:
    for name, words in (("my.nowhere:Algo", "there is no module my"), (f"{__name__}:Tny", "did you mean Tiny?")):
        with pytest.raises(ConfigError, match=words.replace("?", r"\?")) as error:
            from_flags(algorithm={"name": name})
        assert "\n" not in str(error.value)


def test_another_algorithm_than_that_of_a_stopped_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_bytes(write_config(from_flags(env={"id": "CartPole-v1"})))
    with pytest.raises(ConfigError, match="made with --algo dqn"):
        layers({"algorithm": {"name": "ppo"}}, None, RunDir(tmp_path))


MARIO_BY_DQN = {"env": {"id": "mario"}, "algorithm": {"name": "dqn"}}


def test_marios_preset_of_dqn_has_small_batches_on_a_cpu_and_512_by_4_on_a_gpu() -> None:
    stack = layers(MARIO_BY_DQN)
    cpu, gpu = resolve(stack).learner, resolve(stack, on_gpu=True).learner
    assert (cpu.batch_size, cpu.accumulation) == (64, 1)
    assert (gpu.batch_size, gpu.accumulation) == (2048, 4)


def test_what_was_typed_wins_over_the_gpu_overlay() -> None:
    assert resolve(layers(MARIO_BY_DQN | {"learner": {"batch_size": 48}}), on_gpu=True).learner.batch_size == 48


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"learner": {"batch_size": 10, "accumulation": 3}}, r"accumulation \(3\) must divide learner.batch_size \(10\)"),
        ({"replay": {"capacity": 100, "min_size": 200}}, r"capacity \(100\) must be at least replay.min_size \(200\)"),
        ({"replay": {"min_size": 10}}, r"min_size \(10\) must be at least learner.batch_size \(64\)"),
        ({"replay": {"samples_per_insert_low": 8.0}}, "samples_per_insert_low .8. must be below"),
        ({"env": {"chunk_length": 100}}, "power of two"),
    ],
)
def test_sections_that_do_not_fit_one_another_are_refused(flags: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        resolve([Layer(FLAGS, flags)], spec=SAMPLED)


@pytest.mark.parametrize(("typed", "schedule"), [("lin_3e-4", "linear"), ("cos_3e-4", "cosine")])
def test_a_learning_rate_may_name_its_schedule_whose_end_is_that_of_the_run(typed: str, schedule: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(f'total_steps = 5000\n[learner]\nlearning_rate = "{typed}"\n')
    stack = layers({"env": {"id": "CartPole-v1"}}, file)
    config = resolve(stack)
    assert (config.learner.learning_rate, config.learner.learning_rate_schedule) == (3e-4, schedule)
    assert learning(config).learner.schedule_steps == 5_000
    assert learning(msgspec.structs.replace(config, total_steps=9_000)).learner.schedule_steps == 9_000, "resumed for longer"
    found = origins(stack, config, False, None)
    assert found["learner.learning_rate"] == found["learner.learning_rate_schedule"] == str(file)
    own_end = from_flags(total_steps=9, learner={"learning_rate": typed, "schedule_steps": 7})
    assert learning(own_end).learner.schedule_steps == 7


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("lin_fast", "--learner.learning-rate: 'lin_fast' has no number after lin_ or cos_"),
        ("lin_0", "--learner.learning-rate: expected float > 0"),
        ("fast", "--learner.learning-rate: expected float, got str"),
        ("lin_3e-4", "--learner.learning-rate-schedule: linear needs an end: set --total-steps, or --learner.schedule-steps"),
    ],
)
def test_a_schedule_that_cannot_be_followed_is_refused(typed: str, words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        from_flags(learner={"learning_rate": typed})


def test_sizes_of_a_buffer_do_not_bind_a_run_that_learns_from_rollouts() -> None:
    flags = {"replay": {"capacity": 100, "min_size": 200}}
    assert resolve([Layer(FLAGS, flags)], spec=msgspec.structs.replace(SAMPLED, unit="rollouts")).replay.min_size == 200


def test_all_complaints_come_at_once() -> None:
    with pytest.raises(ConfigError, match="power of two") as error:
        from_flags(env={"chunk_length": 3}, deploy={"bind": "here"})
    assert "deploy.bind" in str(error.value)


def test_the_written_configuration_reads_back_the_same(tmp_path: Path) -> None:
    config = from_flags(seed=9, env={"id": "CartPole-v1"}, learner={"learning_rate": 3e-4})
    (tmp_path / "config.toml").write_bytes(write_config(config))
    assert load_run_config(RunDir(tmp_path), trusted=True) == config


def test_an_option_that_a_stopped_run_has_not_recorded_is_as_it_was_without_it(tmp_path: Path) -> None:
    """Not what a new run gets: a network of another size would not fit the checkpoint."""
    images = ExperienceSpec((observed("observation", (84, 84), "|u1", 1 / 255),), Categorical(2), 64)
    run = RunDir(tmp_path / "old")
    run.create()
    run.config.write_text('format = 3\n[env]\nid = "ALE/Pong-v5"\n[algorithm]\nname = "dqn"\nnetwork = "auto"\n')
    assert (
        resolve(layers({"env": {"id": "ALE/Pong-v5"}, "algorithm": {"name": "dqn"}}), env=images).algorithm.options.filters == 0.5
    )
    resumed = resolve(layers({}, stopped=run), env=images).algorithm.options
    assert (resumed.network, resumed.filters, resumed.hidden) == ("auto", 1.0, 512)


def test_a_stopped_run_resumes_with_its_own_settings_not_the_presets(tmp_path: Path) -> None:
    old = from_flags(env={"id": "CartPole-v1"}, learner={"batch_size": 77})
    (tmp_path / "config.toml").write_bytes(write_config(old))
    new = resolve(layers({"learner": {"learning_rate": 0.1}}, None, RunDir(tmp_path)))
    assert (new.env.id, new.learner.batch_size, new.learner.learning_rate) == ("CartPole-v1", 77, 0.1)
    assert new.algorithm.options.hidden == 512
    assert changes_refused_on_resume(old, new) == []


def test_changes_that_old_weights_cannot_follow_are_named() -> None:
    changed = {"algorithm": {"hidden": 64}, "env": {"id": "mario:1-2"}, "learner": {"batch_size": 8}, "seed": 7}
    refused = changes_refused_on_resume(from_flags(), from_flags(**changed))
    assert refused == ["seed (1, now 7)", "env.id ('mario', now 'mario:1-2')", "algorithm.hidden (512, now 64)"]
