"""A headless Chromium that shows a page, for pictures of it and to test it; driven over two pipes.

It has no command of its own. https://chromedevtools.github.io/devtools-protocol describes the messages.
"""

from __future__ import annotations

import base64
import fcntl
import itertools
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_ANSWER_S, _END_S = 60.0, 10.0
_QUIET = ("--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run")


_START = """import os, sys
os.dup2(int(sys.argv[1]), 3)
os.dup2(int(sys.argv[2]), 4)
os.execv(sys.argv[3], sys.argv[3:])"""


class Chromium:
    """One tab. A context manager. events: what it has reported so far, console messages and requests among others."""

    def __init__(self, folder: Path) -> None:
        """``folder``: where it may write its profile. Needs PROGRAM."""
        assert PROGRAM is not None, "there is no chromium: apt-get install chromium"
        read, self._write = os.pipe()
        self._read, write = os.pipe()
        flags = ["--headless", "--no-sandbox", "--hide-scrollbars", "--remote-debugging-pipe", *_QUIET]
        # It reads from descriptor 3 and writes to 4, so the pipes must not be these.
        ends = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in (read, write)]
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                _START,
                *map(str, ends),
                PROGRAM,
                *flags,
                f"--user-data-dir={folder / 'profile'}",
                "about:blank",
            ],
            pass_fds=ends,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        for fd in (read, write, *ends):
            os.close(fd)
        self._numbers, self._rest, self._session = itertools.count(1), b"", ""
        self.events: list[dict[str, Any]] = []
        target = next(each for each in self._send("Target.getTargets")["targetInfos"] if each["type"] == "page")
        self._session = self._send("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._send(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._write)
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(_END_S)
        os.close(self._read)

    def show(self, url: str, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Load ``url``, for a window of this size and a light or dark theme, and wait until it has drawn."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self._send("Emulation.setDeviceMetricsOverride", **metrics)
        theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._send("Emulation.setEmulatedMedia", features=[theme])
        self._send("Page.navigate", url=url)  # answered when the old page has gone
        ends = time.monotonic() + _ANSWER_S
        while self.value("`${document.readyState} ${location.href}`") != f"complete {url}":
            if time.monotonic() > ends:
                raise TimeoutError(f"{url} was not loaded in {_ANSWER_S:g} s")
            time.sleep(0.05)

    def value(self, script: str) -> Any:
        """What ``script`` returns in the page, once it is drawn. Raises RuntimeError if it raises there."""
        frames = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
        self._send("Runtime.evaluate", expression=frames, awaitPromise=True)
        answer = self._send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def picture(self, target: Path, whole: bool = False) -> None:
        """Write a PNG of the window, or of the ``whole`` page."""
        answer = self._send("Page.captureScreenshot", captureBeyondViewport=whole, **self._clip(whole))
        target.write_bytes(base64.b64decode(answer["data"]))

    def _clip(self, whole: bool) -> dict[str, Any]:
        if not whole:
            return {}
        size = self._send("Page.getLayoutMetrics")["cssContentSize"]
        return {"clip": {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}}

    @property
    def complaints(self) -> list[str]:
        """Errors and warnings of the page so far: exceptions, console messages, and what its policy has refused."""
        found = []
        for event in self.events:
            kind, parameters = event["method"], event["params"]
            if kind == "Runtime.exceptionThrown" or (
                kind == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert")
            ):
                found.append(json.dumps(parameters))
            elif kind == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
                found.append(parameters["entry"]["text"])
        return found

    @property
    def requests(self) -> list[str]:
        """The URLs that the page has asked for so far, without data: URLs."""
        urls = [
            each["params"]["request"]["url"] for each in self.events if each["method"] == "Network.requestWillBeSent"
        ]
        return [url for url in urls if not url.startswith("data:")]

    def _send(self, method: str, **parameters: Any) -> Any:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        ends = time.monotonic() + _ANSWER_S
        while True:
            answer = self._receive(ends)
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def _receive(self, ends: float) -> dict[str, Any]:
        """The next message; an event is kept, too. Raises TimeoutError, or RuntimeError if the browser has ended."""
        while b"\0" not in self._rest:
            if not select.select([self._read], [], [], max(0.0, ends - time.monotonic()))[0]:
                raise TimeoutError("chromium did not answer")
            part = os.read(self._read, 1 << 20)
            if not part:
                raise RuntimeError("chromium has ended")
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        if "method" in message:
            self.events.append(message)
        return message
