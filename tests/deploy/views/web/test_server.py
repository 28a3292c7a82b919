"""The page of a live run: what it sends, and whom it refuses."""

from __future__ import annotations

import http.client
import json
import re
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, get_args
from urllib.parse import quote, urlsplit

import pytest

from deploy.recorded.run import RecordedRun
from deploy.views.web import server as web
from deploy.views.web.access import Access, PageRequest
from deploy.views.web.document import PageFollower
from deploy.views.web.server import Steering, WebServer, stamps
from deploy.views.web.videos import shown_videos
from tests.deploy.views.web.kinds import Shown
from tests.deploy.views.web.made_up import BEGAN, made_up, with_videos
from tests.deploy.views.web.test_report import HOSTILE, hostile_run
from tests.harness.waiting import Clock, wait_until
from transport.messages.control import What

SECONDS = 20.0
BUTTONS = ("scale", "stop", "steer", *get_args(What))


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    text: str


class Browser:
    """Sends requests as a browser would: with its cookies, and with the headers of a page's own requests."""

    def __init__(self, server: WebServer) -> None:
        self.server, self.cookies = server, dict[str, str]()
        self.port = urlsplit(server.address).port

    def open(self, link: str) -> Answer:
        answer = self.get(link.removeprefix(self.server.address))
        for line in answer.headers.get("set-cookie", "").split("\n"):
            if line:
                name, _, value = line.partition(";")[0].partition("=")
                self.cookies[name] = value
        return answer

    def get(self, path: str, **headers: str) -> Answer:
        return self.send("GET", path, None, headers)

    def post(self, path: str, body: Any, **headers: str) -> Answer:
        own = {"origin": self.server.address, "content-type": "application/json", "sec-fetch-site": "same-origin"}
        return self.send("POST", path, json.dumps(body).encode(), own | headers)

    def send(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)
        try:
            connection.putrequest(method, path, skip_host="host" in headers)
            for name, value in headers.items():
                connection.putheader(name, value)
            if self.cookies:
                connection.putheader("cookie", "; ".join(f"{name}={value}" for name, value in self.cookies.items()))
            connection.putheader("content-length", str(len(body or b"")))
            connection.endheaders(body)
            found = connection.getresponse()
            joined: dict[str, str] = {}
            for name, value in found.getheaders():
                joined[name.lower()] = f"{joined[name.lower()]}\n{value}" if name.lower() in joined else value
            return Answer(found.status, joined, found.read().decode())
        finally:
            connection.close()

    @contextmanager
    def events(self, run: str) -> Iterator[Iterator[tuple[str, Any]]]:
        """The events of a page: kind and data."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)
        cookie = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        connection.request("GET", f"/api/events?run={quote(run)}", headers={"cookie": cookie})
        found = connection.getresponse()

        def each() -> Iterator[tuple[str, Any]]:
            while line := found.readline():
                kind, data = line.decode().strip().removeprefix("event: "), found.readline().decode().removeprefix("data: ")
                found.readline()
                yield kind, json.loads(data)

        try:
            yield each()
        finally:
            connection.close()


@pytest.fixture
def shown(tmp_path: Path) -> Shown:
    return Shown(made_up(tmp_path / "mine", seconds=120), made_up(tmp_path / "other", seconds=60))


@pytest.fixture
def server(shown: Shown) -> Iterator[WebServer]:
    made = WebServer(shown, shown)
    thread = threading.Thread(target=made.serve)
    thread.start()
    yield made
    made.stop()
    thread.join(SECONDS)
    assert not thread.is_alive()


@pytest.fixture
def browser(server: WebServer) -> Browser:
    """One that has opened the link for looking and steering."""
    made = Browser(server)
    assert made.open(server.access.link(server.address, control=True)).status == 200
    return made


@pytest.mark.parametrize(
    "sent",
    [b"", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n", b"POST /scale HTTP/1.1\r\nContent-Length: 900\r\n\r\n{"],
    ids=["nothing", "half a header", "half a body"],
)
def test_connections_that_send_no_whole_request_are_closed_and_do_not_block_the_page(
    sent: bytes, server: WebServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web.TimedProtocol, "first_seconds", 0.2)
    monkeypatch.setattr(web.TimedProtocol, "next_seconds", 0.2)
    browser = Browser(server)
    assert browser.open(server.access.link(server.address)).status == 200
    idle = [socket.create_connection((web.HOST, int(browser.port or 0))) for _ in range(web.MOST_CONNECTIONS + 6)]
    for one in idle:
        one.sendall(sent)
    wait_until(lambda: browser.get("/").status == 200, SECONDS)
    for one in idle:
        one.settimeout(SECONDS)
        while one.recv(4096):
            pass
        one.close()


def test_the_link_gives_cookies_that_no_script_and_no_other_site_gets(server: WebServer) -> None:
    browser = Browser(server)
    answer = browser.open(server.access.link(server.address))
    cookies = answer.headers["set-cookie"].split("\n")
    assert len(cookies) == 1 and all("httponly" in one.lower() and "samesite=strict" in one.lower() for one in cookies)
    assert "url=/" in answer.text and server.access.watch not in answer.text  # the token leaves the address bar
    page = browser.get("/")
    assert page.status == 200 and "page.js" in page.text
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
    for name in set(re.findall(r'(?:src|href)="(/[^"]+)"', page.text)):
        assert browser.get(name).status == 200
    assert not re.search(r"<script(?! src=)|<style|https?://", page.text)


OF_A_RUN = (
    "/api/events?run=mine",
    "/api/search?run=mine&text=a",
    "/api/settings?run=mine",
    "/api/video?run=mine&file=best-v3.mp4",
    "/api/look?run=mine&actor=actor-0",
)


@pytest.mark.parametrize("path", ["/", "/page/page.js", "/api/runs", *OF_A_RUN, "/x"])
def test_without_a_token_nothing_is_shown(server: WebServer, path: str) -> None:
    for browser, given in ((Browser(server), path), (Browser(server), f"/?token={'x' * 32}")):
        answer = browser.get(given)
        assert answer.status == 403 and "headrace web" in answer.text and "set-cookie" not in answer.headers


def test_a_cookie_of_another_start_is_worth_nothing(server: WebServer, browser: Browser, shown: Shown) -> None:
    later = Access(read_only=False)
    browser.cookies = {name: later.watch for name in browser.cookies}
    assert browser.get("/api/runs").status == 403


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},  # another port of this machine
        {"host": "evil.example"},  # a name that was made to resolve to this machine
        {"host": "evil.example:80@127.0.0.1"},
    ],
)
def test_requests_that_another_page_caused_are_refused(browser: Browser, shown: Shown, headers: dict[str, str]) -> None:
    with_videos(shown.runs["mine"], {3: 10.0})
    for path in ("/api/runs", *OF_A_RUN):
        assert browser.get(path, **headers).status == 403
    assert all(browser.post(f"/api/{button}?run=mine", {"actors": 3}, **headers).status == 403 for button in BUTTONS)
    assert shown.done == []


@pytest.mark.parametrize(
    "change", [{"origin": ""}, {"content-type": "text/plain"}, {"content-type": "application/x-www-form-urlencoded"}]
)
def test_a_foreign_form_cannot_press_a_button(browser: Browser, shown: Shown, change: dict[str, str]) -> None:
    for button in BUTTONS:
        assert browser.post(f"/api/{button}?run=mine", {"actors": 3}, **change).status == 403
        assert browser.get(f"/api/{button}?run=mine").status == 405
    assert shown.done == []


def test_buttons_work_with_their_own_token_only(server: WebServer, browser: Browser, shown: Shown) -> None:
    watcher = Browser(server)
    watcher.open(server.access.link(server.address))
    assert json.loads(watcher.get("/api/runs").text)["controls"] is False
    assert all(watcher.post(f"/api/{button}?run=mine", {"actors": 3}).status == 403 for button in BUTTONS)
    assert shown.done == []
    assert json.loads(browser.get("/api/runs").text) == {
        "runs": [{"name": "mine"}, {"name": "other"}],
        "beside": ["mine", "other"],
        "first": "mine",
        "controls": True,
    }
    assert json.loads(browser.post("/api/scale?run=mine", {"actors": 3}).text) == {"message": "3 actors"}
    assert json.loads(browser.post("/api/stop?run=other", {}).text) == {"message": "stopping"}
    assert shown.done == [("scale", "mine", 3), ("stop", "other", 0)]
    for what in get_args(What):
        assert json.loads(browser.post(f"/api/{what}?run=other", {}).text) == {"message": f"{what} is done"}
        assert shown.done[-1] == (what, "other", 0) and browser.post(f"/api/{what}?run=nope", {}).status == 404


@pytest.mark.parametrize("body", [{}, {"actors": "3"}, {"actors": True}, {"actors": 2.5}, [3], {"actors": 3, "x": "y" * 2000}])
def test_a_wrong_body_does_nothing(browser: Browser, shown: Shown, body: Any) -> None:
    assert browser.post("/api/scale?run=mine", body).status == 400 and shown.done == []


def test_a_read_only_server_has_no_buttons(shown: Shown) -> None:
    access = Access(read_only=True)
    assert access.control is None and "control" not in access.link("http://127.0.0.1:1", control=True)
    entered = access.cookies(PageRequest("GET", "/", {}, {"token": access.watch, "control": "None"}, {}))
    own = {"host": "localhost:1", "origin": "http://localhost:1", "content-type": "application/json"}
    for button in BUTTONS:
        assert "only shows" in access.refusal(PageRequest("POST", f"/api/{button}", own, {}, entered))


@pytest.mark.parametrize("name", ["../mine", "..%2f..%2fetc%2fpasswd", "/etc", "mine/../mine", "%00", "nope", ""])
def test_a_run_is_named_never_reached_by_a_path(browser: Browser, shown: Shown, name: str) -> None:
    with_videos(shown.runs["mine"], {3: 10.0})
    for path in ("/api/events", "/api/search", "/api/settings", "/api/video"):
        assert browser.get(f"{path}?run={name}&text=a&file=best-v3.mp4").status == 404
    assert browser.post(f"/api/stop?run={name}", {}).status == 404 and shown.done == []


def test_only_the_page_s_own_files_are_served(browser: Browser) -> None:
    outside = ("../server.py", "%2e%2e/server.py", "..%2fserver.py", "/etc/passwd", "index.html", "")
    assert [browser.get(path).status for path in ("/..", *(f"/page/{name}" for name in outside))] == [404] * 7
    assert browser.get("/favicon.ico").status == 204, "a browser that asks for an icon gets none and no error"


def test_a_page_gets_everything_once_and_then_what_is_new(browser: Browser, shown: Shown) -> None:
    run = shown.runs["mine"]
    with browser.events("mine") as events:
        kind, whole = next(events)
        assert kind == "whole" and whole["status"]["state"] == "stopped" and whole["settings"]
        kind, history = next(events)
        assert kind == "news" and len(history["grid"]["steps"]) == 24 and history["log"] and history["evaluations"]["best"]
        with run.metrics("replay").open("a") as file:
            file.write(json.dumps({"time": BEGAN + 125, "inserted_steps": 400_000, "items": 7}) + "\n")
        kind, news = next((kind, news) for kind, news in events if "grid" in news)
        assert kind == "news" and news["grid"]["from"] == 21 and news["grid"]["steps"][-1] == 400_000 and "settings" not in news


def test_of_another_run_in_the_folder_only_the_settings_are_shown(browser: Browser, shown: Shown, tmp_path: Path) -> None:
    third = shown.others["third"] = made_up(
        tmp_path / "third",
        seconds=60,
        learner__batch_size=99,
        learner__learning_rate=0.125,
        deploy__sinks=["x:Y"],
        deploy__sink_options={"x:Y": {"api_key": "s3cret"}},
    )
    third.config.write_text(third.config.read_text().replace("0.125", "inf"))  # no number in JSON
    assert json.loads(browser.get("/api/runs").text)["beside"] == ["mine", "other", "third"]
    answer = browser.get("/api/settings?run=third")
    found = {one["key"]: one["value"] for one in json.loads(answer.text)["settings"]}
    assert found["learner.batch_size"] == 99 and found["learner.learning_rate"] is None and "s3cret" not in answer.text
    with_videos(shown.others["third"], {3: 10.0})
    for path in ("/api/events", "/api/search", "/api/video"):
        assert browser.get(f"{path}?run=third&text=a&file=best-v3.mp4").status == 404


def test_a_video_is_sent_whole_or_in_the_parts_that_a_browser_asks_for(browser: Browser, shown: Shown) -> None:
    with_videos(shown.runs["mine"], {3: 10.0}, public=False)  # the server answers this machine only
    answer = browser.get("/api/video?run=mine&file=best-v3.mp4")
    assert (answer.status, answer.headers["content-type"], answer.text) == (200, "video/mp4", "a film 3")
    assert "media-src 'self'" in answer.headers["content-security-policy"] and answer.headers["cache-control"] == "no-store"
    part = browser.get("/api/video?run=mine&file=best-v3.mp4", range="bytes=2-5")
    assert (part.status, part.headers["content-range"], part.text) == (206, "bytes 2-5/8", "film")
    assert browser.get("/api/video?run=mine&file=best-v3.mp4", range="bytes=90-").status == 416
    assert browser.get("/api/video?run=other&file=best-v3.mp4").status == 404


def test_only_the_videos_of_the_run_s_list_are_sent(browser: Browser, shown: Shown, tmp_path: Path) -> None:
    run = with_videos(shown.runs["mine"], {3: 10.0, 4: 5.0, 5: 20.0, 6: 10.0})
    (run.videos / "best-v9.mp4").write_text("not in the list")
    (run.videos / "best-v4.mp4").unlink()
    (run.videos / "best-v5.mp4").unlink()
    (run.videos / "best-v5.mp4").symlink_to(run.config)
    (run.videos / "best-v6.mp4").unlink()
    (run.videos / "best-v6.mp4").mkdir()
    listed = json.loads((run.videos / "videos.json").read_text())
    listed += [listed[0] | {"file": name} for name in ("../config.toml", "videos.json", "/etc/passwd")]
    (run.videos / "videos.json").write_text(json.dumps(listed))
    names = "../config.toml|videos/best-v3.mp4|./best-v3.mp4|videos.json|/etc/passwd||best-v3.mp4\0|best-v3.mp4 "
    for name in (*names.split("|"), *(f"best-v{version}.mp4" for version in (4, 5, 6, 9))):
        assert browser.get(f"/api/video?run=mine&file={quote(name, safe='')}").status == 404, name
    assert browser.get("/api/video?run=mine").status == 404
    assert shown_videos(run) == []
    other = with_videos(shown.runs["other"], {3: 10.0})
    assert browser.get("/api/video?run=other&file=best-v3.mp4").status == 200 and len(shown_videos(other)) == 1
    other.videos.rename(tmp_path / "away")
    other.videos.symlink_to(tmp_path / "away")
    assert browser.get("/api/video?run=other&file=best-v3.mp4").status == 404 and shown_videos(other) == []


def test_an_actor_is_named_and_one_that_shows_nothing_gives_a_line(browser: Browser, shown: Shown) -> None:
    answer = browser.get("/api/look?run=mine&actor=actor-3")
    assert answer.status == 200 and json.loads(answer.text) == {"message": "actor-3 rests"}
    assert shown.done == [("actor-3", "mine", 0)]
    for path in ("run=nobody&actor=actor-3", "run=mine&actor=learner", "run=mine&actor=..%2Factor-1", "run=mine"):
        assert browser.get(f"/api/look?{path}").status == 404
    assert len(shown.done) == 1
    refused = browser.get("/api/look?run=mine&actor=actor-3", **{"sec-fetch-site": "cross-site"})
    assert refused.status == 403 and len(shown.done) == 1


STEER = {"actor": "actor-0", "person": 5, "keys": ["left", "a"]}


def test_who_steers_gets_what_the_keys_have_led_to(browser: Browser, shown: Shown) -> None:
    answer = browser.post("/api/steer?run=mine", STEER)
    assert answer.status == 200
    assert shown.steered == [Steering("actor-0", 5, ("left", "a"))]


@pytest.mark.parametrize(
    "change",
    [
        {"actor": "learner"},
        {"actor": "../actor-0"},
        {"keys": ["left"] * 17},
        {"keys": ["f5"]},
        {"keys": ["left\n"]},
        {"keys": "left"},
        {"person": -1},
        {"person": 2**60},
        {"person": "5"},
        {"ends": "no"},
        {"more": 1},
        {"x": "y" * 2000},
    ],
)
def test_what_no_page_sends_that_steers_is_refused(browser: Browser, shown: Shown, change: dict[str, Any]) -> None:
    assert browser.post("/api/steer?run=mine", STEER | change).status == 400 and shown.steered == []


def test_more_messages_than_people_can_send_are_refused_but_anyone_may_hand_back(
    browser: Browser, shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(web, "time", clock)

    def sent(number: int, **more: Any) -> list[int]:
        return [browser.post("/api/steer?run=mine", STEER | more).status for _ in range(number)]

    monkeypatch.setattr(web, "MOST_STEERS_PER_SECOND", 4.0)
    clock.now += 60
    assert sent(7) == [200] * 5 + [429] * 2, "those of a second, and the one that is due"
    assert sent(1, ends=True) == [200]
    clock.now += 0.5
    assert sent(3) == [200, 429, 429], "one hand-back took a place"


def test_a_new_video_is_news(shown: Shown) -> None:
    run, recorded = shown.runs["mine"], RecordedRun(shown.runs["mine"])
    follower, before = PageFollower(recorded), stamps(run)
    assert follower.whole()["videos"] == [] and "videos" not in follower.news()
    with_videos(run, {3: 10.0})
    assert stamps(run) != before
    assert [one["file"] for one in follower.news()["videos"]] == ["best-v3.mp4"] and "videos" not in follower.news()


def test_a_run_that_is_removed_is_said_to_be_gone(browser: Browser, shown: Shown) -> None:
    with browser.events("other") as events:
        assert next(events)[0] == "whole"
        shown.runs["other"].path.rename(shown.runs["other"].path.with_name("away"))
        assert next(kind for kind, _ in events if kind != "news") == "gone"
    with browser.events("other") as events:
        assert [kind for kind, _ in events] == ["gone"], "a page that asks again keeps what it shows"


def test_a_run_that_is_removed_while_its_files_are_listed_is_no_error(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    def removed(folder: Path, pattern: str) -> Iterator[Path]:
        raise FileNotFoundError(folder)

    monkeypatch.setattr(Path, "glob", removed)
    recorded = RecordedRun(shown.runs["mine"])
    recorded.read()
    assert not recorded.newest and "replay.jsonl" not in {name for name, _, _ in stamps(shown.runs["mine"])}


def test_markup_in_a_run_travels_as_data(browser: Browser, shown: Shown, tmp_path: Path) -> None:
    run = hostile_run(tmp_path)
    shown.runs[run.name] = run
    with browser.events(run.name) as events:
        _, whole = next(events)
        _, history = next(events)
        assert whole["name"] == run.name and HOSTILE in json.dumps(history["events"], ensure_ascii=False).replace('\\"', '"')
    answer = browser.get("/api/runs")
    assert answer.headers["content-type"] == "application/json" and answer.headers["x-content-type-options"] == "nosniff"


def test_scripts_of_the_page_never_make_markup_of_text() -> None:
    from deploy.views.web.report import OWN_SCRIPTS, PAGE

    for name in OWN_SCRIPTS:
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", (PAGE / name).read_text()
        )
