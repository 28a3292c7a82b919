from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from headrace.errors import ConfigurationError
from headrace.names import reference
from headrace.run import _flags
from tests.headrace import own_env


def make_here() -> gymnasium.Env:
    return own_env.make_corridor()


class Outer:
    class Inner:
        pass

    @classmethod
    def make(cls) -> gymnasium.Env:
        return own_env.make_corridor()


def test_a_class_or_function_travels_as_the_name_by_which_it_is_imported() -> None:
    assert reference(own_env.Corridor, "env") == "tests.headrace.own_env:Corridor"
    assert reference(make_here, "env") == "tests.headrace.test_names:make_here"
    assert reference(Outer.Inner, "algorithm.network") == "tests.headrace.test_names:Outer.Inner"
    assert reference(Outer.make, "env") == "tests.headrace.test_names:Outer.make"
    assert reference("CartPole-v1", "env") == "CartPole-v1"


def of_a_notebook() -> type:
    return type("Torso", (), {"__module__": "__main__"})


def of_a_function() -> type:
    class Torso:
        pass

    return Torso


def of_another_name() -> type:
    return type("Corridor", (), {"__module__": own_env.__name__})


@pytest.mark.parametrize(
    ("thing", "words"),
    [
        (lambda: None, "a lambda; write it as a function into a file of its own"),
        (of_a_notebook(), "Torso from a notebook or a running script; put Torso into a file of its own"),
        (of_a_function(), "which is inside a function; put Torso into a file of its own"),
        (of_another_name(), "is another object than the one given"),
        (own_env.Corridor(), "give a name, a class or a function, not Corridor, or take serial=True"),
        (3, "give a name, a class or a function, not int"),
    ],
)
def test_what_another_process_cannot_import_is_refused_in_one_line(thing: object, words: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        reference(thing, "env")
    assert str(caught.value).startswith("env: ") and words in str(caught.value) and "\n" not in str(caught.value)


def test_settings_may_be_numbers_of_numpy() -> None:
    settings = {"seed": np.arange(3)[2], "learner": {"learning_rate": np.float64(0.25), "batch_size": np.int32(64)}}
    assert _flags(settings) == ["--seed=2", "--learner.learning-rate=0.25", "--learner.batch-size=64"]
