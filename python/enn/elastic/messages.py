"""The language between a worker and the broker of its node: frames of JSON on a Unix socket.

A frame is a length (u32, little-endian, at most 65,536), then one JSON object in UTF-8. The field `message` says which one it is.
"""

import json
import struct
from dataclasses import dataclass

PROTOCOL = 2
FRAME_BYTES_MAX = 64 << 10
_LENGTH = struct.Struct("<I")


class ProtocolError(Exception):
    """The bytes that came are no message of this language."""


@dataclass(frozen=True)
class Seat:
    """A rank in a round, and where it meets the others. All fields are those of the message `assigned`."""

    round: int
    rank: int
    world: int
    local_rank: int
    local_world: int
    master_addr: str
    master_port: int
    store_prefix: str
    source_rank: int | None
    step: int


def encode(message: str, **fields) -> bytes:
    """Returns one frame.

    Raises `ValueError` if the message is too long.
    """
    payload = json.dumps({"message": message, **fields}, separators=(",", ":"), ensure_ascii=False).encode()
    if len(payload) > FRAME_BYTES_MAX:
        raise ValueError(f"the message {message!r} has {len(payload)} bytes, at most {FRAME_BYTES_MAX} are allowed")
    return _LENGTH.pack(len(payload)) + payload


def seat_of(message: dict) -> Seat:
    """Returns the seat that an `assigned` message describes.

    Raises `ProtocolError` if a field is missing or unknown.
    """
    fields = {name: value for name, value in message.items() if name != "message"}
    try:
        return Seat(**fields)
    except TypeError as error:
        raise ProtocolError(f"message 'assigned' has other fields than expected: {error}") from None


class FrameReader:
    """Cuts a stream of bytes into messages."""

    def __init__(self):
        self._buffer = bytearray()

    def feed(self, received: bytes) -> list[dict]:
        """Takes bytes and returns the messages that are whole now.

        Raises `ProtocolError` for bytes that are no message.
        """
        self._buffer += received
        messages = []
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if length > FRAME_BYTES_MAX:
                raise ProtocolError(f"a frame has {length} bytes, at most {FRAME_BYTES_MAX} are allowed")
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                break
            messages.append(_message(bytes(self._buffer[_LENGTH.size : end])))
            del self._buffer[:end]
        return messages


def _message(payload: bytes) -> dict:
    try:
        message = json.loads(payload)
    except ValueError as error:
        raise ProtocolError(f"a frame of {len(payload)} bytes is not JSON: {error}") from None
    if not isinstance(message, dict) or not isinstance(message.get("message"), str):
        raise ProtocolError("a frame has no field 'message'")
    return message
