"""Policies that older versions exported act as they did, or are refused in one line that says what to do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import headrace
from learner.weights.export import load
from tests.headrace.older.make import FILES

FOLDER = Path(__file__).parent / "older"
LOADED = [name for name in FILES if not name.startswith("format1")]
OBSERVATIONS = np.array([[0.1, -0.2, 0.03, 0.4], [-1.0, 0.5, -0.1, 2.0]], np.float32)
# What the version that wrote the file computed for OBSERVATIONS.
ANSWERS = {"format2-ppo": [[-0.06128878518939018, 0.06065138801932335], [0.20193324983119965, -0.19533585011959076]]}


def test_there_is_a_file_of_each_version_that_can_be_made() -> None:
    assert {path.stem for path in FOLDER.glob("*.safetensors")} == FILES.keys() and LOADED == [*ANSWERS]


@pytest.mark.parametrize("name", LOADED)
def test_a_policy_of_an_older_version_acts_as_it_did(name: str) -> None:
    path = FOLDER / f"{name}.safetensors"
    exported = load(path)
    found, _ = exported.inference({"observation": OBSERVATIONS[:, None]}, {})
    np.testing.assert_allclose(found, ANSWERS[name], rtol=1e-5, atol=1e-6)
    policy = headrace.load(path)
    assert [policy.predict(one) for one in OBSERVATIONS] == np.argmax(ANSWERS[name], 1).tolist()
    assert headrace.evaluate(policy, episodes=1)["episodes"] == 1
    with pytest.raises(headrace.ConfigurationError, match="holds one policy: `headrace export RUN FILE --best`"):
        headrace.load(path, best=True)
    assert exported.metadata["spec_digest"] == exported.spec.digest, "a new run may begin with it"


@pytest.mark.parametrize("name", [name for name in FILES if name not in LOADED])
def test_a_format_that_is_no_longer_read_is_refused_in_one_line_that_says_what_to_do(name: str) -> None:
    with pytest.raises(
        headrace.ConfigurationError, match="has format '1'.* reads format '2': use the version that wrote it"
    ) as told:
        headrace.load(FOLDER / f"{name}.safetensors")
    assert "\n" not in str(told.value)
