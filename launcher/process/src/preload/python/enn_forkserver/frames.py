"""The bytes between the launcher and the server: framing, JSON out, the request in."""

import os
import struct

from _json import encode_basestring_ascii as quoted

# Limit on a sentence for the launcher; a datagram must hold it.
SENTENCE_CHARS_MAX = 2000
FRAME_BYTES_MAX = 16 << 20
DESCRIPTORS_MAX = 16
SEND_SECONDS_MAX = 2.0
VERSION = "1"
SOL_SOCKET = 1
SCM_RIGHTS = 1


class Malformed(Exception):
    """The other side sent something that is not a frame of this protocol."""


def json_text(value):
    """JSON of strings, numbers, lists and dicts; the module `json` would cost 10 ms of imports."""
    if isinstance(value, str):
        return quoted(readable(value))
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{quoted(name)}: {json_text(item)}" for name, item in value.items()) + "}"
    return "[" + ", ".join(json_text(item) for item in value) + "]"


def readable(text):
    """The text with bytes that are none, which come as lone surrogates, written out: JSON has no place for them."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def sentence(text):
    """The text, cut where it would be too long."""
    text = readable(text)
    return text if len(text) <= SENTENCE_CHARS_MAX else text[:SENTENCE_CHARS_MAX - 1] + "…"


def frame(value):
    """One frame: four bytes of length, then the JSON text."""
    text = json_text(value).encode("ascii")
    return struct.pack("<I", len(text)) + text


def send(connection, value):
    """Sends one frame; another side that is gone is no error."""
    try:
        connection.setblocking(True)
        connection.settimeout(SEND_SECONDS_MAX)
        connection.sendall(frame(value))
    except OSError:
        pass


def passed_descriptors(ancillary):
    """The descriptors that came with a message."""
    found = []
    for level, kind, data in ancillary:
        if (level, kind) == (SOL_SOCKET, SCM_RIGHTS):
            count = len(data) // 4
            found.extend(struct.unpack(f"{count}i", data[:4 * count]))
    return found


class Request:
    """The launcher's request for one worker, with everything that an executed one would inherit."""

    def __init__(self, body):
        fields = body.split(b"\0")
        if fields and fields[-1] == b"":
            fields.pop()
        self._fields = iter(fields)
        try:
            version = self._text()
            if version != VERSION:
                raise Malformed(f"the request has version {version!r}, expected {VERSION!r}")
            self.launcher = int(self._text())
            self.cwd = self._text()
            self.umask = int(self._text())
            self.notes = self._text()
            ignored = self._text()
            self.ignored = {int(number) for number in ignored.split(",") if number}
            self.args = [self._text() for _ in range(int(self._text()))]
            self.argv0 = self._text()
            entries = [self._text() for _ in range(int(self._text()))]
        except (ValueError, StopIteration) as error:
            raise Malformed(f"the request has a field that is missing or no number ({error})") from None
        self.environment = {}
        for entry in entries:
            cut = entry.find("=", 1)
            if cut > 0:
                self.environment.setdefault(entry[:cut], entry[cut + 1:])

    def _text(self):
        return os.fsdecode(next(self._fields))


class JoinRequest(Request):
    """A run's request to a warm server for a server of its own, for workers like the described one."""

    def __init__(self, body, given):
        leave, numbers, rest = (body.split(b"\0", 2) + [b"", b""])[:3]
        if leave not in (b"0", b"1"):
            raise Malformed(f"the field after join is {leave!r}, expected 0 or 1")
        super().__init__(rest)
        # Whether processes that scripts left behind outlive the run.
        self.leave = leave == b"1"
        try:
            numbers = [int(number) for number in numbers.split(b",") if number]
        except ValueError:
            raise Malformed(f"the numbers of descriptors are {numbers!r}") from None
        if len(numbers) != len(given) or len({*numbers}) != len(numbers) or any(number < 3 for number in numbers):
            raise Malformed(f"{len(given)} descriptors came for the numbers {numbers}")
        # Descriptors that an executed worker would inherit, by the numbers that they have there.
        self.inherited = dict(zip(numbers, given))
