"""The folder of a node's mirrors. They need a memory file system with much room, which that of the launcher's sockets may not be.

The folder of seats has a link `mirrors` to it. The launcher removes the folder of seats when the run ends; a folder of mirrors whose folder
of seats is gone belongs to nobody, and the next run removes it.
"""

import hashlib
import os
import shutil
from pathlib import Path

from .errors import ElasticError

MEMORY = Path("/dev/shm")
_PREFIX = "enn-mirrors-"
_LINK = "mirrors"
_OWNER = "seats"


def of(seats: Path) -> Path:
    """Returns the folder for the mirrors of a node, given that of its seats; all its processes get the same one.

    Raises `ElasticError` if another user has a folder of that name.
    """
    link = seats / _LINK
    if not link.is_symlink():
        _remove_orphans()
        try:
            link.symlink_to(_choose(seats))
        except FileExistsError:
            # Another rank was faster; both would choose alike, if not at the same time.
            pass
    folder = link.resolve()
    if folder.stat().st_uid != os.geteuid():
        raise ElasticError(f"{folder} belongs to another user, and mirrors are to be kept there")
    return folder


def known(seats: Path) -> Path | None:
    """Returns the folder, if a rank of the node has chosen it already."""
    link = seats / _LINK
    return link.resolve() if link.is_symlink() else None


def _choose(seats: Path) -> Path:
    is_same = seats.stat().st_dev == MEMORY.stat().st_dev if MEMORY.is_dir() else True
    if is_same or not _is_memory(MEMORY) or (_is_memory(seats) and _free(seats) >= _free(MEMORY)):
        return seats
    folder = MEMORY / (_PREFIX + hashlib.blake2b(os.fsencode(seats), digest_size=8).hexdigest())
    folder.mkdir(mode=0o700, exist_ok=True)
    (folder / _OWNER).write_text(str(seats))
    return folder


def _is_memory(folder: Path) -> bool:
    """Returns whether a folder that can be written is in a memory file system."""
    if not os.access(folder, os.W_OK):
        return False
    device = os.stat(folder).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        mount, _, rest = line.partition(" - ")
        if mount.split()[2] == wanted:
            return rest.split()[0] in ("tmpfs", "ramfs")
    return False


def _free(folder: Path) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def _remove_orphans() -> None:
    for folder in MEMORY.glob(_PREFIX + "*"):
        try:
            if folder.stat().st_uid == os.geteuid() and not Path((folder / _OWNER).read_text()).is_dir():
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            # It is being made, or being removed by another process.
            continue


def remove_if_empty(folder: Path) -> None:
    """The copies of a rank were removed: the last one removes the folder, if it is not that of the seats."""
    if not folder.name.startswith(_PREFIX) or any(folder.glob("mirror-*")):
        return
    shutil.rmtree(folder, ignore_errors=True)
