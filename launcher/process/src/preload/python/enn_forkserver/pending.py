"""A connection whose frame has not come whole yet."""

import os
import struct
import time

import _socket

from enn_forkserver.frames import DESCRIPTORS_MAX, FRAME_BYTES_MAX, Malformed, passed_descriptors, send

REQUEST_SECONDS_MAX = 2.0


class Pending:
    """The bytes that have arrived on a connection so far, and the deadline for the rest."""

    def __init__(self, connection):
        connection.setblocking(False)
        self.connection = connection
        self.body = bytearray()
        self.given = []
        self.deadline = time.monotonic() + REQUEST_SECONDS_MAX

    def read(self):
        """Takes what has come; True when the frame is whole, EOFError when the other side is gone."""
        data, ancillary, _, _ = self.connection.recvmsg(1 << 16, _socket.CMSG_SPACE(4 * DESCRIPTORS_MAX))
        self.given.extend(passed_descriptors(ancillary))
        if not data:
            raise EOFError
        if len(self.given) > DESCRIPTORS_MAX:
            raise Malformed(f"the request came with more than {DESCRIPTORS_MAX} descriptors")
        self.body += data
        if len(self.body) < 4:
            return False
        size = struct.unpack_from("<I", self.body)[0]
        if size > FRAME_BYTES_MAX:
            raise Malformed(f"the request announces {size} bytes, expected at most {FRAME_BYTES_MAX}")
        if len(self.body) > 4 + size:
            raise Malformed("bytes follow the request")
        return len(self.body) == 4 + size

    def frame(self):
        """The bytes of the whole frame."""
        return bytes(self.body[4:])

    def close_given(self):
        """Closes the descriptors that came with the frame."""
        for descriptor in self.given:
            os.close(descriptor)
        self.given = []

    def close(self):
        self.close_given()
        self.connection.close()


def take(waiting, connection, answer):
    """Reads on; a whole frame goes to `answer`, which also closes the connection, or keeps it. True in a forked worker."""
    pending = waiting[connection]
    try:
        if not pending.read():
            return False
        del waiting[connection]
        return answer(pending)
    except BlockingIOError:
        return False
    except Malformed as error:
        send(connection, {"refuse": str(error)})
    except (EOFError, OSError):
        pass
    waiting.pop(connection, None)
    pending.close()
    return False


def close_late(waiting):
    """Closes the connections, keys of the dict, that took too long."""
    now = time.monotonic()
    for connection in [each for each, pending in waiting.items() if pending.deadline < now]:
        waiting.pop(connection).close()


def patience(waiting):
    """The seconds until the next one takes too long; None when none waits."""
    limit = min((each.deadline for each in waiting.values()), default=None)
    return None if limit is None else max(0.0, limit - time.monotonic())
