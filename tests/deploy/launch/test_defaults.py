from __future__ import annotations

import pytest
from msgspec import structs

from actors.envs.preflight.parent import PreflightResult
from deploy.config.files import Tree
from deploy.config.layers import layers, resolve
from deploy.errors import ConfigError
from deploy.launch import defaults
from transport.experience import Categorical, Continuous, ExperienceSpec, MultiCategorical, observed

VECTORS = ExperienceSpec((observed("observation", (4,), "<f4"),), Categorical(2), 64, 1, 3)
IMAGES = ExperienceSpec((observed("observation", (8, 8), "|u1", 1 / 255),), Categorical(2), 64, 1, 3)


@pytest.mark.parametrize(("wanted", "actors", "size"), [(2048, 2, 2048), (2048, 3, 3072), (2000, 2, 2048), (512, 4, 2048)])
def test_a_rollout_batch_is_a_multiple_of_what_all_environments_collect(
    wanted: int, actors: int, size: int, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = {
        "algorithm": {"name": "ppo"},
        "actors": {"count": actors, "envs_per_actor": 16},
        "learner": {"batch_size": wanted},
    }
    spec = ExperienceSpec(VECTORS.fields, Continuous((-1.0,), (1.0,)), 32, 1, 1, unit="rollouts")
    asked = resolve(layers(flags))
    config = defaults.fit_rollouts(asked, spec)
    assert config.learner.batch_size == size
    assert (f"{size:,} steps instead of {wanted:,}" in capsys.readouterr().out) == (size != wanted)
    minibatches = asked.algorithm.options.minibatches
    assert config.algorithm.options.minibatches == round(minibatches * size / wanted), "minibatches are as large as before"


@pytest.mark.parametrize(("processes", "actors", "size"), [(2, 2, 2048), (2, 3, 2304), (4, 1, 2048), (3, 2, 2048), (64, 1, 2048)])
def test_the_rollout_batches_of_all_learner_processes_are_a_multiple_of_it(processes: int, actors: int, size: int) -> None:
    flags = {
        "algorithm": {"name": "ppo"},
        "actors": {"count": actors, "envs_per_actor": 16},
        "learner": {"batch_size": 2048, "processes": processes},
    }
    spec = ExperienceSpec(VECTORS.fields, Continuous((-1.0,), (1.0,)), 32, 1, 1, unit="rollouts")
    config = defaults.fit_rollouts(resolve(layers(flags)), spec)
    assert config.learner.batch_size == size
    assert processes * size % (actors * 16 * 32) == 0 == size % 32
    assert config.learner.leased(spec) == processes * size // 32


def test_a_rollout_batch_that_cannot_be_accumulated_is_refused_before_the_launch() -> None:
    flags = {
        "algorithm": {"name": "ppo"},
        "actors": {"count": 3, "envs_per_actor": 16},
        "learner": {"batch_size": 2560, "accumulation": 5},
    }
    spec = ExperienceSpec(VECTORS.fields, Continuous((-1.0,), (1.0,)), 32, 1, 1, unit="rollouts")
    with pytest.raises(ConfigError, match=r"accumulation \(5\) must divide learner.batch_size \(3072\)"):
        defaults.fit_rollouts(resolve(layers(flags)), spec)


def test_a_rollout_batch_of_which_an_actor_may_not_send_its_share_is_refused_before_the_launch() -> None:
    """It would wait for an acknowledgement, and the learner for the rest of the batch."""
    images = ExperienceSpec((observed("observation", (3, 96, 96), "|u1", 1 / 255),), Categorical(2), 128, 1, 1, unit="rollouts")
    flags: Tree = {"algorithm": {"name": "ppo"}, "actors": {"count": 2}, "learner": {"batch_size": 7_808 * 128}}
    flags |= {"replay": {"budget_bytes": 10**12}}
    defaults.check_fit(resolve(layers(flags)), images)
    flags["actors"] = {"count": 1}
    with pytest.raises(ConfigError, match="a rollout batch has 2.* GB from each actor, and 17.2 GB are the most: more --actors"):
        defaults.check_fit(resolve(layers(flags)), images)


def test_more_environments_than_a_rollout_batch_has_room_for_are_refused_before_the_launch() -> None:
    flags: Tree = {"algorithm": {"name": "ppo"}, "actors": {"count": 16, "envs_per_actor": 1024}}
    spec = ExperienceSpec(VECTORS.fields, Continuous((-1.0,), (1.0,)), 64, 1, 1, unit="rollouts")
    with pytest.raises(
        ConfigError, match="rollout batches would have 1,048,576 steps: whole chunks of 64, .* 1,000,000 are the most"
    ):
        defaults.fit_rollouts(resolve(layers(flags)), spec)


@pytest.mark.parametrize(("make_seconds", "environments", "expected"), [(0.1, 8, 300), (40, 8, 640), (40, 3, 300), (100, 4, 800)])
def test_actors_have_time_to_make_slow_environments(
    make_seconds: float, environments: int, expected: float, capsys: pytest.CaptureFixture[str]
) -> None:
    flags: Tree = {"env": {"id": "Acrobot-v1"}, "algorithm": {"name": "dqn"}, "actors": {"envs_per_actor": environments}}
    config, _ = defaults.resolve_for(layers(flags), PreflightResult(VECTORS, make_seconds=make_seconds), on_gpu=False)
    assert config.deploy.stall_seconds == expected
    assert (f"an actor makes {environments} environments" in capsys.readouterr().out) == (expected > 300)


@pytest.mark.parametrize("name", ["observation", "reward"])
def test_what_replay_would_reject_is_refused_before_the_launch(name: str) -> None:
    facts = PreflightResult(VECTORS, **{f"largest_{name}": 1.7e18})  # type: ignore[arg-type]
    flags: Tree = {"env": {"id": "Acrobot-v1"}, "algorithm": {"name": "dqn"}}
    with pytest.raises(ConfigError, match=f"Acrobot-v1 gave the {name} 1.7e.18, .* beyond 1e.09 is rejected"):
        defaults.resolve_for(layers(flags), facts, on_gpu=False)


@pytest.mark.parametrize("name", ["dqn", "pqn", "r2d2", "reppo", "sac"])
def test_too_many_combinations_of_choices_are_refused_with_the_algorithm_that_learns_them(name: str) -> None:
    config = resolve(layers({"env": {"id": "mine:Keys"}, "algorithm": {"name": name}}))
    with pytest.raises(ConfigError) as refused:
        defaults.check_fit(config, structs.replace(VECTORS, action=MultiCategorical((3,) * 12)))
    assert str(refused.value) == (
        f"mine:Keys has 12 simultaneous actions, and --algo {name} has no multicategorical actions: --algo ppo"
    )


@pytest.mark.parametrize(
    ("cores", "free", "simulator", "wanted", "expected"),
    [
        (1, 8e9, 6e7, 0, 2),
        (2, 8e9, 6e7, 0, 2),
        (16, 8e9, 6e7, 0, 8),
        (128, 64e9, 6e7, 0, 16),
        (16, 8e9, 1e9, 0, 4),
        (16, 1e9, 4e9, 0, 1),
        (16, 8e9, 0, 0, 8),
        (2, 1e9, 4e9, 12, 12),
    ],
)
def test_actors_follow_cores_and_memory_unless_told(
    monkeypatch: pytest.MonkeyPatch, cores: int, free: float, simulator: float, wanted: int, expected: int
) -> None:
    monkeypatch.setattr(defaults, "core_count", lambda: cores)
    monkeypatch.setattr(defaults, "free_memory", lambda: int(free))
    config = resolve(layers({"env": {"id": "Acrobot-v1"}, "actors": {"count": wanted} if wanted else {}}))
    assert defaults.resolve_count(config, int(simulator)).actors.count == expected


@pytest.mark.parametrize(("spec", "wanted", "expected"), [(VECTORS, 0, 8), (IMAGES, 0, 4), (IMAGES, 3, 3)])
def test_an_actor_has_fewer_environments_of_images_unless_told(spec: ExperienceSpec, wanted: int, expected: int) -> None:
    config = resolve(layers({"env": {"id": "Acrobot-v1"}, "actors": {"envs_per_actor": wanted} if wanted else {}}))
    assert defaults.resolve_environments(config, spec).actors.envs_per_actor == expected


@pytest.mark.parametrize(
    ("cores", "flags", "image", "on_gpu", "expected"),
    [
        (16, {"actors": {"count": 4, "threads": 2}}, True, False, 7),
        (16, {"actors": {"count": 4}}, True, True, 1),
        (16, {"actors": {"count": 4}}, False, False, 1),
        (2, {"actors": {"count": 8}}, True, False, 1),
        (64, {"actors": {"count": 2}}, True, False, defaults.MOST_THREADS),
        (64, {"actors": {"count": 4}, "learner": {"threads": 30}}, False, True, 30),
    ],
)
def test_the_learner_gets_the_cores_that_actors_and_replay_leave_unless_told(
    monkeypatch: pytest.MonkeyPatch, cores: int, flags: Tree, image: bool, on_gpu: bool, expected: int
) -> None:
    monkeypatch.setattr(defaults, "core_count", lambda: cores)
    flags = {"env": {"id": "Acrobot-v1"}} | flags
    spec = IMAGES if image else VECTORS
    assert defaults.resolve_threads(resolve(layers(flags)), spec, on_gpu).learner.threads == expected


@pytest.mark.parametrize(("endless", "wanted", "expected"), [(True, 0, 2_000), (True, 700, 700), (False, 0, 27_000)])
def test_an_evaluation_cuts_off_what_has_no_end_of_its_own_unless_told(endless: bool, wanted: int, expected: int) -> None:
    flags: Tree = {"evaluator": {"max_episode_steps": wanted}} if wanted else {}
    config, _ = defaults.resolve_for(layers(flags), PreflightResult(VECTORS, endless=endless), on_gpu=False)
    assert config.evaluator.max_episode_steps == expected
