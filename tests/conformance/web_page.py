"""The page of `enn top --web` in Chromium: live curves, hostile text, sizes and colours, keyboard, a lost connection. Without a
Chromium it prints a line and passes. ENN_PICTURES names a folder for pictures of the page."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

import _browser

ENN = Path(os.environ["ENN_BIN_DIR"]) / "enn"
PICTURES = os.environ.get("ENN_PICTURES")
NAME = "<script>alert(1)</script>"
HOST = "</main><img src=x onerror=alert(2)>"
START = time.time() - 900
# Least contrast of text that WCAG 2.2 asks for at level AA.
CONTRAST = """(() => {
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = (rgb) => { const [r, g, b] = rgb.slice(0, 3).map((c) => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const behind = (node) => { for (let at = node; at; at = at.parentElement) { const rgb = parse(getComputedStyle(at).backgroundColor);
    if (rgb.length < 4 || rgb[3] > 0.99) return rgb; } return [255, 255, 255]; };
  const bad = [];
  for (const node of document.querySelectorAll("body *")) {
    const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
    if (!own || !node.getClientRects().length || node.closest(".unseen, caption, noscript, script")) continue;
    const style = getComputedStyle(node), text = parse(node.closest("svg") ? style.fill : style.color);
    const [a, b] = [light(text), light(behind(node))], ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) bad.push(`${node.tagName}.${node.className.baseVal ?? node.className} ${node.textContent.slice(0, 30)}: ${ratio.toFixed(2)}`);
  }
  return bad;
})()"""


class Journal:
    """The journal of a run that is under way as long as this is open."""

    def __init__(self, folder):
        self.folder = folder
        (folder / "run.json").write_text("{}")
        self.lock = open(folder / ".lock", "w")
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        self.file = open(folder / "events.jsonl", "a")
        self.time = START

    def write(self, event, after=1.0, **fields):
        self.time += after
        self.file.write(json.dumps({"time": self.time, "event": event, **fields}) + "\n")
        self.file.flush()

    def steps(self, first, last):
        for step in range(first, last + 1):
            loss = 2.5 / (1 + step / 12) + 0.1 * (step % 7 == 0)
            self.write("stepped", 0.5, epoch=step // 40 + 1, step=step, loss=loss, lr=1e-3 / (1 + step / 200), grad_norm=1.0, samples_per_s=1500 + step % 9)
            if step % 40 == 0:
                self.epoch(step // 40, step, loss)

    def epoch(self, epoch, step, loss):
        mae = 3 + 4 / epoch + (0.4 if epoch > 4 else 0)
        val = {"n": 100, "mae": mae, "rmse": 1.3 * mae, "r2": 0.8, "loss": 0.1}
        times = {"total": 41.0, "data": 0.6, "forward": 14.0, "backward": 22.0, "comm": 2.5, "optimizer": 1.9}
        self.write("epoch_ended", epoch=epoch, step=step, train_loss=loss, val=val, best=epoch < 5, lr=1e-3, grad_norm=1.0, gate_mean=0.5,
                   reactivity=0.9, step_ms=times, samples_per_s=1500.0, skipped=0)

    def round(self, number, resume_step=None):
        self.write("round_started", round=number, world_size=2, attempt=number, resume_step=resume_step)
        for rank in range(2):
            self.write("worker_started", round=number, local_rank=rank, rank=rank, pid=4_000_000 + 10 * number + rank)
            self.write("worker_ready", round=number, rank=rank, device="cpu", backend="gloo", libtorch="2.11.0", seconds=0.8)
            logs = self.folder / "logs" / str(number) / str(rank)
            logs.mkdir(parents=True)
            (logs / "stdout.log").write_text(f"\x1b[31mred\x1b[0m <b>rank {rank}</b> of round {number}\n\x1b]0;title\x07done\n")

    def begin(self):
        self.write("run_started", 0, run=NAME, mode="train", dir=str(self.folder), host=HOST, nproc=2, argv=["enn", "train", "a b.toml"])
        metrics = {name: {"n": 100, "mae": mae, "rmse": 9.0, "r2": 0.1, "loss": 1.0}
                   for name, mae in [("ridge", 4.7), ("persistence", 6.1), ("cell_mean", 8.9)]}
        self.write("baselines_computed", split={"val": metrics}, notes=[])
        self.round(0)
        self.write("model_built", parameters=412345, program_hash="9c", batch=32, steps_per_epoch=40, steps_total=400)
        self.write("warned", message="<img src=x onerror=alert(3)> \x1b[2J\u202eodd")


def serve(folder):
    command = [ENN, "top", str(folder), "--web", "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return server, server.stdout.readline().strip()


def shown(browser):
    return browser.value("document.body.innerText")


def arrives(browser, url):
    browser.size(1280, 900)
    browser.open(url)
    browser.until("document.getElementById('state').textContent === 'running'")
    assert browser.value("location.href") == urlsplit(url)._replace(path="/", query="").geturl(), "the token left the address bar"
    assert browser.value("document.getElementById('name').textContent") == NAME
    assert browser.value("document.scripts.length") == 1 and browser.value("document.images.length") == 0
    assert "<img src=x onerror=alert(3)> \\u{1b}[2J\\u{202e}odd" in shown(browser), "what is obeyed is shown instead"
    browser.until("document.getElementById('log').textContent.includes('red <b>rank 0</b> of round 0')")
    assert browser.value("document.querySelector('main b:not(.tip b)')") is None


def grows(browser, journal):
    loss = "document.querySelector('#loss path.line').getAttribute('d').split('L').length"
    journal.steps(1, 60)
    browser.until("document.getElementById('far').textContent.startsWith('step 60 of 400')")
    browser.until(f"{loss} === 60")
    journal.steps(61, 250)
    browser.until("document.getElementById('far').textContent.startsWith('step 250 of 400')")
    assert "0:" in browser.value("document.getElementById('left').textContent") or "left" in shown(browser)
    assert browser.value("document.querySelectorAll('#validation .level').length") == 3
    assert browser.value("document.querySelectorAll('#validation circle.best').length") == 1
    assert browser.value("document.getElementById('keys').textContent") == "best: epoch 4"


def is_read_by_keys(browser):
    browser.value("document.querySelector('#validation .plot').focus()")
    for key in ["ArrowLeft", "Home"]:
        browser.call("Input.dispatchKeyEvent", type="keyDown", key=key)
    heard = browser.value("document.querySelector('#validation .unseen').textContent")
    assert heard.startswith("step 40, epoch 1.00, after ") and "7.000" in heard, heard
    label = browser.value("document.querySelector('#validation .plot').getAttribute('aria-label')")
    assert label.startswith("Validation error: ") and "at step 240" in label, label
    for button, after in [("#by-time", "Learning"), ("#loss button", "Learning"), ("#by-step", "Learning")]:
        before = browser.value(f"document.querySelector('{button}').ariaPressed")
        browser.value(f"document.querySelector('{button}').click()")
        assert browser.value(f"document.querySelector('{button}').ariaPressed") != before and after in shown(browser), button
    browser.value("document.querySelectorAll('#workers tbody button')[1].click()")
    browser.until("document.getElementById('log').textContent.includes('rank 1')")
    assert browser.value("document.getElementById('rank').value") == "1"


def catches_up(browser, journal):
    """A restart from step 200 while the page is cut off."""
    browser.call("Network.emulateNetworkConditions", offline=True, latency=0, downloadThroughput=-1, uploadThroughput=-1)
    browser.until("!document.getElementById('lost').hidden", 40)
    assert browser.value("document.getElementById('far').textContent").startswith("step 250"), "it keeps what it has"
    journal.write("worker_exited", round=0, rank=1, pid=4_000_001, code=None, signal=9, seconds_to_notice=0.002)
    journal.write("round_failed", round=0, cause="worker 1 was killed by SIGKILL", restarting=True, restarts_left=2)
    journal.round(1, 200)
    journal.steps(201, 320)
    browser.call("Network.emulateNetworkConditions", offline=False, latency=0, downloadThroughput=-1, uploadThroughput=-1)
    browser.until("document.getElementById('lost').hidden && document.getElementById('far').textContent.startsWith('step 320')", 40)
    points = browser.value("document.querySelector('#loss path.faint').getAttribute('d').split('L').length")
    assert points == 320, points
    assert browser.value("document.querySelectorAll('#loss path.mark.failure').length") == 1
    assert "worker 1 was killed by SIGKILL" in browser.value("document.getElementById('events').textContent")
    # The browser itself says that it was offline.
    browser.complaints()


def fits(browser):
    for width in [1280, 390]:
        for scheme in ["light", "dark"]:
            browser.size(width, 900, scheme)
            # Colours and sizes change at once, the chart with the next frame.
            browser.value("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
            wide = browser.value("document.documentElement.scrollWidth")
            assert wide <= width, (width, wide)
            assert browser.value(CONTRAST) == [], (width, scheme, browser.value(CONTRAST))
            if PICTURES:
                browser.size(width, browser.value("document.documentElement.scrollHeight"), scheme)
                time.sleep(0.5)
                browser.picture(Path(PICTURES) / f"web-{width}-{scheme}.png")
    browser.size(1280, 900)


def ends(browser, server, url):
    origin = "{0.scheme}://{0.netloc}/".format(urlsplit(url))
    assert browser.complaints() == []
    foreign = [one for one in browser.requested() if not one.startswith((origin, "about:"))]
    assert browser.requested() and foreign == [], foreign
    # Another tab without the token has nothing to show.
    browser.value("sessionStorage.clear()")
    browser.open(f"{origin}?token=wrong")
    browser.until("document.getElementById('lost').textContent.startsWith('The token is that of another server')")
    browser.open(url)
    browser.until("document.getElementById('far').textContent.startsWith('step 320')")
    server.send_signal(signal.SIGINT)
    assert server.wait(20) == 0, server.stderr.read()
    browser.until("document.getElementById('lost').textContent.startsWith('The connection is lost')", 40)
    assert "step 320" in shown(browser)


def main():
    program = _browser.program()
    if program is None:
        print("skipped: there is no Chromium here (apt-get install chromium)")
        return
    with tempfile.TemporaryDirectory(prefix="enn web ") as folder:
        journal = Journal(Path(folder))
        journal.begin()
        server, url = serve(folder)
        browser = _browser.Browser(program)
        try:
            arrives(browser, url)
            grows(browser, journal)
            is_read_by_keys(browser)
            catches_up(browser, journal)
            fits(browser)
            ends(browser, server, url)
        finally:
            browser.close()
            server.kill()


sys.exit(main())
