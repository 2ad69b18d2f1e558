"""A small store that speaks of Azure's Blob service what an upload, a download and a listing need. Signatures are not checked.

Blocks belong to a blob that is not there until its list of blocks is put, as Azure has it: a list with a block that was not sent is
refused, and one that is put forgets all other blocks."""

import email.utils
import re
import threading
import time
import urllib.parse
import xml.etree.ElementTree as xml
from xml.sax.saxutils import escape

from _http import serve


class Blobs:
    """One container; its paths are below `/ACCOUNT/CONTAINER/`."""

    def __init__(self):
        self.blobs, self.blocks, self.puts, self.lock = {}, {}, 0, threading.Lock()
        self.port = serve(self.request)

    def request(self, method, path, headers, body):
        url = urllib.parse.urlsplit(path)
        query = {name: values[0] for name, values in urllib.parse.parse_qs(url.query, keep_blank_values=True).items()}
        name = urllib.parse.unquote("/".join(url.path.split("/")[3:]))
        with self.lock:
            return self.answer(method, name, query, headers, body)

    def answer(self, method, name, query, headers, body):
        what = query.get("comp")
        if method == "POST" and what == "batch":
            return self.batch(headers, body)
        if method == "PUT" and what == "block":
            self.blocks.setdefault(name, {})[query["blockid"]] = body
            return 201, {}, b""
        if method == "PUT" and what == "blocklist":
            wanted = [block.text for block in xml.fromstring(body)]
            sent = self.blocks.get(name, {})
            if any(block not in sent for block in wanted):
                return error(400, "InvalidBlockList")
            del self.blocks[name]
            return self.put(name, b"".join(sent[block] for block in wanted))
        if method == "PUT":
            if headers.get("If-None-Match") == "*" and name in self.blobs:
                return error(409, "BlobAlreadyExists")
            return self.put(name, body)
        if method == "GET" and what == "list":
            return self.list(query.get("prefix", ""), query.get("delimiter"))
        if name not in self.blobs:
            return error(404, "BlobNotFound")
        if method == "DELETE":
            del self.blobs[name]
            return 202, {}, b""
        data, about = self.blobs[name]
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", headers.get("x-ms-range") or headers.get("Range") or "")
        if method == "GET" and asked:
            first, last = int(asked[1]), min(int(asked[2] or len(data)), len(data) - 1)
            return 206, about | {"Content-Range": f"bytes {first}-{last}/{len(data)}"}, data[first:last + 1]
        return 200, about | ({"Content-Length": str(len(data))} if method == "HEAD" else {}), data

    def put(self, name, data):
        self.puts += 1
        about = {"ETag": f'"{self.puts}"', "Last-Modified": email.utils.formatdate(time.time(), usegmt=True), "x-ms-blob-type": "BlockBlob"}
        self.blobs[name] = data, about
        return 201, about, b""

    def list(self, prefix, delimiter):
        found, folders = [], set()
        for name in sorted(name for name in self.blobs if name.startswith(prefix)):
            rest = name[len(prefix):]
            if delimiter and delimiter in rest:
                folders.add(prefix + rest.split(delimiter)[0] + delimiter)
                continue
            data, about = self.blobs[name]
            fields = {"Last-Modified": about["Last-Modified"], "Etag": about["ETag"], "Content-Length": len(data),
                      "Content-Type": "application/octet-stream", "BlobType": "BlockBlob"}
            fields = "".join(f"<{field}>{escape(str(value))}</{field}>" for field, value in fields.items())
            found.append(f"<Blob><Name>{escape(name)}</Name><Properties>{fields}</Properties></Blob>")
        found += [f"<BlobPrefix><Name>{escape(folder)}</Name></BlobPrefix>" for folder in sorted(folders)]
        text = f'<?xml version="1.0" encoding="utf-8"?><EnumerationResults><Blobs>{"".join(found)}</Blobs><NextMarker/></EnumerationResults>'
        return 200, {"Content-Type": "application/xml"}, text.encode()

    def batch(self, headers, body):
        """Deletes of many: a request in each part, an answer in each part."""
        edge = re.search(r"boundary=([^;]+)", headers["Content-Type"])[1].strip('"')
        answers = []
        for part in body.split(f"--{edge}".encode()):
            asked = re.search(rb"DELETE (\S+) HTTP", part)
            if not asked:
                continue
            number = re.search(rb"(?i)content-id: *(\S+)", part)[1].decode()
            name = urllib.parse.unquote("/".join(urllib.parse.urlsplit(asked[1].decode()).path.split("/")[3:]))
            if name not in self.blobs:
                name = urllib.parse.unquote("/".join(urllib.parse.urlsplit(asked[1].decode()).path.split("/")[2:]))
            status = "202 Accepted" if self.blobs.pop(name, None) else "404 Not Found"
            answers.append(f"--{edge}\r\nContent-Type: application/http\r\nContent-ID: {number}\r\n\r\nHTTP/1.1 {status}\r\n\r\n\r\n")
        data = "".join(answers) + f"--{edge}--\r\n"
        return 202, {"Content-Type": f"multipart/mixed; boundary={edge}"}, data.encode()


def error(status, code):
    text = f'<?xml version="1.0" encoding="utf-8"?><Error><Code>{code}</Code><Message>{code}</Message></Error>'
    return status, {"Content-Type": "application/xml", "x-ms-error-code": code}, text.encode()
