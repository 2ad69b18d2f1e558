"""A proxy in front of a store's emulator: counts the parts that come by, holds one of them back for as long as a test wants, and can
put another signature in the place of a token that the emulator does not understand."""

import http.client
import threading

from _http import serve

# As S3 would be asked; moto looks at the form only.
SIGNED = "AWS4-HMAC-SHA256 Credential=key/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
HOP = {"connection", "transfer-encoding", "keep-alive", "content-length"}


class Proxy:
    def __init__(self, port, bare=False):
        self.port, self.bare, self.parts, self.hold_at, self.held = port, bare, [], None, threading.Event()
        self.address = f"http://127.0.0.1:{serve(self.answer)}"

    def answer(self, method, path, headers, body):
        if method == "PUT" and ("partNumber=" in path or "comp=block&" in f"{path}&"):
            self.parts.append((path, len(body)))
            if self.hold_at is not None and len(self.parts) >= self.hold_at:
                # Whoever waits for the answer is killed meanwhile.
                self.held.set()
                return None
        headers = {name: value for name, value in headers.items() if name.lower() not in HOP}
        if self.bare:
            headers = {name: value for name, value in headers.items() if name.lower() != "authorization"}
            headers["Authorization"] = SIGNED
        headers["Content-Length"] = str(len(body))
        behind = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        behind.request(method, path, body=body, headers=headers)
        answer = behind.getresponse()
        data = answer.read()
        headers = {name: value for name, value in answer.getheaders() if name.lower() not in HOP}
        length = answer.getheader("content-length") if method == "HEAD" else None
        return answer.status, headers | ({"Content-Length": length} if length else {}), data
