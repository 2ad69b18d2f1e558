"""The folder of a warm server: its files, and the socket by which it is found."""

import os
import stat

READY = "ready"


class Folder:
    """This package's folder, which a warm server owns and takes with it."""

    def __init__(self, path):
        self.path = path
        self.identity = identity(path)
        # Where the program of the self-check is, with nothing beside it.
        self.check = os.path.join(path, "check")

    def mark_ready(self):
        os.close(os.open(os.path.join(self.path, READY), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))

    def remove(self):
        """Removes the folder with everything in it, if it is still the one that this server was started from."""
        if self.identity is not None and identity(self.path) == self.identity:
            remove_all(self.path)


def identity(path):
    """Returns the folder's identity, if it is one of this user's own."""
    try:
        about = os.lstat(path)
    except OSError:
        return None
    return (about.st_dev, about.st_ino) if stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid() else None


def remove_all(path):
    """Removes a folder and what is in it; no link is followed, and what cannot be removed stays."""
    try:
        with os.scandir(path) as entries:
            for entry in list(entries):
                if entry.is_dir(follow_symlinks=False):
                    remove_all(entry.path)
                else:
                    os.unlink(entry.path)
        os.rmdir(path)
    except OSError:
        pass
