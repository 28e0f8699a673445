"""Opens pages in a headless Chromium, for tests and for pictures. It speaks the DevTools protocol over two pipes."""

from __future__ import annotations

import base64
import json
import os
import select
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

_LIMIT = 120.0  # seconds for one answer, on a busy machine
_OPTIONS = (
    *("--headless=new", "--remote-debugging-pipe", "--no-first-run", "--hide-scrollbars", "--disable-gpu"),
    *("--disable-dev-shm-usage", "--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--force-color-profile=srgb", "--proxy-server=127.0.0.1:9"),  # no network: nothing listens there
)


class Page:
    """A page in the browser.

    Args:
        browser: The browser.
        session: The protocol's id of the page.

    Attributes:
        events: (method, parameters) of what it has told, such as errors and requests.
    """

    def __init__(self, browser: _Browser, session: str) -> None:
        self._browser = browser
        self._session = session
        self.events: list[tuple[str, dict[str, Any]]] = browser.events.setdefault(session, [])
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the DevTools protocol.

        Raises:
            RuntimeError: The browser reports an error, or does not answer.
        """
        return self._browser.call(method, parameters, self._session)

    def show(self, path: Path, width: int, *, dark: bool = False) -> None:
        """Open a file, and wait until it is there.

        Args:
            path: The file.
            width: Width of the window in pixels.
            dark: Whether the user prefers dark colours.
        """
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=features)
        self.events.clear()
        self.call("Page.navigate", url=path.absolute().as_uri())
        self._browser.wait(lambda: any(method == "Page.loadEventFired" for method, _ in self.events))

    def evaluate(self, expression: str) -> Any:
        """The value of an expression in JavaScript."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        return answer["result"].get("value")

    def picture(self, height: int | None = None) -> bytes:
        """A screenshot as PNG.

        Args:
            height: In pixels from the top; None: the whole page.
        """
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": height or size["height"], "scale": 1}
        answer = self.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
        return base64.b64decode(answer["data"])


class _Browser:
    def __init__(self, commands: int, answers: int) -> None:
        self._commands = commands
        self._answers = answers
        self._number = 0
        self._partial = b""
        self._results: dict[int, dict[str, Any]] = {}
        self.events: dict[str, list[tuple[str, dict[str, Any]]]] = {}

    def call(self, method: str, parameters: dict[str, Any], session: str = "") -> dict[str, Any]:
        self._number += 1
        number = self._number
        message = {"id": number, "method": method, "params": parameters, **({"sessionId": session} if session else {})}
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        self.wait(lambda: number in self._results)
        answer = self._results.pop(number)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        result: dict[str, Any] = answer["result"]
        return result

    def wait(self, done: Any) -> None:
        while not done():
            if not select.select([self._answers], [], [], _LIMIT)[0]:
                raise RuntimeError("the browser does not answer")
            data = os.read(self._answers, 1 << 20)
            if not data:
                raise RuntimeError("the browser has exited")
            *messages, self._partial = (self._partial + data).split(b"\0")
            for message in map(json.loads, messages):
                if "id" in message:
                    self._results[message["id"]] = message
                else:
                    told = message["method"], message.get("params", {})
                    self.events.setdefault(message.get("sessionId", ""), []).append(told)


@contextmanager
def page(program: str) -> Iterator[Page]:
    """Start a browser with an empty page, and end it afterwards.

    Args:
        program: Path of Chromium.
    """
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        command = [program, *_OPTIONS, f"--user-data-dir={folder}", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
        to_browser, from_us = os.pipe()
        to_us, from_browser = os.pipe()
        # the browser reads descriptor 3 and writes 4
        shell = ["bash", "-c", f'exec 3<&{to_browser} 4>&{from_browser} && exec "$@"', "bash", *command]
        quiet = subprocess.DEVNULL
        process = subprocess.Popen(
            shell,
            env={**os.environ, "HOME": folder, "TMPDIR": folder},  # it would leave files there
            pass_fds=(to_browser, from_browser),
            stdin=quiet,
            stdout=quiet,
            stderr=quiet,
            start_new_session=True,
        )
        os.close(to_browser)
        os.close(from_browser)
        try:
            browser = _Browser(from_us, to_us)
            target = browser.call("Target.createTarget", {"url": "about:blank"})["targetId"]
            session = browser.call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
            yield Page(browser, session)
            browser.call("Browser.close", {})
        finally:
            os.close(from_us)
            os.close(to_us)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                process.wait()
