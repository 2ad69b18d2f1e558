"""An HTTP server on loopback whose answers a test computes."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def serve(answer):
    """Starts one and gives its port. `answer(method, path, headers, body)` gives status, headers and data, or None: the connection
    ends without an answer."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self):
            length = int(self.headers.get("content-length") or 0)
            body = self.rfile.read(length)
            answered = answer(self.command, self.path, self.headers, body) if len(body) == length else None
            if answered is None:
                self.close_connection = True
                return
            status, headers, data = answered
            self.send_response(status)
            for name, value in ({"Content-Length": str(len(data))} | headers).items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_any

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_port
