"""`headrace bench pipeline`: a tiny run of it, and the arithmetic of its figures."""

from __future__ import annotations

import json
import os

import pytest

from actors.config import EnvConfig
from actors.envs.make import make_env
from actors.envs.spec import experience_spec
from actors.envs.vector import VectorEnv
from benchmarks.pipeline import __main__ as pipeline
from benchmarks.pipeline.__main__ import ENV, Measured, cases
from benchmarks.pipeline.null_env import EPISODE_STEPS, FRAMES, pictures

TINY = ["--update-ms", "1", "--batch-size", "32", "--envs-per-actor", "4", "--seconds", "1", "--runs", "1"]


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_a_tiny_run_ends_with_sound_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert pipeline.main([*TINY, "--cases", "pause", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {"benchmark", "machine", "commit", "results", "peers", "ratios"} <= set(document)
    found = {(result["case"], result["metric"]): result for result in document["results"]}
    assert all(result["runs"] == [result["value"]] for result in found.values()), "one run is its own median"
    for metric, unit in (("steps", "steps/s"), ("items", "items/s"), ("updates", "updates/s")):
        result = found["pause 1 ms", metric]
        assert result["unit"] == unit and result["value"] > 0
    assert found["pause 1 ms", "items"]["value"] == pytest.approx(32 * found["pause 1 ms", "updates"]["value"])
    for kind in ("simulator", "environment", "gather"):
        assert found["each alone", kind]["value"] > 0
    phases = {"learner": {"data_wait", "copy", "update", "send"}, "replay": {"busy"}, "actor": {"act", "env_step", "insert"}}
    for process, names in phases.items():
        shares = [found["pause 1 ms", f"{process}.{name}"]["value"] for name in names]
        assert 0 < sum(shares) < 101, f"the phases of the {process} do not overlap"
        assert found["pause 1 ms", f"{process} CPU"]["value"] > 0
    told = {(ratio["metric"], ratio["peer"]): ratio["value"] for ratio in document["ratios"]}
    updates = found["pause 1 ms", "updates"]["value"]
    assert told["updates", "pause alone"] == pytest.approx(updates / 1000) and told["updates", "pause alone"] < 1


def test_a_batch_that_cannot_be_is_told_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert pipeline.main(["--batch-size", "0"]) == 2
    assert capsys.readouterr().err.startswith("headrace bench pipeline: --learner.batch-size")
    for wrong in ("-1", "nan", "inf"):
        with pytest.raises(SystemExit):
            pipeline.main([f"--update-ms={wrong}"])


def test_shares_are_weighted_by_time_and_rates_add_up_over_processes() -> None:
    def rows(steps: float, *shares: float) -> list[dict[str, float]]:
        times = (100.0, 105.0, 120.0)
        found = [{"time": time, "act_fraction": share} for time, share in zip(times, shares, strict=True)]
        return [row | {"steps": steps * (row["time"] - 100), "processor_fraction": 0.5} for row in found]

    measured = Measured({"actor-0": rows(300, 9.0, 0.2, 0.6), "actor-1": rows(100, 9.0, 0.1, 0.1)})
    assert measured.rate("actor", "steps") == pytest.approx(400)
    assert measured.shares("actor")["act"] == pytest.approx((50 + 10) / 2), "the record counted from does not count"
    assert measured.cpu_seconds("actor", "steps") == pytest.approx(1e6 * 2 * 0.5 / 400)


def test_each_case_says_whether_the_limiter_is_open_and_names_differ() -> None:
    found = [case for each in cases(20.0).values() for case in each]
    assert len({case.name for case in found}) == len(found)
    assert {case.name for case in found if "replay" not in case.settings} == {"pause 20 ms", "real"}


def test_the_null_simulator_gives_pictures_that_change_and_episodes_that_end() -> None:
    config = EnvConfig(id=ENV)
    spec = experience_spec(make_env(config), config, "lz4")
    assert (spec.stack, spec.fields[0].shape, spec.fields[0].dtype) == (4, (84, 84), "|u1")
    env = VectorEnv(config, spec, 2, [0, 5])
    first = env.reset()["observation"]
    assert (first == pictures()[[0, 5]]).all()
    step = env.step(first[:, 0, 0] * 0)
    assert (step.observation["observation"] == pictures()[[1, 6]]).all() and FRAMES > 6
    for _ in range(EPISODE_STEPS - 1):
        assert not step.terminated.any()
        step = env.step(first[:, 0, 0] * 0)
    assert step.terminated.all() and not step.truncated.any() and [episode.length for episode in step.episodes] == [1000, 1000]
