"""How an algorithm is found, and what every built-in one declares."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from msgspec import Struct

from learner.algorithms.base import ALGORITHMS, find_algorithm, join, make_algorithm, read_algorithm
from learner.algorithms.dqn.algorithm import Dqn
from learner.algorithms.dqn.config import DqnConfig
from learner.algorithms.ppo.algorithm import Ppo
from learner.algorithms.ppo.config import PpoConfig
from learner.algorithms.pqn.algorithm import Pqn
from learner.algorithms.pqn.config import PqnConfig
from learner.algorithms.r2d2.algorithm import R2d2
from learner.algorithms.sac.algorithm import Sac
from learner.algorithms.sac.config import SacConfig
from tests.transport.columns import scalars
from transport.experience import Categorical, Continuous, ExperienceSpec, observed
from transport.names import UnknownName


class Misnamed(Dqn):
    Config = msgspec.defstruct("Config", [("name", str)])  # type: ignore[assignment]


VECTOR = ExperienceSpec((observed("observation", (4,), "<f4"),), Categorical(2), 8)
GOAL = ExperienceSpec(
    tuple(observed(name, (3,), "<f4") for name in ("achieved_goal", "desired_goal")), Continuous((-1.0,), (1.0,)), 8
)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_algorithm_is_found_and_asked_without_torch(name: str) -> None:
    code = (
        "import sys\n"
        "from learner.algorithms.base import make_algorithm, read_algorithm\n"
        f"algorithm = make_algorithm(read_algorithm({{'name': {name!r}}}))\n"
        "algorithm.defaults(None, True), algorithm.advice, algorithm.figures\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[3], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("False\n", "")


def test_options_are_read_from_a_flat_table_and_written_back() -> None:
    table = {"name": "dqn", "gamma": 0.5}
    chosen = read_algorithm(table)
    assert chosen.options == DqnConfig(gamma=0.5)
    assert chosen.flat() | table == chosen.flat()
    assert read_algorithm(chosen.flat()) == chosen
    assert make_algorithm(chosen).config.gamma == 0.5 and read_algorithm({}).name == "dqn"


def test_large_images_get_a_small_network_without_a_gpu() -> None:
    images = {
        size: ExperienceSpec((observed("observation", (size, size), "|u1", 1 / 255),), Categorical(2), 8) for size in (84, 10)
    }
    assert Dqn.defaults(images[84], False)["algorithm"]["network"] == "compact"
    assert Pqn.defaults(images[84], False)["algorithm"]["network"] == "compact"
    assert Ppo.defaults(images[84], False)["algorithm"]["network"] == "compact"
    assert "network" not in Ppo.defaults(images[84], True)["algorithm"]
    assert "network" not in Pqn.defaults(images[84], True)["algorithm"]
    others = Dqn.defaults(images[84], True), Dqn.defaults(images[10], False), Dqn.defaults(None, False)
    assert all(tree.keys() == {"replay"} for tree in others), "the options are those of the Config"


def test_ppo_makes_many_minibatches_where_updates_are_cheap() -> None:
    images = ExperienceSpec((observed("observation", (84, 84), "|u1", 1 / 255),), Categorical(2), 8)
    vectors = [msgspec.structs.replace(VECTOR, action=action) for action in (Categorical(2), Continuous((-1.0,), (1.0,)))]
    assert [Ppo.defaults(env, False)["algorithm"]["minibatches"] for env in vectors] == [32, 16]
    assert "minibatches" not in Ppo.defaults(images, False)["algorithm"]


def test_ppo_learns_choices_from_images_in_small_rollout_batches_with_a_weight_of_the_entropy() -> None:
    images = ExperienceSpec((observed("observation", (84, 84), "|u1", 1 / 255),), Categorical(2), 8)
    found = Ppo.defaults(images, True)
    assert found["algorithm"] == {"normalize_reward": True, "n_epochs": 4, "hidden": 512, "ent_coef": 0.01}
    assert (found["learner"]["batch_size"], found["learner"]["learning_rate"]) == (1024, 5e-4)
    driving = Ppo.defaults(msgspec.structs.replace(images, action=Continuous((-1.0,), (1.0,))), True)
    assert "ent_coef" not in driving["algorithm"] and driving["learner"]["batch_size"] == 2048


def test_dqn_may_draw_more_often_while_it_waits_for_any_slow_simulator() -> None:
    images = ExperienceSpec((observed("observation", (84, 84), "|u1", 1 / 255),), Categorical(2), 8)
    for env, accelerated in itertools.product((None, VECTOR, images), (False, True)):
        assert Dqn.defaults(env, accelerated)["replay"]["samples_per_insert_limit"] == 32.0


def test_dqn_learns_a_table_for_a_single_discrete_observation() -> None:
    choice = ExperienceSpec((observed("observation", (500,), "|i1"),), Categorical(2), 8)
    table, vectors = Dqn.defaults(choice, False), Dqn.defaults(VECTOR, False)
    assert table["algorithm"]["network"] == "linear" and not DqnConfig(**table["algorithm"]).normalize_observation
    assert table["learner"] == vectors["learner"] | {"learning_rate": 0.05}
    assert "network" not in vectors["algorithm"]


def test_a_wrong_option_says_which() -> None:
    with pytest.raises(msgspec.ValidationError, match="gamma"):
        read_algorithm({"name": "sac", "gamma": 2.0})


def test_a_name_that_is_no_algorithm_says_what_is_missing() -> None:
    with pytest.raises(UnknownName, match="pathlib:Path is not an algorithm: it lacks Config, actions, begins_random"):
        find_algorithm("pathlib:Path")
    with pytest.raises(UnknownName, match="no algorithm is called 'dqm'; did you mean dqn"):
        find_algorithm("dqm")
    with pytest.raises(UnknownName, match="its Config has a field `name`"):
        find_algorithm(f"{__name__}:Misnamed")


def test_the_options_that_a_resume_keeps_are_marked() -> None:
    def fixed(kind: type[Struct]) -> set[str]:
        kinds = {field.name: msgspec.inspect.type_info(field.type) for field in msgspec.structs.fields(kind)}
        return {
            name for name, info in kinds.items() if isinstance(info, msgspec.inspect.Metadata) and (info.extra or {}).get("fixed")
        }

    running = {"normalize_observation", "normalize_reward"}
    assert fixed(Dqn.Config) == {"dueling", "n_step", "network", "network_options", "hidden", "filters"} | running
    ppo = {"network", "network_options", "hidden", "filters", "layers", "memory", "memory_width", "normalize_reward", "shared"}
    assert fixed(Ppo.Config) == ppo
    remembering = {"memory", "memory_width", "burn_in", "value_rescaling"}
    assert fixed(R2d2.Config) == {"dueling", "n_step", "network", "network_options", "hidden"} | remembering
    assert fixed(Pqn.Config) == {"network", "network_options", "hidden", "filters", "layers", "layer_norm"}
    assert fixed(Sac.Config) == {"hindsight", "network", "network_options", "hidden", "layers", "layer_norm"} | running


def test_what_each_needs_becomes_part_of_the_spec() -> None:
    dqn = join(VECTOR, Dqn(DqnConfig(n_step=3)).needs(VECTOR))
    assert (dqn.n_step, dqn.extras, dqn.goals) == (3, scalars("initial_priority"), 0)
    assert join(VECTOR, Ppo(PpoConfig()).needs(VECTOR)).extras == scalars("log_prob")
    remembering = join(VECTOR, Ppo(PpoConfig(memory="gru", memory_width=5)).needs(VECTOR)).extras
    assert [(column.name, column.shape, column.once) for column in remembering[1:]] == [("memory/h", (5,), True)]
    pqn = join(VECTOR, Pqn(PqnConfig()).needs(VECTOR))
    assert (pqn.unit, pqn.n_step, pqn.extras) == ("rollouts", 1, ())
    assert join(GOAL, Sac(SacConfig(hindsight=2)).needs(GOAL)).goals == 2


class OwnConfig(DqnConfig, frozen=True, forbid_unknown_fields=True):
    """Options beside those of DQN."""

    temperature: float = 1.0


class Own(Dqn):
    Config = OwnConfig


def test_an_algorithm_derived_from_a_built_in_one_keeps_its_name_and_options() -> None:
    chosen = read_algorithm({"name": f"{__name__}:Own", "temperature": 0.5, "n_step": 5})
    assert chosen.flat()["name"] == f"{__name__}:Own"
    assert read_algorithm(chosen.flat()) == chosen
