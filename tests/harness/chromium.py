"""A Chromium without a window that a test drives by its DevTools protocol, over two pipes: no port, no further package."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium")
NEEDS_CHROMIUM = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--remote-debugging-pipe", "--hide-scrollbars")
ANSWER_SECONDS, CLOSE_SECONDS = 60.0, 20.0
# Its commands arrive at descriptor 3 and its answers leave at descriptor 4.
SHELL = 'exec 3<&"$1" 4>&"$2"; shift 2; exec "$@"'


class Chromium:
    """Use it with `with`: it ends with the block."""

    def __init__(self, profile: Path) -> None:
        """`profile`: a folder for the files of the browser, which it makes."""
        commands, self._commands = os.pipe()
        answers, given = os.pipe()
        self._answers = open(answers, "rb", buffering=0)
        browser = [str(CHROMIUM), *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        self._process = subprocess.Popen(
            ["bash", "-c", SHELL, "bash", str(commands), str(given), *browser],
            pass_fds=(commands, given),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(given)
        self._rest = b""
        self._number = 0
        self.events: list[dict[str, Any]] = []  # that no call has waited for

    def __enter__(self) -> Chromium:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            # A browser that is killed leaves its own processes as zombies where nothing reaps them; this waits for them.
            self.call("Browser.close")
            self._process.wait(CLOSE_SECONDS)
        except (RuntimeError, OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        os.close(self._commands)
        self._answers.close()

    def page(self) -> Page:
        """A new empty page of 1400 pixels."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session)
        for domain in ("Page", "Network", "Runtime", "Log"):
            page.call(f"{domain}.enable")
        page.resize(1400)
        return page

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """The result of a command. Raises RuntimeError with what the browser says."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters} | ({"sessionId": session} if session else {})
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._commands, data) :]
        while True:
            found = self._read()
            if found.get("id") != self._number:
                self.events.append(found)
            elif "error" in found:
                raise RuntimeError(f"{method}: {found['error']['message']}")
            else:
                result: dict[str, Any] = found["result"]
                return result

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            more = self._answers.read(1 << 20)
            if not more:
                raise RuntimeError("chromium has ended")
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message


class Page:
    """A tab."""

    def __init__(self, browser: Chromium, session: str) -> None:
        self._browser, self._session = browser, session

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **parameters)

    def resize(self, width: int, height: int = 900) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def colours(self, dark: bool) -> None:
        """Sets whether the page is asked for light or dark colours (prefers-color-scheme)."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, address: str) -> None:
        """Returns when the page has loaded."""
        self.call("Page.navigate", url=address)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def run(self, script: str) -> Any:
        """The value of an expression, of a promise when it is there. Raises RuntimeError for an exception of the page."""
        found = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in found:
            raise RuntimeError(json.dumps(found["exceptionDetails"])[:1000])
        return found["result"].get("value")

    def wait(self, condition: str, seconds: float = ANSWER_SECONDS, clock: Callable[[], float] = time.monotonic) -> None:
        """Returns when a condition holds. Raises TimeoutError."""
        until = clock() + seconds
        while not self._holds(condition):
            if clock() > until:
                raise TimeoutError(f"after {seconds:.0f} s: {condition}")
            time.sleep(0.05)

    def _holds(self, condition: str) -> bool:
        try:
            return bool(self.run(f"Boolean({condition})"))
        except RuntimeError as error:
            if "navigated" in str(error) or "context was destroyed" in str(error):  # the page goes to another address just now
                return False
            raise

    def mouse(self, kind: str, x: float, y: float, pressed: bool = False, **more: Any) -> None:
        """`kind`: Moved, Pressed, Released, Wheel."""
        button = {"button": "left", "buttons": 1, "clickCount": 1} if pressed or kind == "Released" else {}
        self.call("Input.dispatchMouseEvent", type=f"mouse{kind}", x=x, y=y, **button, **more)

    def picture(self, path: Path) -> None:
        """Writes a PNG of all of the page, from its top to its bottom."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        data = self.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(data))

    def requested(self) -> list[str]:
        """The addresses that this page has asked for so far."""
        return [found["request"]["url"] for found in self._events("Network.requestWillBeSent")]

    def errors(self) -> list[str]:
        """Exceptions of the page's scripts, and errors in its console such as requests that were refused."""
        thrown = [found["exceptionDetails"] for found in self._events("Runtime.exceptionThrown")]
        entries = (found["entry"] for found in self._events("Log.entryAdded"))
        logged = [f"{entry['text']} {entry.get('url', '')}" for entry in entries if entry["level"] == "error"]
        return [one.get("exception", {}).get("description") or one["text"] for one in thrown] + logged

    def _events(self, method: str) -> Iterator[dict[str, Any]]:
        self.run("1")  # what has happened before is read with the answer
        own = (event for event in self._browser.events if event.get("sessionId") == self._session)
        return (event["params"] for event in own if event["method"] == method)
