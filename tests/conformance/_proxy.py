"""A proxy in front of a store's emulator: counts the parts that come by, holds one of them back for as long as a test wants, and can
put another signature in the place of a token that the emulator does not understand."""

import http.client
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

# As S3 would be asked; moto looks at the form only.
SIGNED = "AWS4-HMAC-SHA256 Credential=key/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
HOP = {"connection", "transfer-encoding", "keep-alive", "content-length"}


class Proxy:
    def __init__(self, port, bare=False):
        self.port, self.bare, self.parts, self.hold_at, self.held = port, bare, [], None, threading.Event()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self):
                length = int(self.headers.get("content-length") or 0)
                body = self.rfile.read(length)
                if len(body) < length:
                    self.close_connection = True
                    return
                if self.command == "PUT" and ("partNumber=" in self.path or "comp=block&" in f"{self.path}&"):
                    proxy.parts.append((self.path, len(body)))
                    if proxy.hold_at is not None and len(proxy.parts) >= proxy.hold_at:
                        # Whoever waits for the answer is killed meanwhile.
                        proxy.held.set()
                        self.close_connection = True
                        return
                headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP}
                if proxy.bare:
                    headers = {name: value for name, value in headers.items() if name.lower() != "authorization"}
                    headers["Authorization"] = SIGNED
                headers["Content-Length"] = str(len(body))
                behind = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=60)
                behind.request(self.command, self.path, body=body, headers=headers)
                answer = behind.getresponse()
                data = answer.read()
                self.send_response(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in HOP:
                        self.send_header(name, value)
                length = answer.getheader("content-length") if self.command == "HEAD" else None
                self.send_header("Content-Length", length or str(len(data)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(data)

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_any

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
