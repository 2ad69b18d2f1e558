"""PyTorch's own tests of its agent (test/distributed/elastic/agent of release 2.6) with `enn-torchrun` as the agent.

An agent of a test is a process of `enn-torchrun` with one node's flags; its workers call the test's function. Ranks, roles, world
sizes, variables, restarts, elasticity and failures are ours; what PyTorch's agent keeps in Python objects is filled in from the
run's journal.
"""

import json
import os
import pickle
import sys
import tempfile
import types
from pathlib import Path

import _enn_torchrun as ours
import _pytorch_source

import torch.distributed.elastic.rendezvous.etcd_server as etcd_server
from torch.distributed.elastic.agent.server.api import RunResult, WorkerState
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

HERE = Path(__file__).resolve().parent
MODULE = "enn_local_elastic_agent_test"
TWICE = "the same test runs as ..._c10d; there is one rendezvous of ours, whatever the backend is called"
MOCKS = "mocks the inside of PyTorch's agent; nothing of it runs here"
AGAIN = "the same test runs with our rendezvous as ..._etcd"
INHERITED = "passes under any agent, as workers inherit what the test sets; cases of launcher_scripts.py can fail: file_timer, variables_without_effect"
OVERRIDE = "the test's host name does not exist; MASTER_ADDR is where the store is, and enn serves it or fails"

# A backend that has its own server is run with our rendezvous where no test of the same name says c10d.
ONLY_ETCD = {"correct_rank_assignment_heterogeneous", "correct_rank_assignment_homogeneous", "double_agent_fault_tolerance",
             "run_check_env_function", "workers_drift_success", "workers_drift_fail"}

# Tests that pass without what they test: the test exports the variable, and a worker looks whether it is there.
CANNOT_FAIL = {"run_agent_local_watchdog_setup_enabled", "run_agent_local_watchdog_setup_disabled",
               "run_agent_healthcheck_setup_enabled", "run_agent_healthcheck_setup_disabled"}


class Etcd:
    """Stands where the tests start a server that is not needed."""

    def start(self):
        pass

    def stop(self):
        pass

    def get_endpoint(self):
        return "localhost:0"


class Agent:
    """One node of a test, run by `enn-torchrun`."""

    def __init__(self, spec, conf, log_dir, prefix):
        self.spec, self.conf, self.log_dir, self.prefix = spec, conf, log_dir, prefix
        self._remaining_restarts, self._total_execution_time = spec.max_restarts, 0.0
        self._state = WorkerState.INIT

    def get_worker_group(self):
        return types.SimpleNamespace(state=self._state)

    def run(self):
        with tempfile.TemporaryDirectory() as folder:
            base = Path(folder)
            (base / "out").mkdir()
            (base / "call").write_bytes(pickle.dumps((self.conf.entrypoint, self.conf.args)))
            code, out, err = ours.launch(self.command(base), base / "runs", self.variables())
            sys.stdout.write(out)
            sys.stderr.write(err)
            return self.result(code, base)

    def command(self, base):
        spec, conf = self.spec, self.conf
        args = [f"--nnodes={spec.nodes[0]}:{spec.nodes[1]}", f"--nproc-per-node={conf.local_world_size}", "--rdzv-backend=c10d",
                f"--rdzv-endpoint={spec.endpoint}", f"--rdzv-id={spec.run_id}", f"--max-restarts={spec.max_restarts}",
                f"--role={conf.role}", f"--redirects={int(conf.redirects)}", f"--tee={int(conf.tee)}", f"--log-dir={self.log_dir}"]
        if not spec.is_host:
            args.append("--rdzv-conf=is_host=0")
        return [*args, "-m", "_launcher_worker", str(base / "call"), str(base / "out")]

    def variables(self):
        variables = {"PYTHONPATH": f"{HERE}:{Path(sys.modules[MODULE].__file__).parent}:{os.environ.get('PYTHONPATH', '')}"}
        if self.prefix:
            variables["TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"] = self.prefix
        return variables

    def result(self, code, base):
        [journal] = (base / "runs").glob("*/events.jsonl")
        events = [json.loads(line) for line in journal.read_text().splitlines()]
        ended = [event for event in events if event["event"] == "run_ended"][-1]
        self._total_execution_time = ended["seconds"]
        self._remaining_restarts = self.spec.max_restarts - ended["restarts"]
        self._state = WorkerState.SUCCEEDED if code == 0 else WorkerState.FAILED
        if code == 0:
            return RunResult(WorkerState.SUCCEEDED, return_values=self.returned(base / "out"))
        told = [event["failure"] for event in events if event["event"] == "failure_reported"][-1]
        [attempt] = Path(self.log_dir).glob(f"*/attempt_{told['round']}")
        error_file = attempt / str(told["local_rank"]) / "error.json"
        # The first failure may be told by its error file before its process has ended.
        [exited] = [event for event in events if event["event"] == "worker_exited" and event["pid"] == told["pid"]]
        exit_code = exited["code"] if exited["signal"] is None else -exited["signal"]
        failure = ProcessFailure(told["local_rank"], told["pid"], exit_code, str(error_file))
        return RunResult(WorkerState.FAILED, failures={told["rank"]: failure})

    @staticmethod
    def returned(folder):
        """What the workers of the last round returned, by rank."""
        files = {tuple(map(int, path.stem.split("."))): path for path in folder.glob("*.pickle")}
        last = max(round_ for round_, _ in files)
        return {rank: pickle.loads(path.read_bytes()) for (round_, rank), path in files.items() if round_ == last}


