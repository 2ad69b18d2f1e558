"""Sets a variable that a preloaded module reads at its import, and then imports it."""

import os
import sys

if "print" in sys.argv:
    print("printed before")
if "open" in sys.argv:
    kept = open("kept.txt", "w")
if "child" in sys.argv:
    os.waitpid(os.spawnv(os.P_NOWAIT, "/bin/true", ["true"]), 0)
if "written" in sys.argv:
    with open("written.txt", "a") as file:
        file.write("once\n")
if "stdin" in sys.argv:
    sys.stdin.readline()
PID = os.getpid()
os.environ["NOISY_IMPORT_READS"] = "set by the script"
import noisy_import  # noqa: E402

print("read", noisy_import.READ)
print("process", PID == os.getpid(), os.getsid(0) == PID, os.environ["NOISY_IMPORT_READS"], os.environ["RANK"])
if os.path.exists("written.txt"):
    print(open("written.txt").read())
import seen  # noqa: E402

seen.show("descriptors", sorted(int(name) for name in os.listdir("/proc/self/fd"))[:3])
seen.show("signals", seen.status("SigI", "SigC", "SigB"))
