"""A pause of a real run: nothing moves, nothing is lost, and it goes on where it was."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from deploy.cli.browser.web import Buttons
from tests.flow.test_run import SETTINGS
from tests.harness.run import World

pytestmark = [
    pytest.mark.flow,
    pytest.mark.skipif(os.name != "posix", reason="signals"),
]
NAMES = ("replay", "learner", "actor-0", "actor-1", "evaluator")


@pytest.fixture
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("world"), "CartPole-v1", SETTINGS)
    yield made
    made.close()
    made.run_dir.remove_sockets()


def said(world: World, *command: str) -> str:
    done = world.command(*command)
    assert done.returncode == 0, done.stderr
    return done.stdout


def rests(world: World, *names: str) -> bool:
    return all(world.process(name).get("state") == "paused" for name in names)


def counts(world: World) -> tuple[float, float, float]:
    """Steps that replay has, items that it has given, updates; of its newest records."""
    replay, learner = world.records("replay")[-1], world.records("learner")[-1]
    return replay["inserted_steps"], replay["sampled_items"], learner["updates"]


def test_a_paused_run_stands_still_and_goes_on(world: World) -> None:
    world.up()
    world.until(lambda: world.status["learner"]["updates"], "it learns")
    assert "is paused" in said(world, "pause")
    world.until(lambda: rests(world, *NAMES) and world.status["state"] == "paused", "every process rests")
    assert "is paused already, since" in said(world, "pause") and "paused for" in said(world, "status")
    assert world.status["bottleneck"].startswith("paused since ")

    def three_more() -> None:
        before = [len(world.records(name)) for name in ("replay", "learner")]
        world.until(
            lambda: all(len(world.records(name)) >= count + 3 for name, count in zip(("replay", "learner"), before, strict=True)),
            "three more records",
        )

    three_more()  # what was under way has arrived
    still, text = counts(world), world.text
    three_more()
    more = world.text.removeprefix(text)
    assert counts(world) == still and " steps/s" not in more, more
    os.kill(world.pid("actor-1"), signal.SIGKILL)
    world.until(lambda: world.process("actor-1")["restarts"] == 1 and rests(world, *NAMES), "another actor-1 rests, too")
    three_more()  # it may have begun before it was told
    still = counts(world)
    three_more()
    assert counts(world) == still
    written = said(world, "checkpoint")
    assert written.startswith("wrote epoch-") and written.split()[1].rstrip(":") in os.listdir(world.run_dir.checkpoints)
    assert "evaluation of policy v" in said(world, "evaluate-now")
    assert [world.process(name)["restarts"] for name in NAMES] == [0, 0, 0, 1, 0]
    assert said(world, "unpause") == "run mine goes on\n"
    world.until(lambda: all(now > then for now, then in zip(counts(world), still, strict=True)), "it goes on")
    world.until(lambda: world.status["state"] == "running" and world.status["paused_since"] is None, "and says so")
    assert "not paused" in said(world, "unpause")
    assert "abandoned" not in world.text and "hung" not in world.text
    # Paused again, it is stopped in order.
    said(world, "pause")
    assert Buttons().look(world.run_dir, "actor-1") == "run mine is paused, so actor-1 rests"
    assert world.stop() == 0
    world.supervisor = None
    assert Buttons().look(world.run_dir, "actor-1") == "run mine is not up"
    assert "did not stop in time" not in world.text and (world.run_dir.checkpoints / "latest.safetensors").exists()
