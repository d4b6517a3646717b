"""A headless Chromium, driven by the standard library through its DevTools pipe: JSON messages,
each followed by a zero byte.
"""

import contextlib
import fcntl
import json
import os
import select
import shutil
import subprocess
from pathlib import Path

FLAGS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-extensions",
    "--disable-component-update",
    "--remote-debugging-pipe",
]
KEYS = {"Tab": ("Tab", 9, ""), "Enter": ("Enter", 13, "\r"), "Space": (" ", 32, " ")}
"""Code of a key -> (the key, its number, the text that it writes)."""
SECONDS = 240
"""Time limit of an answer."""


def find():
    """Return the path of the browser, or None."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next(filter(None, map(shutil.which, names)), None)


class Browser:
    """One page of a Chromium.

    Attributes:
        errors: errors, warnings and exceptions on its console.
        requests: the addresses it requested.
    """

    def __init__(self, profile):
        ours, theirs = os.pipe(), os.pipe()
        # Chromium reads descriptor 3 and writes descriptor 4: the pipe's ends must not be 3 or 4.
        read_end, write_end = (fcntl.fcntl(fd, fcntl.F_DUPFD, 20) for fd in (ours[0], theirs[1]))
        pipes = f'exec "$0" "$@" 3<&{read_end} 4>&{write_end}'
        folder = f"--user-data-dir={profile}"
        self._log = Path(profile, "chromium.log")
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                ["bash", "-c", pipes, find(), *FLAGS, folder, "about:blank"],
                pass_fds=(read_end, write_end),
                env={**os.environ, "HOME": str(profile)},
                start_new_session=True,
                stdout=log,
                stderr=log,
            )
        for fd in (ours[0], theirs[1], read_end, write_end):
            os.close(fd)
        self._to, self._from, self._left, self._messages = ours[1], theirs[0], b"", []
        self.errors, self.requests, self.loaded = [], [], False
        self._count, self._session = 0, {}
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._session = {"sessionId": session}
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def close(self):
        """End the browser."""
        os.killpg(self.process.pid, 9)
        self.process.wait()
        os.close(self._to)
        os.close(self._from)

    def open(self, path, width=1200, height=900, dark=False):
        """Load a file in a window of this size and colour scheme, and wait until it is loaded."""
        self.look(width, height, dark)
        self.loaded = False
        self.call("Page.navigate", url=f"file://{path}")
        if not self.loaded:
            self._until(lambda message: self.loaded)

    def look(self, width=1200, height=900, dark=False, media=""):
        """Set the size, the colour scheme and the medium ("print")."""
        size = {"width": width, "height": height, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", deviceScaleFactor=1, **size)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", media=media, features=scheme)

    def run(self, expression):
        """Return the value of a JavaScript expression; wait for promises."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def click(self, selector):
        """Click the middle of an element with the mouse; what lies above it gets the click."""
        x, y = self.run(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.scrollIntoView("
            "{block: 'center', behavior: 'instant'}); const r = e.getBoundingClientRect(); return"
            " [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            place = {"x": x, "y": y, "button": "left", "clickCount": 1}
            self.call("Input.dispatchMouseEvent", type=kind, **place)

    def press(self, code):
        """Press a key on the keyboard."""
        key, number, text = KEYS[code]
        named = {"key": key, "code": code, "windowsVirtualKeyCode": number}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **named)
        self.call("Input.dispatchKeyEvent", type="keyUp", **named)

    def call(self, method, **parameters):
        """Return the result of a method of the DevTools protocol."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters, **self._session}
        with contextlib.suppress(BrokenPipeError):  # `_until` raises an error with the log
            os.write(self._to, json.dumps(message).encode() + b"\0")
        answer = self._until(lambda message: message.get("id") == self._count)
        assert "error" not in answer, (method, answer)
        return answer["result"]

    def _until(self, wanted):
        """Return the first message for which `wanted` is true; note the messages before it."""
        while True:
            while self._messages:
                message = self._messages.pop(0)
                self._note(message.get("method"), message.get("params"))
                if wanted(message):
                    return message
            ready = select.select([self._from], [], [], SECONDS)[0]
            block = os.read(self._from, 1 << 20) if ready else b""
            assert block, self._silence(ready)
            *messages, self._left = (self._left + block).split(b"\0")
            self._messages += map(json.loads, messages)

    def _silence(self, ended):
        """Return why no message comes, with the end of the browser's log."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(9 if ended else 0)
        reason = f"exit code {self.process.returncode}" if ended else f"no answer in {SECONDS} s"
        return f"Chromium: {reason}\n{self._log.read_text(errors='replace')[-2000:]}"

    def _note(self, method, given):
        if method == "Page.loadEventFired":
            self.loaded = True
        elif method == "Network.requestWillBeSent":
            self.requests.append(given["request"]["url"])
        elif (
            method == "Runtime.exceptionThrown"
            or (method == "Log.entryAdded" and given["entry"]["level"] in {"error", "warning"})
            or (
                method == "Runtime.consoleAPICalled"
                and given["type"] in {"error", "warning", "assert"}
            )
        ):
            self.errors.append(str(given))
