"""A headless Chromium for tests, driven over the WebDriver protocol by the standard library."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
)
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
"""Key of an element in the protocol."""


def why_not() -> str | None:
    """Why there is no browser; None if there is one."""
    for name in ("chromium", "chromedriver"):
        if shutil.which(name) is None:
            return f"no {name} on this machine; on Debian: apt-get install chromium chromium-driver"
    return None


class Browser:
    """One window; `with Browser() as browser: browser.open(path)`."""

    def __init__(self, width: int = 1280, height: int = 900, *, dark: bool = False) -> None:
        self.folder = tempfile.mkdtemp(prefix="browser-")
        self.driver = subprocess.Popen(
            ["chromedriver", "--port=0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self.driver.stdout is not None
        port = next(
            found[1]
            for line in self.driver.stdout
            if (found := re.search(r"successfully on port (\d+)", line))
        )
        self.address = f"http://127.0.0.1:{port}/session"
        features = ["--force-dark-mode", "--blink-settings=preferredColorScheme=0"] if dark else []
        options = {
            "binary": shutil.which("chromium"),
            "args": [
                *OPTIONS, *features, f"--window-size={width},{height}",
                f"--user-data-dir={self.folder}", "about:blank",
            ],
        }  # fmt: skip
        wanted = {
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }
        self.session = ""
        found = self.call("POST", "", {"capabilities": {"alwaysMatch": wanted}})
        self.session = f"/{found['sessionId']}"
        self.emulate(width, height)
        self.call("POST", "/url", {"url": "about:blank"})
        self.requests()  # those of the browser's own first page

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.call("DELETE", "")
        finally:
            self.driver.terminate()
            self.driver.wait(10)
            assert self.driver.stdout is not None
            self.driver.stdout.close()
            shutil.rmtree(self.folder, ignore_errors=True)

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if method != "POST" else json.dumps(body or {}).encode()
        request = urllib.request.Request(
            self.address + self.session + path,
            data,
            {"Content-Type": "application/json"},
            method=method,
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["value"]

    def devtools(self, command: str, **parameters: Any) -> Any:
        return self.call("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def emulate(self, width: int, height: int, *, scale: float = 1) -> None:
        """A window of this size, also narrower than the browser's own minimum."""
        self.devtools(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=False,
        )

    def scheme(self, name: str) -> None:
        """`"light"` or `"dark"`."""
        feature = {"name": "prefers-color-scheme", "value": name}
        self.devtools("Emulation.setEmulatedMedia", features=[feature])

    def open(self, path: Path | str) -> None:
        """Open a file of the report, or an address, and wait until it is drawn."""
        url = path if isinstance(path, str) else path.resolve().as_uri()
        self.call("POST", "/url", {"url": url})
        self.wait("return document.documentElement.dataset.ready === 'yes'")

    def run(self, script: str, *arguments: Any) -> Any:
        return self.call("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def wait(self, condition: str, seconds: float = 900.0) -> None:
        end = time.monotonic() + seconds
        while not self.run(condition):
            assert time.monotonic() < end, f"not within {seconds} s: {condition}"
            time.sleep(0.05)

    def text(self, query: str) -> str:
        return self.run("return document.querySelector(arguments[0]).innerText", query)

    def pointer(self, query: str, x: float, y: float, *, click: bool = False) -> None:
        """Move the pointer to a place in an element, from its upper left corner."""
        left, top = self.run(
            "const e = document.querySelector(arguments[0]);"
            "e.scrollIntoView({block: 'center', behavior: 'instant'});"
            "const box = e.getBoundingClientRect(); return [box.left, box.top]",
            query,
        )
        moves = [{"type": "pointerMove", "duration": 0, "x": round(left + x), "y": round(top + y)}]
        if click:
            moves += [{"type": "pointerDown", "button": 0}, {"type": "pointerUp", "button": 0}]
        mouse = {"type": "pointer", "id": "mouse", "actions": moves}
        self.call("POST", "/actions", {"actions": [mouse]})

    def drop(self, query: str, name: str, text: str) -> None:
        """Drop a file with this text on an element, as from a folder of the desktop."""
        self.run(
            "const data = new DataTransfer();"
            "data.items.add(new File([arguments[2]], arguments[1], {type: 'text/csv'}));"
            "const make = (kind) => new DragEvent(kind, {bubbles: true, dataTransfer: data});"
            "for (const kind of ['dragenter', 'dragover', 'drop'])"
            "  document.querySelector(arguments[0]).dispatchEvent(make(kind));",
            query,
            name,
            text,
        )

    def keys(self, query: str, text: str) -> None:
        """Type into an element; keys without a sign are those of the protocol."""
        found = self.call("POST", "/element", {"using": "css selector", "value": query})
        self.call("POST", f"/element/{found[ELEMENT]}/value", {"text": text})

    def errors(self) -> list[str]:
        """What the console reports as errors or warnings."""
        found = self.call("POST", "/se/log", {"type": "browser"})
        return [entry["message"] for entry in found if entry["level"] in ("SEVERE", "WARNING")]

    def requests(self) -> list[str]:
        """Every address that was asked for since the last call."""
        found = self.call("POST", "/se/log", {"type": "performance"})
        messages = [json.loads(entry["message"])["message"] for entry in found]
        sent = [m["params"] for m in messages if m["method"] == "Network.requestWillBeSent"]
        return [parameters["request"]["url"] for parameters in sent]

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """A picture of the window, or of the whole page."""
        made = (
            self.devtools("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
            if not whole
            else self._whole()
        )
        path.write_bytes(base64.b64decode(made["data"]))

    def _whole(self) -> Any:
        size = self.devtools("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        return self.devtools(
            "Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip
        )
