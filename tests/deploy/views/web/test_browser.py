"""The page in a real browser: every kind of run, narrow and wide, light and dark."""

from __future__ import annotations

import importlib.resources
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.views.web.report import report
from tests.deploy.views.web.kinds import KINDS, address_of, served
from tests.deploy.views.web.made_up import BEGAN, made_up, with_videos
from tests.deploy.views.web.test_report import hostile_run, recorded
from tests.harness.chromium import NEEDS_CHROMIUM, Chromium, Page
from transport.run_dir import RunDir

pytestmark = NEEDS_CHROMIUM
SHOWN = "document.querySelector('main section') && !(document.getElementById('said') || {}).textContent"
# What sticks out of the page, or of its own box where that is cut off.
CUT_OFF = """[...document.querySelectorAll('main *')].filter((one) => {
  const box = one.getBoundingClientRect();
  if (!box.width || one.closest('.wide, .log, .entries, .plot, svg')) return false;
  return box.right > innerWidth + 1 || (getComputedStyle(one).overflowX === 'hidden' && one.scrollWidth > one.clientWidth + 1);
}).map((one) => one.tagName + '.' + one.className)"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    with Chromium(tmp_path_factory.mktemp("profile")) as found:
        yield found


def shown(page: Page, address: str) -> Page:
    """Opens an address and scrolls to the end, so that all charts are drawn."""
    page.open(address)
    page.wait(SHOWN)
    height = page.run("document.documentElement.scrollHeight")
    for top in range(0, height, 600):
        page.run(f"scrollTo({{top: {top}, behavior: 'instant'}})")
        page.run("new Promise((done) => requestAnimationFrame(() => setTimeout(done, 50)))")
    return page


def opened(browser: Chromium, address: str, shows: str = SHOWN) -> Page:
    page = browser.page()
    page.open(address)
    page.wait(shows)
    return page


def reported(browser: Chromium, folder: Path, *runs: RunDir) -> Page:
    """The page of a report about these runs."""
    path = folder / "report.html"
    path.write_text(report(recorded(*runs)), encoding="utf-8")
    return opened(browser, path.as_uri())


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_run_fits_the_screen_and_requests_nothing_elsewhere(kind: str, browser: Chromium, tmp_path: Path) -> None:
    with address_of(kind, tmp_path) as address:
        page = shown(browser.page(), address)
        for width in (1400, 400):
            page.resize(width)
            page.wait(f"document.documentElement.scrollWidth === {width}")  # charts follow with the next frame
            page.run("new Promise((done) => requestAnimationFrame(() => setTimeout(done, 20)))")
            assert page.run(CUT_OFF) == []
        assert page.run("document.querySelectorAll('.chart:not([hidden]) canvas').length") >= (kind != "empty")
        assert page.errors() == []
        own = address.partition("?")[0]
        assert [one for one in page.requested() if not one.startswith((own, "data:"))] == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_axe_core_finds_no_serious_fault(kind: str, browser: Chromium, tmp_path: Path) -> None:
    pytest.importorskip("axe_core_python", reason="axe-core finds what is hard to read or to reach")
    axe = (importlib.resources.files("axe_core_python") / "axe.min.js").read_text(encoding="utf-8")
    with address_of(kind, tmp_path) as address:
        page = shown(browser.page(), address)
        page.run(f"{axe};0")
        for width in (1400, 400):
            page.resize(width)
            for dark in (False, True):
                page.colours(dark)
                assert faults(page) == [], f"{width} pixels, {'dark' if dark else 'light'}"


def faults(page: Page) -> list[Any]:
    """What axe-core calls serious or critical, with the elements."""
    found = json.loads(page.run("axe.run().then((found) => JSON.stringify(found.violations))"))
    return [
        (one["id"], [node["html"][:200] for node in one["nodes"]]) for one in found if one["impact"] in ("serious", "critical")
    ]


def test_a_new_video_does_not_interrupt_the_one_that_plays(browser: Chromium, tmp_path: Path) -> None:
    run = with_videos(made_up(tmp_path / "mine", state="running", seconds=60), {1: 5.0, 2: 9.0, 3: 2.0, 4: 7.0})
    with served(run) as address:
        page = opened(browser, address, "document.querySelectorAll('.video').length === 3")
        # The browser takes the video at the top for one that plays: these files hold no pictures.
        page.run("""window.first = document.querySelector('.video video');
            Object.defineProperty(first, 'paused', { value: false, configurable: true });
            window.moved = 0;
            new MutationObserver((all) => {
              for (const one of all) for (const node of one.removedNodes) if (node.contains(first)) moved += 1;
            }).observe(document.querySelector('.videos'), { childList: true });""")
        (run.videos / "videos.json").unlink()
        for file in run.videos.iterdir():
            file.unlink()
        run.videos.rmdir()
        with_videos(run, {5: 7.0, 6: 1.0})
        page.wait("document.querySelector('.videos').textContent.includes('v6')")
        assert page.run("first.isConnected && moved === 0")
        page.run("delete first.paused; first.dispatchEvent(new Event('pause'));")
        assert page.run("!first.isConnected && document.querySelectorAll('.video').length") == 2


def test_the_page_of_a_run_goes_on_with_the_one_that_takes_its_place(browser: Chromium, tmp_path: Path) -> None:
    folder, steps = tmp_path / "mine", "document.querySelector('.tile .value').textContent"
    with served(made_up(folder, state="running", seconds=1800)) as address:
        page = opened(browser, address, f"{SHOWN} && {steps} === '5.4M'")
        folder.rename(tmp_path / "mine.1")
        page.wait("document.getElementById('said').textContent === 'this run has been removed'")
        assert page.run(steps) == "5.4M", "the last figures stay"
        made_up(folder, state="running", seconds=60)
        page.wait(f"{SHOWN} && {steps} === '180k'")
        page.wait("document.querySelector('#learning canvas')")
        assert page.run("runs.get('mine').grid.steps.length") == 12, "nothing of the run before"


def test_a_run_that_is_resumed_with_other_settings_has_them(browser: Chromium, tmp_path: Path) -> None:
    with served(made_up(tmp_path / "mine", state="running", seconds=60, learner__batch_size=61)) as address:
        page = browser.page()
        page.open(address)
        settings = "document.querySelector('.settings').textContent"
        page.wait(f"{SHOWN} && {settings}.includes('learner.batch_size61')")
        made_up(tmp_path / "mine", state="running", seconds=60, learner__batch_size=67)
        page.wait(f"{settings}.includes('learner.batch_size67')")


def test_rates_are_those_of_the_actors_that_a_run_has_now(browser: Chromium, tmp_path: Path) -> None:
    run = made_up(tmp_path / "mine", state="running", actors=4, seconds=60)
    flow = "document.querySelector('.flow').textContent.replaceAll('\\u00a0', ' ')"
    with served(run) as address:
        page = opened(browser, address, f"{SHOWN} && {flow}.includes('96 kB/s')")
        status = json.loads(run.status.read_bytes())
        status["processes"] = [one for one in status["processes"] if one["name"] not in ("actor-1", "actor-2", "actor-3")]
        run.status.write_text(json.dumps(status))
        page.wait(f"{flow}.startsWith('Actors1') && {flow}.includes('24 kB/s')")


def test_charts_are_in_the_same_order_while_a_run_is_up_and_afterwards(browser: Chromium, tmp_path: Path) -> None:
    run, path = made_up(tmp_path / "mine", state="running", seconds=60), tmp_path / "report.html"
    titles = "[...document.querySelectorAll('.chart h3')].map((one) => one.textContent)"
    first, *others = run.metrics("learner").read_text().splitlines(keepends=True)
    early = {name: value for name, value in json.loads(first).items() if name not in ("gradient_norm", "loss")}
    run.metrics("learner").write_text(json.dumps(early) + "\n")
    page = browser.page()
    with served(run) as address:
        page.open(address)
        page.wait(f"{SHOWN} && {titles}.includes('Td') && !{titles}.includes('Loss')")
        with run.metrics("learner").open("a") as file:
            file.writelines(others)  # figures of an algorithm may begin later than others
        page.wait(f"{titles}.includes('Loss')")
        live = page.run(titles)
    run.status.write_text(json.dumps(json.loads(run.status.read_bytes()) | {"state": "stopped"}))
    path.write_text(report(recorded(run)), encoding="utf-8")
    page.open(path.as_uri())
    page.wait(SHOWN)
    assert page.run(titles) == live and len(live) > 10


def test_groups_that_two_settings_do_not_tell_apart_have_all_of_them_in_their_names(browser: Chromium, tmp_path: Path) -> None:
    runs = [
        made_up(
            tmp_path / f"a-{number}", seconds=60, learner__batch_size=size, learner__learning_rate=rate, algorithm__n_step=steps
        )
        for number, (size, rate, steps) in enumerate([(64, 0.01, 1), (64, 0.02, 1), (128, 0.02, 3)])
    ]
    page = reported(browser, tmp_path, *runs)
    names = page.run("[...document.querySelectorAll('#task-0 tbody th')].map((one) => one.textContent)")
    assert len(set(names)) == 3, names


def test_a_simulator_of_less_than_one_step_in_a_second_has_a_speed(browser: Chromium, tmp_path: Path) -> None:
    run = made_up(tmp_path / "slow", seconds=60)
    with run.metrics("replay").open("a") as file:
        file.write(json.dumps({"time": BEGAN + 65, "inserted_steps": 180_001, "inserted_steps_per_second": 0.25}) + "\n")
    page = reported(browser, tmp_path, run)
    shown_steps = (
        "[...document.querySelectorAll('.tile')].find((one) => one.textContent.startsWith('Steps per second')).textContent"
    )
    assert page.run(shown_steps) == "Steps per second0.25at the end"
    assert page.run("[0, 3, 12.54, 99.96, 100, 1234, 12345].map(count).join(' ')") == "0 3 12.5 100 100 1,234 12.3k"


def test_a_page_that_is_loaded_again_shows_the_run_that_it_has_shown(browser: Chromium, tmp_path: Path) -> None:
    with served(made_up(tmp_path / "mine", seconds=60), made_up(tmp_path / "other", seconds=60)) as address:
        page = opened(browser, address, f"{SHOWN} && document.querySelector('h1').textContent === 'mine'")
        page.run("choose('other')")
        page.wait(f"{SHOWN} && document.querySelector('h1').textContent === 'other'")
        page.run("document.querySelector('nav a[href=\"#learning\"]').click()")
        page.wait("location.hash === '#learning'")
        page.run("window.before = true; location.reload()")
        page.wait(f"!window.before && {SHOWN}")
        assert page.run("document.querySelector('h1').textContent") == "other"


HIDE = """Object.defineProperty(document, 'hidden', {{ value: {hidden}, configurable: true }});
    document.dispatchEvent(new Event('visibilitychange'))"""


def test_a_page_that_nobody_sees_holds_no_connection_and_goes_on_as_it_was_left(browser: Chromium, tmp_path: Path) -> None:
    """A browser has six connections to a server: with six pages that hold one each, a seventh and all buttons would wait."""
    run, pages = made_up(tmp_path / "mine", state="running", seconds=60), 8
    with served(run) as address:
        every = []
        for _ in range(pages):
            page = opened(browser, address)
            every.append(page)
            page.run("document.querySelector('#configuration input').value = 'batch'; setZoom([1000, 2000])")
            page.run(HIDE.format(hidden="true"))
        with run.metrics("replay").open("a") as file:
            file.write(json.dumps({"time": BEGAN + 65, "inserted_steps": 200_000}) + "\n")
        page = every[0]
        assert page.run("runs.get('mine').grid.steps.length") == 12, "it has no news"
        page.run(HIDE.format(hidden="false"))
        page.wait("runs.get('mine').grid.steps.length === 13")
        assert page.run("document.querySelector('#configuration input').value") == "batch" and page.run("zoom[1]") == 2000


def test_markup_in_a_run_is_text_of_the_page_and_nothing_of_it_runs(browser: Chromium, tmp_path: Path) -> None:
    page = reported(browser, tmp_path, hostile_run(tmp_path))
    assert page.run("document.title").endswith(" · Headrace") and page.run("document.querySelectorAll('img').length") == 0
    text = page.run("document.querySelector('main').textContent")
    assert "Best return" in text and "There is no video" in text and page.errors() == []
    assert page.run("document.getElementById('look')") is None, "no actor is at work"


def test_runs_that_have_not_been_evaluated_are_compared_by_their_settings(browser: Chromium, tmp_path: Path) -> None:
    runs = [made_up(tmp_path / f"begun-{size}", seconds=60, learner__batch_size=size) for size in (61, 67)]
    for run in runs:
        run.metrics("evaluator").unlink()
    text = reported(browser, tmp_path, *runs).run("document.querySelector('main').textContent")
    assert text.startswith("Comparison of 2 runs") and "learner.batch_size6167" in text
    assert "1 of " in text and " settings differ between" in text


def test_a_click_on_the_curve_gives_the_command_that_plays_the_episode_again(browser: Chromium, tmp_path: Path) -> None:
    with served(made_up(tmp_path / "mine", state="stopped", seconds=600)) as address:
        page = opened(browser, address, "document.querySelector('.clickable')")
        for axis in ("seconds", "steps"):
            page.run("document.querySelector('.clickable').scrollIntoView({ block: 'center', behavior: 'instant' })")
            page.run(f"setAxis('{axis}')")
            plot = "[...charts.values()].find((one) => one.clicked).plot"
            page.wait(f"Math.abs({plot}.scales.x.max / runs.get(shownRun).grid[axis].at(-1) - 1) < 0.2")  # it is drawn
            x, y, wanted = page.run("""(() => {
                const { plot } = [...charts.values()].find((one) => one.clicked);
                const middle = (plot.scales.x.min + plot.scales.x.max) / 2;
                const box = plot.over.getBoundingClientRect();
                const step = axis === 'steps' ? middle : stepsAt(runs.get(shownRun).grid, middle);
                return [box.left + box.width / 2, box.top + box.height / 2, step];
            })()""")
            pressed = {"y": y, "button": "left", "clickCount": 1}
            for kind in ("mousePressed", "mouseReleased"):
                page.call("Input.dispatchMouseEvent", type=kind, x=x, **pressed)
            name, _, step = page.run("document.querySelector('.command').textContent").partition(" --step ")
            assert name == "headrace replay mine" and int(step) == pytest.approx(wanted, rel=0.02)
        page.call("Input.dispatchMouseEvent", type="mousePressed", x=x - 60, **pressed)
        page.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y, buttons=1)
        page.call("Input.dispatchMouseEvent", type="mouseReleased", x=x, **pressed)
        assert page.run("zoom !== null && document.querySelector('.command').textContent").endswith(step), "a drag is no click"
        assert page.errors() == []


def test_keys_go_to_the_actor_while_they_are_held_and_each_at_least_once(browser: Chromium, tmp_path: Path) -> None:
    with address_of("live", tmp_path) as address:
        page, wheel = browser.page(), "document.querySelector('#look .controls button')"
        page.call("Emulation.setFocusEmulationEnabled", enabled=True)
        page.open(address)
        page.wait(wheel)
        page.run("""sent = []; real = fetch; window.fetch = (to, what) => {
            if (String(to).includes('steer')) sent.push(JSON.parse(what.body)); return real(to, what); }; 0""")
        page.run(f"{wheel}.click()")
        page.wait("sent.length > 2 && document.querySelector('#look').textContent.includes('You steer')")
        keys = "sent.map((one) => (one.keys || []).join('+'))"
        page.call("Input.dispatchKeyEvent", type="keyDown", key="A", code="KeyA")
        page.wait(f"{keys}.filter((one) => one === 'a').length > 3")
        page.call("Input.dispatchKeyEvent", type="keyDown", key=" ", code="Space")
        page.call("Input.dispatchKeyEvent", type="keyUp", key=" ", code="Space")
        page.call("Input.dispatchKeyEvent", type="keyUp", key="a", code="KeyA")
        page.wait("sent[sent.length - 1].keys.length === 0")
        assert page.run(f"{keys}.filter((one) => one.includes('space')).length") in (1, 2), "a tap, however short"
        page.run("document.querySelector('#log input').focus()")
        page.call("Input.dispatchKeyEvent", type="keyDown", key="b", code="KeyB", text="b")
        assert page.run("document.querySelector('#log input').value") == "b", "what is typed elsewhere is typed"
        page.run("document.activeElement.blur()")
        page.call("Input.dispatchKeyEvent", type="keyDown", key="Escape", code="Escape")
        page.wait("sent[sent.length - 1].ends === true")
        assert page.run(f"new Set(sent.map((one) => one.person)).size === 1 && !{keys}.includes('b')")
        assert page.run(f"{wheel}.textContent") == "Take over" and page.errors() == []