def get_worker_spec(self, node_config, min_nodes=1, max_nodes=1, max_restarts=0, monitor_interval=0.01,
                    master_addr_override=None, master_port_override=None, is_host=True):
    handler = types.SimpleNamespace(shutdown=lambda: None)
    return types.SimpleNamespace(nodes=(min_nodes, max_nodes), endpoint=self._endpoint, run_id=self._run_id, is_host=is_host,
                                 max_restarts=max_restarts, rdzv_handler=handler, get_entrypoint_name=lambda: "enn-torchrun",
                                 master_addr=master_addr_override)


def get_agent(self, spec, node_config, start_method="spawn", exit_barrier_timeout=5, log_line_prefix_template=None):
    return Agent(spec, node_config, self.log_dir(), log_line_prefix_template)


def with_our_rendezvous(module):
    original = module.LocalElasticAgentTest.run_test_with_backend

    def run_test_with_backend(self, backend, test_to_run):
        if backend == "etcd-v2" or backend != "c10d" and test_to_run.__name__ not in ONLY_ETCD:
            raise NotImplementedError(backend)
        if test_to_run.__name__ in CANNOT_FAIL:
            raise NotImplementedError("this test cannot fail")
        original(self, "c10d", test_to_run)

    return run_test_with_backend


def inapplicable(case):
    listed = {
        f"{case}.test_check_master_addr_port_override_etcd": OVERRIDE,
        f"{case}.test_check_master_addr_port_override_etcd_v2": OVERRIDE,
        f"{case}.test_barrier_failed_c10d": MOCKS,
        f"{case}.test_shutdown_called_c10d": MOCKS,
    }
    twice = ["dummy_compute", "run_happy_function", "run_function_with_return_value", "simple_dist_sum",
             "run_distributed_sum_homogeneous", "run_distributed_sum_heterogeneous", "run_sad_function", "run_bipolar_function",
             "double_agent_elastic", "torch_rpc", "barrier_failed", "shutdown_called"]
    listed |= {f"{case}.test_{name}_{backend}": TWICE for name in twice for backend in ("etcd", "etcd_v2")}
    listed |= {f"{case}.test_{name}_etcd": TWICE for name in CANNOT_FAIL}
    listed |= {f"{case}.test_{name}_c10d": INHERITED for name in CANNOT_FAIL}
    again = ["correct_rank_assignment_heterogeneous", "correct_rank_assignment_homogeneous", "double_agent_fault_tolerance",
             "workers_drift_success", "workers_drift_fail"]
    listed |= {f"{case}.test_{name}_etcd_v2": AGAIN for name in again}
    return listed


def main():
    etcd_server.EtcdServer = Etcd
    path = _pytorch_source.fetch() / "elastic" / "agent" / "server" / "test" / "local_elastic_agent_test.py"
    # Workers find the functions of the test under the same name.
    alias = path.with_name(f"{MODULE}.py")
    if not alias.exists():
        alias.symlink_to(path.name)
    module = ours.load(alias, MODULE)
    case = module.LocalElasticAgentTest
    case.get_worker_spec, case.get_agent = get_worker_spec, get_agent
    case.run_test_with_backend = with_our_rendezvous(module)
    ours.check([module], inapplicable(case.__name__))


if __name__ == "__main__":
    main()
