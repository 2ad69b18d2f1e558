"""The command line of Python: where the options end and what is run."""

WITH_VALUE = ("W", "X")


class Command:
    """The arguments after the interpreter's name, cut into options with the script, and the script's own arguments."""

    def __init__(self, args):
        self.kind = ""
        self.script = None
        self.module = None
        self.options = []
        position = 0
        while position < len(args) and self.script is None:
            arg = args[position]
            position += 1
            if arg == "-" or not arg.startswith("-"):
                self.script, self.kind = arg, "-" if arg == "-" else ""
            elif arg.startswith("--"):
                if arg == "--check-hash-based-pycs":
                    position += 1
                self.options.append(arg)
            else:
                position = self._letters(arg[1:], args, position)
        self.head = args[:position]
        self.rest = args[position:]

    def _letters(self, letters, args, position):
        """A group of one-letter options, the last of which may take a value; returns where to go on."""
        for index, letter in enumerate(letters):
            self.options.append("-" + letter)
            if letter not in ("c", "m", *WITH_VALUE):
                continue
            value = letters[index + 1:]
            if not value and position < len(args):
                value = args[position]
                position += 1
            if letter in ("c", "m"):
                self.kind, self.script, self.module = "-" + letter, "-" + letter, value
            return position
        return position
