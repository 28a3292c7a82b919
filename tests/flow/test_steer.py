"""A person in a browser takes over an actor of a real run: keys held, the page closed in the middle, two at once."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from deploy.cli.browser.web import Buttons, TheseRuns
from deploy.views.web.server import WebServer
from replay.log.segments import read_chunk, scan
from tests.flow.test_run import SETTINGS
from tests.harness.chromium import NEEDS_CHROMIUM, Chromium, Page
from tests.harness.run import World
from transport.experience import PERSON, Columns, read_spec
from transport.messages.control import STEER_SECONDS

pytestmark = [pytest.mark.flow, pytest.mark.skipif(os.name != "posix", reason="signals"), NEEDS_CHROMIUM]

TAKE_OVER = "document.querySelector('#look .controls button')"
SAID = "document.querySelector('#look .controls .said').textContent"


@pytest.fixture
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("world"), "CartPole-v1", SETTINGS)
    yield made
    made.close()
    made.run_dir.remove_sockets()


@pytest.fixture
def server(world: World) -> Iterator[WebServer]:
    made = WebServer(TheseRuns([world.run_dir]), Buttons())
    thread = threading.Thread(target=made.serve)
    thread.start()
    yield made
    made.stop()
    thread.join()


def opened(browser: Chromium, server: WebServer) -> Page:
    page = browser.page()
    page.call("Emulation.setFocusEmulationEnabled", enabled=True)  # as a window of its own
    page.open(server.access.link(server.address, control=True))
    page.wait(TAKE_OVER)
    page.run("document.getElementById('look').scrollIntoView({behavior: 'instant'})")
    return page


def take(page: Page) -> None:
    page.run(f"{TAKE_OVER}.click()")


def key(page: Page, kind: str, name: str) -> None:
    page.call("Input.dispatchKeyEvent", type=kind, key=name, code=name)


def hold(page: Page, name: str, shown: str) -> None:
    """Presses a key, and waits until the page has sent it often enough for steps to be taken with it."""
    page.run("sent = []; real = fetch; window.fetch = (to, what) => { sent.push(what?.body); return real(to, what); }; 0")
    key(page, "keyDown", name)
    page.wait(f"sent.filter((body) => body && body.includes('{shown}')).length > 8")


def steered(world: World) -> list[str]:
    return list(world.status["steered"])


def human_steps(world: World) -> Columns:
    """Action and step of the episode of all human steps, in their order."""
    spec, found = read_spec(world.run_dir.spec.read_bytes()), list[Columns]()
    for entry in scan(world.run_dir.human_steps, spec).entries:
        with entry.path.open("rb") as file:
            chunk = read_chunk(file, entry, spec)
        own = slice(spec.history, spec.history + chunk.length)
        mine = (chunk.columns["policy_version"][own] == PERSON) & (chunk.columns["valid"][own] != 0)
        found.append({name: chunk.columns[name][own][mine] for name in ("action", "episode_step")})
    return {name: np.concatenate([each[name] for each in found]) for name in found[0]}


def test_keys_steer_a_closed_page_hands_back_and_the_second_person_waits(world: World, server: WebServer) -> None:
    world.up()
    with Chromium(world.folder / "profile") as browser:
        page, other = opened(browser, server), opened(browser, server)
        take(page)
        page.wait(f"{SAID}.startsWith('You steer')")
        hold(page, "ArrowLeft", "left")
        page.wait("document.querySelector('#look .keys').textContent === 'left'")
        world.until(lambda: steered(world) == ["actor-0"], "the status says who is steered")
        take(other)
        other.wait(f"{SAID} === 'another person steers actor-0'")
        take(page)  # once more: its own button hands back
        page.wait(f"{SAID} === ''")
        world.until(lambda: steered(world) == [], "handed back")
        take(other)
        other.wait(f"{SAID}.startsWith('You steer')")
        world.until(lambda: steered(world) == ["actor-0"], "the other person steers")
        hold(other, "ArrowRight", "right")
        other.run("window.fetch = () => new Promise(() => {})")  # as a page that is gone: no word of farewell
        closed = time.monotonic()
        world.until(lambda: steered(world) == [], "handed back without a word")
        assert time.monotonic() - closed < STEER_SECONDS + 5.0, "the status has a second of its own, and the machine others"
        assert page.errors() == []
    assert world.interrupt() == 0
    actions = human_steps(world)["action"]
    assert len(actions) > 5 and set(actions) == {0, 1}, "left by one, right by the other"
    told = [json.loads(line) for line in world.run_dir.events.read_text().splitlines()]
    told = [event for event in told if event["kind"] in ("steered", "handed_back")]
    kinds, ends = [event["kind"] for event in told], [event["text"] for event in told[1::2]]
    # On a busy machine a key may come late: then the person has left, and their next key takes over once more.
    assert kinds == ["steered", "handed_back"] * len(ends) and len(ends) >= 2
    assert ends.count("a person has handed back") == 1 and ends[-1] == "the person who steered it has left"
    assert world.status["replay"]["human_steps"] == len(actions)
    world.supervisor = None
    world.up()
    world.until(lambda: "human steps in" in world.text, "a resumed run has them")
    assert world.interrupt() == 0
