"""PyTorch's own tests of TCPStore (test/distributed/test_store.py of release 2.6) with our server in the place of theirs.

Every TCPStore that would serve starts a `store_server` of ours on its port and is a client of it. Names of tests given on
the command line select them.
"""

import os
import subprocess
import sys
import types
import unittest
from pathlib import Path

import _pytorch_source
import torch.distributed as dist
from _cases import cases
from _cases import name as name_of
from torch.testing._internal.distributed import multi_threaded_pg

# Classes of the file in which no TCPStore is made, or only in tests that say so.
OTHERS = {
    "FileStoreTest": "FileStore",
    "HashStoreTest": "HashStore",
    "PrefixFileStoreTest": "FileStore",
    "PythonStoreTest": "a store in Python",
    "RendezvousTest": "words of the URL parser",
    "RendezvousFileTest": "FileStore",
    "TestPythonStore": "a store in Python",
}

# Tests of a TCPStore that say nothing about a server in another process.
INAPPLICABLE = {
    "repr names the server object of the same process": ["test_repr"],
    "the words of torch's own listening socket; ours are tested in broker/src/tcpstore/listener.rs": ["test_address_already_in_use"],
    "a listening descriptor is given to the server in the same process": ["test_take_over_listen_socket"],
    "waiting for the workers is done by the object that has the server": ["test_store_timeout_on_missing_clients"],
}
TCP_CLASSES = ["TCPStoreTest", "LibUvTCPStoreTest"]
OTHER_TESTS = {
    "TestMultiThreadedWait.test_wait_hash_store": "HashStore",
    "TestMultiThreadedWait.test_wait_file_store": "FileStore",
    "TestMultiThreadedWait.test_wait_prefix_file_store": "FileStore",
    "TestClientProtocol.test_client_connect": "the test itself is the server",
}

original = dist.TCPStore.__init__
servers = {}


def serve(port, multi_tenant):
    """Port of a server of ours, on every address as theirs is; one port has one, which only tenants share."""
    if port in servers:
        if not multi_tenant:
            raise RuntimeError(f"the port {port} is taken")
        return port
    command = [Path(os.environ["ENN_BIN_DIR"], "store_server"), str(port), ""]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    line = server.stdout.readline()
    if not line:
        raise RuntimeError(server.stderr.read())
    servers[int(line)] = server
    return int(line)


def init(self, host_name, port, world_size=None, is_master=False, *args, **kwargs):
    """TCPStore's constructor, without its server."""
    names = ["timeout", "wait_for_workers", "multi_tenant", "master_listen_fd", "use_libuv"]
    kwargs.update(zip(names, args))
    multi_tenant = kwargs.pop("multi_tenant", False)
    if is_master:
        if kwargs.pop("master_listen_fd", None) is not None:
            raise RuntimeError("our server takes no descriptor")
        port = serve(port, multi_tenant)
    original(self, host_name, port, world_size, False, **kwargs)


def load(path):
    """The test file as a module. The test base of torch wants expecttest, of which nothing is used here."""
    stand_in = types.ModuleType("expecttest")
    stand_in.TestCase, stand_in.ACCEPT = unittest.TestCase, False
    sys.modules.setdefault("expecttest", stand_in)
    module = types.ModuleType("enn_test_store")
    sys.modules["enn_test_store"] = module
    module.__file__ = str(path)
    exec(compile(path.read_text(), str(path), "exec"), module.__dict__)
    # It insists on being the program that runs.
    del module.load_tests
    return module


def inapplicable():
    listed = dict(OTHER_TESTS)
    for reason, tests in INAPPLICABLE.items():
        listed.update({f"{owner}.{test}": reason for owner in TCP_CLASSES for test in tests})
    return listed


def check(module):
    """Runs what applies; what is wrong, one text each, and how many ran."""
    listed, chosen = inapplicable(), set(sys.argv[1:])
    found, ran, wrong = set(), 0, []
    for case in cases(unittest.TestLoader().loadTestsFromModule(module)):
        owner, name = type(case).__name__, name_of(case)
        found |= {owner, name}
        if owner in OTHERS or name in listed or (chosen and name not in chosen):
            continue
        result = unittest.TestResult()
        unittest.TestSuite([case]).run(result)
        ran += 1
        print(f"  {'ok  ' if result.wasSuccessful() and not result.skipped else 'FAIL'} {name}", flush=True)
        wrong += [f"{name}\n{text}" for _, text in result.failures + result.errors]
        wrong += [f"{name} was skipped: {reason}" for _, reason in result.skipped]
    wrong += [f"{name} is listed but does not exist" for name in [*OTHERS, *listed] if name not in found]
    return ran, wrong


def main():
    # What destroy_process_group of 2.11 looks for; the test base of 2.11 itself has not got it.
    multi_threaded_pg.ThreadLocalWorld.comms = []
    dist.TCPStore.__init__ = init
    try:
        tests = _pytorch_source.fetch()
        ran, wrong = check(load(tests / "test_store.py"))
    finally:
        for server in servers.values():
            server.stdin.close()
            server.wait(10)
    if not servers:
        wrong.append("no server of ours was started: the tests tested something else")
    print(f"{ran} tests of PyTorch's passed against {len(servers)} servers of ours" if not wrong else "\n".join(wrong))
    sys.stdout.flush()
    # Threads of libtorch that still hold a store must not wait for a server that is gone.
    os._exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
