"""Chromium, driven through its own debugging pipe: no package is needed."""

import base64
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time

NAMES = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"]
WAIT_MAX = 60


def program():
    """The browser of this machine, or None."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """A browser without a window, and one page in it."""

    def __init__(self, program):
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_browser, self.write_fd = os.pipe()
        self.read_fd, from_browser = os.pipe()
        # The browser reads commands from descriptor 3 and writes to 4.
        high = [os.dup2(fd, number, inheritable=True) for fd, number in [(to_browser, 203), (from_browser, 204)]]
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--no-first-run"]
        flags += ["--remote-debugging-pipe", f"--user-data-dir={self.folder.name}", "about:blank"]
        command = ["bash", "-c", f'exec "$@" 3<&{high[0]} 4>&{high[1]} {high[0]}<&- {high[1]}>&-', "bash", program, *flags]
        self.child = subprocess.Popen(command, pass_fds=high, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        for fd in [to_browser, from_browser, *high]:
            os.close(fd)
        self.received, self.count, self.session, self.events = b"", 0, None, []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ["Page", "Runtime", "Network", "Log"]:
            self.call(f"{domain}.enable")

    def call(self, method, **parameters):
        self.count += 1
        message = {"id": self.count, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write_fd, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + WAIT_MAX
        while True:
            answer = self.next(deadline)
            if answer.get("id") == self.count:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
            self.events.append(answer)

    def next(self, deadline):
        while b"\0" not in self.received:
            ready, _, _ = select.select([self.read_fd], [], [], max(0, deadline - time.monotonic()))
            assert ready, "the browser does not answer"
            part = os.read(self.read_fd, 1 << 20)
            assert part, "the browser has ended"
            self.received += part
        first, self.received = self.received.split(b"\0", 1)
        return json.loads(first)

    def size(self, width, height, scheme="light"):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def open(self, url):
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete'")

    def value(self, expression):
        """The value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, (expression, answer["exceptionDetails"])
        return answer["result"].get("value")

    def until(self, expression, seconds=20):
        """Waits until an expression is true."""
        deadline = time.monotonic() + seconds
        while not (found := self.value(expression)):
            assert time.monotonic() < deadline, (expression, self.value("document.body.innerText"))
            time.sleep(0.1)
        return found

    def picture(self, path, whole=True):
        """Writes what the page looks like."""
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))

    def complaints(self):
        """What the page could not do: exceptions, refused content, failed requests."""
        self.value("1")
        bad = [event["params"] for event in self.events if event["method"] in ("Runtime.exceptionThrown", "Log.entryAdded")]
        self.events = [event for event in self.events if event["method"] == "Network.requestWillBeSent"]
        return bad

    def requested(self):
        """Addresses of all requests."""
        return [event["params"]["request"]["url"] for event in self.events if event["method"] == "Network.requestWillBeSent"]

    def close(self):
        os.close(self.write_fd)
        try:
            self.child.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self.child.pid, signal.SIGKILL)
            self.child.wait()
        os.close(self.read_fd)
        self.folder.cleanup()
