"""A process group for what a check starts, so that none of it outlives the check, however that ends."""

import os
import signal
import sys


class Group:
    """`id` is for `process_group` of subprocess.Popen.

    Its first process hears the end of a pipe that only the check has the other end of, and kills the group. Whatever an `enn` in
    it has started ends with that.
    """

    def __init__(self):
        heard, self.pipe = os.pipe()
        self.id = os.fork()
        if self.id == 0:
            os.setpgid(0, 0)
            os.close(self.pipe)
            os.read(heard, 1)
            os.killpg(0, signal.SIGKILL)
        # Here and there, so that it is done whoever comes first.
        os.setpgid(self.id, self.id)
        os.close(heard)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended from outside"))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self.pipe)
        os.waitpid(self.id, 0)
