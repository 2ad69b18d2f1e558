"""The script that Python was told to run: found in the interpreter's own configuration, and changed before it is read.

Python has no function for this. Its configuration (PyConfig) is a structure whose layout differs between releases, so
the fields are found by what they hold: the warm server is started for a script of a name that nothing else has.
"""

import ctypes
import os
import struct
import sys

PLACEHOLDER = "/.enn-warm-server"
WORD = struct.calcsize("P")
# Limit on the searched words of the interpreter's state; the structure has about 70 words.
WORDS_MAX = 128


class Unknown(Exception):
    """The configuration does not look as it does in the known releases."""


def encoded(text):
    """Encodes a text as the configuration holds it: wide characters of four bytes, as on Linux, and a zero.

    Bytes that are no text are lone surrogates here and there. A codec would be a module more in every worker.
    """
    return struct.pack(f"{len(text) + 1}I", *map(ord, text), 0)


class Memory:
    """Reads this process's memory; an invalid address gives nothing, where ctypes would crash."""

    def __init__(self):
        self.file = os.open("/proc/self/mem", os.O_RDONLY)

    def read(self, address, size):
        try:
            return os.pread(self.file, size, address)
        except (OSError, OverflowError, ValueError):
            return b""

    def words(self, address, count):
        data = self.read(address, count * WORD)
        return struct.unpack(f"{len(data) // WORD}P", data[:len(data) // WORD * WORD])

    def holds(self, address, text):
        """Whether the text begins, and ends, at the address."""
        want = encoded(text)
        return address != 0 and self.read(address, len(want)) == want

    def close(self):
        os.close(self.file)


class Config:
    """The fields `run_command`, `run_module`, `run_filename` and `argv` of the live configuration."""

    def __init__(self):
        self.version = f"Python {sys.version_info[0]}.{sys.version_info[1]}"
        try:
            get = ctypes.pythonapi._Py_GetConfig
            self.allocate = ctypes.pythonapi.PyMem_RawMalloc
        except AttributeError as error:
            raise Unknown(f"{self.version} does not show its configuration ({error})") from None
        get.restype = self.allocate.restype = ctypes.c_void_p
        self.allocate.argtypes = [ctypes.c_size_t]
        memory = Memory()
        try:
            self.find(memory, get())
        finally:
            memory.close()

    def find(self, memory, base):
        """Finds the fields by what they hold, and sees that nothing else looks like them."""
        words = memory.words(base, WORDS_MAX)
        names = [index for index, word in enumerate(words) if index >= 2 and memory.holds(word, PLACEHOLDER)]
        # A list: its length, 1 here, and the address of its items.
        lists = [index for index, word in enumerate(words[:-1]) if word == 1 and any(
            memory.holds(item, PLACEHOLDER) for item in memory.words(words[index + 1], 1))]
        if len(names) != 1 or len(lists) != 1 or words[names[0] - 2:names[0]] != (0, 0):
            raise Unknown(f"the layout of PyConfig in {self.version} is not known")
        self.command = base + (names[0] - 2) * WORD
        self.argv = base + lists[0] * WORD

    def set(self, command, cwd):
        """Makes this interpreter run the script, the module or the text of the command, in the working directory."""
        text = command.module + "\n" if command.kind == "-c" else None
        module = command.module if command.kind == "-m" else None
        name = absolute(command.script, cwd) if command.kind == "" else None
        items = self.allocated(WORD * (1 + len(command.rest)))
        argv = [command.script, *command.rest]
        for index, value in enumerate(argv):
            put(items + WORD * index, self.text(value))
        for index, value in enumerate((text, module, name)):
            put(self.command + WORD * index, 0 if value is None else self.text(value))
        put(self.argv, len(argv))
        put(self.argv + WORD, items)

    def text(self, value):
        """The address of the text in memory that the interpreter may free."""
        data = encoded(value)
        address = self.allocated(len(data))
        ctypes.memmove(address, data, len(data))
        return address

    def allocated(self, size):
        address = self.allocate(size)
        if not address:
            raise MemoryError
        return address


def put(address, value):
    ctypes.c_void_p.from_address(address).value = value


def absolute(path, cwd):
    """The path as the interpreter makes it absolute: see _Py_abspath in CPython."""
    if path.startswith("/"):
        return path
    return cwd + "/" + (path[2:] if path.startswith("./") else path)
