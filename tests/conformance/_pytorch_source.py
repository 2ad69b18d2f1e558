"""PyTorch's own test files, of release 2.6: Debian keeps the sources as one archive. `fetch()` brings them into target/, once.

They are read and run from there, never copied into the repository.
"""

import fcntl
import hashlib
import os
import sys
import tarfile
import time
import urllib.request
from pathlib import Path

URL = "http://deb.debian.org/debian/pool/main/p/pytorch/pytorch_2.6.0+dfsg.orig.tar.xz"
SHA256 = "099a9601bc40d67656e75735c44abedb0fbe92d08817852ab7472eebb7e6ddff"
TARGET = Path(__file__).resolve().parents[2] / "target"
# Of the archive only the tests of torch.distributed are unpacked.
WANTED = "/test/distributed/"
TRIES = 3
SECONDS_MAX = 60


def download(archive):
    """The archive, whole and as it should be, or an error."""
    beside = archive.with_suffix(".part")
    for attempt in range(1, TRIES + 1):
        try:
            with urllib.request.urlopen(URL, timeout=SECONDS_MAX) as answer, open(beside, "wb") as file:
                while block := answer.read(1 << 20):
                    file.write(block)
            break
        except OSError as error:
            if attempt == TRIES:
                sys.exit(f"error: cannot fetch {URL}: {error}\nhint: put the file at {archive}")
            time.sleep(2 * attempt)
    found = hashlib.sha256(beside.read_bytes()).hexdigest()
    if found != SHA256:
        sys.exit(f"error: {URL} has the digest {found}, expected {SHA256}")
    os.replace(beside, archive)


def fetch():
    """Folder test/distributed of PyTorch's sources."""
    home = TARGET / "pytorch-2.6.0"
    tests = home / "test" / "distributed"
    home.mkdir(parents=True, exist_ok=True)
    with open(home / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (home / ".complete").exists():
            return tests
        archive = home / URL.rsplit("/", 1)[1]
        if not archive.exists():
            download(archive)
        with tarfile.open(archive) as tar:
            for member in tar:
                if WANTED not in member.name or not member.isfile():
                    continue
                # Without the name of the archive's own top folder.
                member.name = member.name.split("/", 1)[1]
                tar.extract(member, home, filter="data")
        (home / ".complete").touch()
    return tests


if __name__ == "__main__":
    print(fetch())
