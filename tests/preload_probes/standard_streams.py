"""Prints everything that the three standard streams tell of themselves."""

import os
import sys

import seen

for name in ("stdin", "stdout", "stderr"):
    stream = getattr(sys, name)
    seen.show(name, stream)
    seen.show(name + " is the first one", stream is getattr(sys, f"__{name}__"))
    for attribute in ("encoding", "errors", "name", "mode", "newlines", "line_buffering", "write_through", "closed"):
        seen.show(f"{name}.{attribute}", getattr(stream, attribute))
    for method in ("isatty", "seekable", "readable", "writable", "fileno"):
        seen.show(f"{name}.{method}()", getattr(stream, method)())
    buffer = stream.buffer
    raw = getattr(buffer, "raw", buffer)
    seen.show(name + ".buffer", (type(buffer).__name__, buffer.name, buffer.mode, type(raw).__name__, raw.name,
                                raw.closefd))
    seen.show(name + " attributes", sorted(vars(stream)))
    if name != "stdin" and stream.seekable():
        stream.flush()
        seen.show(name + ".tell()", stream.tell() >= 0)
if not sys.stdin.isatty():
    seen.show("lines", [line for line in sys.stdin.buffer.read().splitlines(True)] if sys.argv[1:] == ["bytes"] else
              [sys.stdin.readline(), sys.stdin.readline()])
    try:
        seen.show("rest", sys.stdin.read())
    except UnicodeDecodeError as error:
        seen.show("rest", str(error))
print("text\r\nmore\n", end="")
print("to standard error", file=sys.stderr)
sys.stdout.write("no newline at the end")
sys.stdout.flush()
os.write(1, b"\nby the descriptor\n")
seen.show("last", sys.stdout.reconfigure(line_buffering=True))
