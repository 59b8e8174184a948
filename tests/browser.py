"""Chromium, driven over chromedriver's own HTTP (W3C WebDriver)."""

import base64
import json
import re
import shutil
import subprocess
from urllib.request import Request, urlopen

from .processes import PATIENCE, until

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the key of an element, by the W3C
TAB, ENTER = "\ue004", "\ue007"
MISSING = [name for name in ("chromedriver", "chromium") if shutil.which(name) is None]


def strict_policy(get_response):
    """A middleware: nothing from elsewhere, no script or style within a page."""

    def respond(request):
        response = get_response(request)
        response["Content-Security-Policy"] = "default-src 'self'; img-src 'self' data:"
        return response

    return respond


class Browser:
    """One window of its own. ``close`` ends it, and the driver."""

    def __init__(self, profile):
        self.log = profile / "chromedriver.txt"
        with self.log.open("wb") as file:
            self.driver = subprocess.Popen(
                ["chromedriver", "--port=0"], stdout=file, stderr=subprocess.STDOUT
            )
        port = until(lambda: re.search(r"successfully on port (\d+)", self.log.read_text()))[1]
        self.address = f"http://127.0.0.1:{port}/session"
        options = {
            "args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                     f"--user-data-dir={profile / 'profile'}", "--window-size=1280,900"],
        }  # fmt: skip
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        answer = self._send("POST", "", {"capabilities": {"alwaysMatch": wanted}})
        self.address += "/" + answer["sessionId"]

    def _send(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = Request(self.address + path, data, method=method)
        with urlopen(request, timeout=PATIENCE) as answer:
            return json.load(answer)["value"]

    def close(self):
        try:
            self._send("DELETE", "")
        finally:
            self.driver.terminate()
            self.driver.wait(PATIENCE)

    # -- looking ----------------------------------------------------------------------------------

    def open(self, address):
        self._send("POST", "/url", {"url": address})

    @property
    def address_shown(self):
        return self._send("GET", "/url")

    def set_cookie(self, name, value):
        self._send("POST", "/cookie", {"cookie": {"name": name, "value": value}})

    def run(self, script):
        """What a script returns."""
        return self._send("POST", "/execute/sync", {"script": script, "args": []})

    def text(self, css="body"):
        return self.run(f"return document.querySelector({json.dumps(css)}).innerText")

    def until_says(self, words):
        until(lambda: self.run("return document.readyState") == "complete" and words in self.text())

    def complaints(self):
        """What the console has said since the last time, but for the icon that no site has."""
        entries = self._send("POST", "/se/log", {"type": "browser"})
        return [entry["message"] for entry in entries if "/favicon.ico" not in entry["message"]]

    def screenshot(self, path):
        path.write_bytes(base64.b64decode(self._send("GET", "/screenshot")))

    # -- doing ------------------------------------------------------------------------------------

    def find(self, css):
        return self._send("POST", "/element", {"using": "css selector", "value": css})[ELEMENT]

    def click(self, css):
        self._send("POST", f"/element/{self.find(css)}/click", {})

    def type(self, css, text):
        self._send("POST", f"/element/{self.find(css)}/value", {"text": text})

    def press(self, key):
        keys = [{"type": kind, "value": key} for kind in ("keyDown", "keyUp")]
        keyboard = {"type": "key", "id": "keyboard", "actions": keys}
        self._send("POST", "/actions", {"actions": [keyboard]})

    def tab_to(self, css, most=80):
        """Press Tab until that has the focus."""
        for _ in range(most):
            self.press(TAB)
            if self.run(f"return document.activeElement.matches({json.dumps(css)})"):
                return
        raise AssertionError(f"the keyboard does not reach {css}")

    # -- as what it looks -------------------------------------------------------------------------

    def devtools(self, command, **params):
        return self._send("POST", "/goog/cdp/execute", {"cmd": command, "params": params})

    def be_dark(self):
        features = [{"name": "prefers-color-scheme", "value": "dark"}]
        self.devtools("Emulation.setEmulatedMedia", features=features)

    def be_a_phone(self):
        self.devtools("Emulation.setDeviceMetricsOverride", width=390, height=844,
                      deviceScaleFactor=1, mobile=True)  # fmt: skip
