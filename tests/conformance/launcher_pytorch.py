"""PyTorch's own tests of torchrun (test/distributed/launcher of release 2.6) with `enn-torchrun` in torchrun's place."""

import os
import sys

import _enn_torchrun as ours
import _pytorch_source

MOCKS = "mocks the inside of PyTorch's agent; nothing of it runs here"
FUNCTIONS = "elastic_launch is a Python API for functions; programs are launched by test_run.py, agents by launcher_pytorch_agent.py"
ETCD = "needs an etcd server (EtcdServer) and PyTorch's own rendezvous"

INAPPLICABLE = {
    "ElasticLaunchTest.test_launch_elastic_worker_raise_exception": f"{MOCKS} (events.record); that a worker's failure is told is in launcher_scripts.py",
    "ElasticLaunchTest.test_launch_elastic_agent_raise_exception": MOCKS,
    "ElasticLaunchTest.test_launch_shutdown": MOCKS,
    "ElasticLaunchTest.test_nproc_gpu_launch_configurations": "mocks torch.cuda in the launcher's process; ours counts devices itself (torchrun/tests.rs)",
    "LaunchTest.test_launch_without_env": "torch.distributed.launch without --use-env passes --local-rank to the script; torchrun has no such flag",
}


def legacy_main(args):
    """torch.distributed.launch with --use-env is torchrun."""
    if "--use-env" not in args:
        raise NotImplementedError("--local-rank")
    ours.main([arg for arg in args if arg != "--use-env"])


def main():
    tests = _pytorch_source.fetch() / "launcher"
    for variable in [name for name in os.environ if name.startswith("PET_")]:
        del os.environ[variable]
    run = ours.load(tests / "test_run.py", "enn_test_run")
    run.launch.main = ours.main
    legacy = ours.load(tests / "launch_test.py", "enn_launch_test")
    legacy.launch.main = legacy_main
    ours.check([run, legacy], INAPPLICABLE)


if __name__ == "__main__":
    main()
