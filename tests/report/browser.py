"""A headless Chromium driven through its DevTools pipe: JSON messages with a zero byte behind,
by the standard library alone.
"""

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import subprocess
import time

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    *(
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
        "--no-first-run",
    ),
    *(
        "--disable-background-networking",
        "--disable-extensions",
        "--disable-sync",
        "--disable-component-update",
        "--no-default-browser-check",
    ),
    "--remote-debugging-pipe",
)


def find():
    """The browser's program, or None."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Browser:
    """One page of a Chromium. `errors` are what its console complained of and exceptions;
    `requests` are the addresses it asked for.
    """

    def __init__(self, profile, program=None):
        ours, theirs = os.pipe(), os.pipe()
        # Numbers that neither 3 nor 4 takes away, which are the descriptors Chromium reads and
        # writes.
        read_end, write_end = (fcntl.fcntl(fd, fcntl.F_DUPFD, 20) for fd in (ours[0], theirs[1]))
        command = [
            "bash",
            "-c",
            f'exec "$0" "$@" 3<&{read_end} 4>&{write_end}',
            program or find(),
            *FLAGS,
            f"--user-data-dir={profile}",
            "about:blank",
        ]
        environment = {
            **os.environ,
            "HOME": str(profile),
            "XDG_CONFIG_HOME": str(profile),
            "XDG_CACHE_HOME": str(profile),
        }
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(
            command,
            pass_fds=(read_end, write_end),
            env=environment,
            start_new_session=True,
            **quiet,
        )
        for fd in (ours[0], theirs[1], read_end, write_end):
            os.close(fd)
        self._to, self._from, self._left, self._count = ours[1], theirs[0], b"", 0
        self.errors, self.requests, self._events = [], [], []
        self._session = None
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")

    def close(self):
        """End the browser."""
        with contextlib.suppress(OSError):
            os.write(
                self._to, json.dumps({"id": 10**9, "method": "Browser.close"}).encode() + b"\0"
            )
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, 9)
            self.process.wait()
        os.close(self._to)
        os.close(self._from)

    def open(self, path, width=1200, height=900, dark=False):
        """Load a file in a window of a size and a colour scheme, and wait until it stands."""
        self.look(width, height, dark)
        self._events.clear()
        self._call("Page.navigate", url=f"file://{path}")
        self._until(lambda: any(event["method"] == "Page.loadEventFired" for event in self._events))

    def look(self, width=1200, height=900, dark=False, media=""):
        """Another size, colour scheme, or medium ("print")."""
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self._call("Emulation.setEmulatedMedia", media=media, features=scheme)

    def run(self, expression):
        """The value of a JavaScript expression, promises awaited."""
        found = self._call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in found:
            raise AssertionError(
                found["exceptionDetails"]
                .get("exception", {})
                .get("description", found["exceptionDetails"]["text"])
            )
        return found["result"].get("value")

    def click(self, selector):
        """Press the left button of the mouse in the middle of an element, as a person would:
        what lies above it gets the click.
        """
        find_it = (
            f"const e = document.querySelector({json.dumps(selector)}); e.scrollIntoView({{block:"
            " 'center', behavior: 'instant'});"
        )
        box = self.run(
            f"(() => {{ {find_it} const r = e.getBoundingClientRect(); return [r.x + r.width / 2,"
            " r.y + r.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self._call(
                "Input.dispatchMouseEvent",
                type=kind,
                x=box[0],
                y=box[1],
                button="left",
                clickCount=1,
            )

    def press(self, key, code=None, text=""):
        """Press a key on the keyboard."""
        number = {"Tab": 9, "Enter": 13, " ": 32}.get(key, 0)
        named = {"key": key, "code": code or key, "windowsVirtualKeyCode": number}
        text = text or {"Enter": "\r", " ": " "}.get(key, "")
        self._call("Input.dispatchKeyEvent", type="keyDown", text=text, **named)
        self._call("Input.dispatchKeyEvent", type="keyUp", **named)

    def type(self, text):
        """Write text where the focus is."""
        self._call("Input.insertText", text=text)

    def scripting(self, on):
        """Switch JavaScript on or off, for pages opened from now on."""
        self._call("Emulation.setScriptExecutionDisabled", value=not on)

    def screenshot(self, path, whole=True):
        """A PNG of the page, or of what the window shows."""
        found = self._call(
            "Page.captureScreenshot",
            format="png",
            captureBeyondViewport=whole,
            **({} if not whole else {"clip": self._clip()}),
        )
        path.write_bytes(base64.b64decode(found["data"]))

    def pdf(self, path):
        """The page as it is printed."""
        path.write_bytes(
            base64.b64decode(self._call("Page.printToPDF", printBackground=True)["data"])
        )

    def _clip(self):
        size = self._call("Page.getLayoutMetrics")["cssContentSize"]
        return {
            "x": 0,
            "y": 0,
            "width": size["width"],
            "height": min(size["height"], 12000),
            "scale": 1,
        }

    def _call(self, method, **parameters):
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        wanted = self._count
        answers = []
        self._until(
            lambda: bool(answers),
            lambda found: answers.append(found) if found.get("id") == wanted else None,
        )
        if "error" in answers[0]:
            raise AssertionError(f"{method}: {answers[0]['error']}")
        return answers[0]["result"]

    def _until(self, done, take=lambda found: None, seconds=240):
        end = time.monotonic() + seconds
        while not done():
            if time.monotonic() > end:
                raise AssertionError(f"the browser did not answer within {seconds} s")
            if select.select([self._from], [], [], 1)[0]:
                block = os.read(self._from, 1 << 20)
                if not block:
                    raise AssertionError("the browser has gone")
                *whole, self._left = (self._left + block).split(b"\0")
                for message in map(json.loads, whole):
                    take(message)
                    self._note(message)

    def _note(self, message):
        method, given = message.get("method"), message.get("params", {})
        if method is None:
            return
        self._events.append(message)
        if method == "Runtime.exceptionThrown":
            self.errors.append(
                given["exceptionDetails"].get("exception", {}).get("description")
                or given["exceptionDetails"]["text"]
            )
        elif method == "Log.entryAdded" and given["entry"]["level"] in {"error", "warning"}:
            self.errors.append(given["entry"]["text"])
        elif method == "Runtime.consoleAPICalled" and given["type"] in {
            "error",
            "warning",
            "assert",
        }:
            self.errors.append(str(given["args"]))
        elif method == "Network.requestWillBeSent":
            self.requests.append(given["request"]["url"])
