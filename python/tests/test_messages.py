"""Frames are those of the broker; what is no message is refused in words."""

import json
import unittest

from enn.elastic.messages import FrameReader, ProtocolError, Seat, encode, seat_of

ASSIGNED = (
    '{"message":"assigned","round":3,"rank":1,"world":4,"local_rank":1,"local_world":2,"master_addr":"10.0.0.1","master_port":29500,'
    '"store_prefix":"enn/3-1f/","source_rank":2,"step":40}'
)


def frame(text: str) -> bytes:
    return len(text.encode()).to_bytes(4, "little") + text.encode()


class Frames(unittest.TestCase):
    def test_the_bytes_are_those_of_protocol_2(self):
        self.assertEqual(encode("attach", protocol=2, worker=3, pid=70000), frame('{"message":"attach","protocol":2,"worker":3,"pid":70000}'))
        self.assertEqual(encode("parts", parts=8), frame('{"message":"parts","parts":8}'))
        self.assertEqual(encode("failed", error="é"), frame('{"message":"failed","error":"é"}'))

    def test_pieces_become_messages(self):
        reader = FrameReader()
        data = frame(ASSIGNED) + frame('{"message":"stop"}')
        found = [message for byte in data for message in reader.feed(bytes([byte]))]
        self.assertEqual(seat_of(found[0]), Seat(3, 1, 4, 1, 2, "10.0.0.1", 29500, "enn/3-1f/", 2, 40))
        self.assertEqual(found[1], {"message": "stop"})

    def test_what_is_no_message_is_refused(self):
        for data, words in [
            (b"GET / HTTP/1.1\r\n\r\n", "at most 65536 are allowed"),
            (frame("x"), "is not JSON"),
            (frame("[]"), "has no field 'message'"),
        ]:
            with self.assertRaisesRegex(ProtocolError, words):
                FrameReader().feed(data)
        with self.assertRaisesRegex(ProtocolError, "other fields than expected"):
            seat_of(json.loads(ASSIGNED) | {"more": 1})
        with self.assertRaisesRegex(ValueError, "at most 65536 are allowed"):
            encode("failed", error="x" * 70000)


if __name__ == "__main__":
    unittest.main()
