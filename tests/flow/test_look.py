"""What an actor of a real run sees, asked for as the page does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from deploy.cli.browser.common import Buttons
from deploy.reporting.web.look import shown
from tests.flow.test_run import SETTINGS
from tests.harness.run import World

pytestmark = [
    pytest.mark.flow,
    pytest.mark.skipif(os.name != "posix", reason="signals"),
]


def test_an_actor_shows_what_it_sees_until_it_is_paused_or_gone(tmp_path: Path) -> None:
    world = World(tmp_path, "CartPole-v1", SETTINGS)
    try:
        world.up()
        found: list[object] = []

        def seen() -> bool:
            answer = Buttons().look(world.run_dir, "actor-1")
            if not isinstance(answer, str):
                found.append(shown(world.run_dir, *answer))
            return bool(found)

        world.until(seen, "actor-1 shows what it sees")
        document = found[0]
        assert isinstance(document, dict) and [len(field["entries"]) for field in document["fields"]] == [4]
        assert len(document["actions"]) == 2 and document["kind"] == "action value" and document["policy_version"] >= 0
        assert Buttons().look(world.run_dir, "actor-2") == "run mine has no actor-2 that is at work"
        assert world.command("pause").returncode == 0
        assert Buttons().look(world.run_dir, "actor-1") == "run mine is paused, so actor-1 rests"
        assert world.stop() == 0
        assert Buttons().look(world.run_dir, "actor-1") == "run mine is not up"
    finally:
        world.close()
        world.run_dir.remove_sockets()
