"""Files that hold more than tensors: enn reads what can be read, names what cannot, and runs nothing."""

import argparse
import collections
import enum
import json
import os
import pickle
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

from _ckpt import BIN, same

DAMAGED = 5


def enn(*args, code=0):
    done = subprocess.run([BIN / "enn", "ckpt", *map(str, args)], capture_output=True, text=True, timeout=120)
    assert done.returncode == code, f"{args}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def told(*args, code=0):
    return json.loads(enn(*args, "--json", code=code))


class Mode(enum.Enum):
    FAST = 1


class Config(dict):
    """As omegaconf's containers: a parent that holds its child."""

    def __init__(self, **values):
        super().__init__(values)
        self.parent = self
        self.content = {"lr": 0.1, "sizes": [1, 2]}


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 2)
        self.register_buffer("seen", torch.arange(4))


class Evil:
    def __init__(self, ran):
        self.ran = ran

    def __reduce__(self):
        return os.system, (f"touch {self.ran}",)


def lightning(net):
    optimizer = torch.optim.Adam(net.parameters())
    net.linear(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return {
        "epoch": 3,
        "pytorch-lightning_version": "2.0",
        "state_dict": net.state_dict(),
        "optimizer_states": [optimizer.state_dict()],
        "hyper_parameters": argparse.Namespace(lr=0.1, layers=[1, 2], where=Path("/tmp"), mode=Mode.FAST),
        "config": Config(a=1),
        "best": np.float64(0.5),
        "callbacks": {"stop": collections.deque([1, 2], maxlen=3)},
    }


def check_read(folder, net, path, form):
    """All tensors come out, whatever else there is."""
    found = told("verify", path)
    assert found["outcome"] == "foreign" and found["ok"] and found["problems"] == found["dangerous"] == [], found
    assert found["form"] == form, found["form"]
    for word in ["argparse.Namespace", "Config", "Mode", "PosixPath", "deque"]:
        assert any(word in line for line in found["foreign"]), (word, found["foreign"])
    assert any("hyper_parameters" in line and "Namespace" in line for line in found["foreign"]), found["foreign"]
    enn("convert", path, folder / "out.safetensors", "--replace")
    out = load_file(folder / "out.safetensors")
    for name, tensor in net.state_dict().items():
        assert same(out[f"state_dict.{name}"], tensor), name
    assert "optimizer_states.0.state.0.exp_avg" in out, sorted(out)
    shown = told("show", path)
    assert shown["values"]["epoch"] == "3" and shown["values"]["hyper_parameters.lr"] == "0.1", shown["values"]
    assert shown["values"]["config.content.lr"] == "0.1" and shown["values"]["best"] == "0.5", shown["values"]


def check_names(folder):
    """Names do not say what a file is."""
    net = Net()
    state = lightning(net)
    torch.save(state, folder / "a.ckpt")
    torch.save(state, folder / "a.tar", _use_new_zipfile_serialization=False)
    torch.save(state, folder / "b.pth.tar")
    torch.save(state, folder / "two.pt", pickle_protocol=4)
    torch.save(state, folder / "old4.pt", pickle_protocol=4, _use_new_zipfile_serialization=False)
    with open(folder / "a.pkl", "wb") as file:
        pickle.dump(state, file)
    for name in ["a.ckpt", "b.pth.tar", "two.pt"]:
        check_read(folder, net, folder / name, "torch.save")
    for name in ["a.tar", "old4.pt"]:
        check_read(folder, net, folder / name, "torch.save of before PyTorch 1.6")
    check_read(folder, net, folder / "a.pkl", "pickle")
    found = told("diff", folder / "a.ckpt", folder / "a.tar")
    assert found["same"] if "same" in found else True, found
    print("a checkpoint of Lightning as zip, as of before PyTorch 1.6, and as a pickle")


def check_modules(folder):
    """A whole module, an optimizer's state, a tensor by itself, views and shared storages."""
    net = Net()
    for name, old in [("net.pt", False), ("net-old.pt", True)]:
        torch.save(net, folder / name, _use_new_zipfile_serialization=not old)
        found = told("verify", folder / name)
        assert found["outcome"] == "foreign" and found["tensors"] == 3, found
        enn("convert", folder / name, folder / "net.safetensors", "--replace")
        out = load_file(folder / "net.safetensors")
        assert any(name.endswith("linear._parameters.weight") and same(tensor, net.linear.weight.data) for name, tensor in out.items()), sorted(out)
    base = torch.arange(24.0).reshape(4, 6)
    state = {"all": base, "turned": base.t(), "part": base[1:3, 2:], "again": base, "number": torch.tensor(3), "half": base.half()}
    for old in [False, True]:
        torch.save(state, folder / "views.pt", _use_new_zipfile_serialization=not old)
        enn("convert", folder / "views.pt", folder / "views.safetensors", "--replace")
        out = load_file(folder / "views.safetensors")
        assert all(same(out[name], tensor.contiguous()) for name, tensor in state.items()), old
        torch.save(base, folder / "alone.pt", _use_new_zipfile_serialization=not old)
        assert told("show", folder / "alone.pt")["tensors"] == [{"name": "tensor", "dtype": "float32", "shape": [4, 6]}]
    print("modules, views, a tensor by itself, also as of before PyTorch 1.6")


def check_pickles(folder):
    """Arrays and tensors inside a bare pickle."""
    state = {
        "w": np.arange(6, dtype=np.float32).reshape(2, 3),
        "f": np.asfortranarray(np.arange(6, dtype=np.int64).reshape(2, 3)),
        "t": torch.arange(5, dtype=torch.bfloat16),
        "lr": np.float32(0.5),
        "deep": [{"b": np.array([True, False])}],
    }
    for protocol in [3, 4, 5]:
        with open(folder / "arrays.pkl", "wb") as file:
            pickle.dump(state, file, protocol=protocol)
        found = told("verify", folder / "arrays.pkl")
        assert found["outcome"] == "whole" and found["tensors"] == 4, (protocol, found)
        enn("convert", folder / "arrays.pkl", folder / "arrays.safetensors", "--replace")
        out = load_file(folder / "arrays.safetensors")
        assert same(out["w"], torch.from_numpy(state["w"])) and same(out["f"], torch.from_numpy(state["f"].copy())), protocol
        assert same(out["t"], state["t"]) and same(out["deep.0.b"], torch.tensor([True, False])), protocol
    for protocol in [0, 1, 2]:
        with open(folder / "plain.pkl", "wb") as file:
            pickle.dump({"a": {"b": [1, 2.5, "x", None, True, 2**70]}, "w": state["w"]}, file, protocol=protocol)
        found = told("verify", folder / "plain.pkl")
        assert found["problems"] == [] and any("w:" in line for line in found["foreign"]), (protocol, found)
    print("arrays of numpy and tensors in pickles of every protocol")


def check_danger(folder):
    """What runs code is named, and does not run; the tensors come out."""
    ran = folder / "ran"
    for name, old in [("evil.pt", False), ("evil.ckpt", True), ("evil.pkl", None)]:
        state = {"w": torch.ones(3), "x": Evil(ran)}
        if old is None:
            with open(folder / name, "wb") as file:
                pickle.dump(state, file)
        else:
            torch.save(state, folder / name, _use_new_zipfile_serialization=not old)
        found = told("verify", folder / name, code=DAMAGED)
        assert found["outcome"] == "dangerous" and not found["ok"], found
        assert any(".system at byte" in line for line in found["dangerous"]), found
        said = enn("verify", folder / name, code=DAMAGED)
        assert said.startswith("dangerous") and "is dangerous" in said, said
        assert "dangerous" in enn("show", folder / name)
        enn("convert", folder / name, folder / "evil.safetensors", "--replace")
        assert same(load_file(folder / "evil.safetensors")["w"], torch.ones(3))
    inner = {"w": torch.ones(2), "s": torch.ones(2)}
    data = bytearray(pickle.dumps(inner))
    assert not ran.exists(), "it ran"
    hidden = pickle.dumps({"x": Loads(Evil(ran))})
    (folder / "hidden.pkl").write_bytes(hidden)
    found = told("verify", folder / "hidden.pkl", code=DAMAGED)
    assert found["outcome"] == "dangerous", found
    assert not ran.exists() and data, "it ran"
    print("what runs code is named and never run")


class Loads:
    """A file inside a pickle, which Python would load."""

    def __init__(self, evil):
        self.evil = evil

    def __reduce__(self):
        return torch.storage._load_from_bytes, (pickle.dumps(self.evil),)


def check_damage(folder):
    """Damaged is damaged, and a file of another kind is foreign."""
    torch.save({"w": torch.arange(1000.0), "v": torch.ones(4)}, folder / "old.pt", _use_new_zipfile_serialization=False)
    whole = (folder / "old.pt").read_bytes()
    for cut in [0, 1, 10, 60, 200, len(whole) // 2, len(whole) - 1]:
        (folder / "cut.pt").write_bytes(whole[:cut])
        found = told("verify", folder / "cut.pt", code=DAMAGED)
        assert found["outcome"] in ("damaged", "foreign") and not found["ok"], (cut, found)
        assert cut < 60 or found["outcome"] == "damaged", (cut, found)
    torch.save({"w": torch.arange(1000.0), "x": argparse.Namespace(a=1)}, folder / "new.pt")
    whole = bytearray((folder / "new.pt").read_bytes())
    at = whole.find(np.arange(1000, dtype=np.float32).tobytes()[40:80])
    whole[at] ^= 1
    (folder / "bit.pt").write_bytes(whole)
    found = told("verify", folder / "bit.pt", code=DAMAGED)
    assert found["outcome"] == "damaged" and any("CRC" in line for line in found["problems"]), found
    assert any("Namespace" in line for line in found["foreign"]), found
    for name, content in [("text.ckpt", b"no checkpoint"), ("a.h5", b"\x89HDF\r\n\x1a\n" + bytes(600)), ("cut.ckpt", b"PK")]:
        (folder / name).write_bytes(content)
        found = told("verify", folder / name, code=DAMAGED)
        assert found["outcome"] == "foreign" and not found["ok"], found
    (folder / "zeros.pt").write_bytes(bytes(4096))
    assert told("verify", folder / "zeros.pt", code=DAMAGED)["outcome"] == "damaged"
    print("damage in files of every form, files of other kinds")


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.chdir(folder)
        check_names(folder)
        check_modules(folder)
        check_pickles(folder)
        check_danger(folder)
        check_damage(folder)


if __name__ == "__main__":
    main()
