"""communis on the reference workloads, through its public API: communis_sim.py W1|W2|W3 [rounds].

Prints the same JSON row as the peers' scripts. The workloads are defined in workload.py beside
those scripts; $PEERS says where that is (default: ../shared/peers beside the repository). The same
windows are trained in the same batch order from the same cohorts as the peers do; `--check`
compares the result with a plain PyTorch loop.
"""

import time

START = time.time()
import os
import sys
from pathlib import Path

PEERS = os.environ.get("PEERS", str(Path(__file__).resolve().parents[3] / "shared" / "peers"))
if not Path(PEERS, "workload.py").exists():
    raise SystemExit(f"no workload.py in {PEERS}: set $PEERS to the folder of the peers' scripts")
sys.path.insert(0, PEERS)

import numpy as np
import torch
import workload
from workload import CLASSES, MODALITIES, WORKLOADS, TreeMemory, load_data, report

from communis import FedAvg, Fleet, Plan, Run, State, Streams, Windows
from communis.core.tasks import Classification


class PeerStreams(Streams):
    """The peers' own cohorts and batch orders."""

    def generator(self, name, *ids):
        if name == "participation":
            return np.random.default_rng([7, ids[0] - 1])
        if name == "batches":
            return np.random.default_rng([11, ids[0] - 1, ids[1]])
        return super().generator(name, *ids)


def make_fleet(w):
    load_data(w)
    x = np.load(f"{workload.FOLDER}/{w}_x.npy", mmap_mode="r")
    y = np.load(f"{workload.FOLDER}/{w}_y.npy")
    clients, windows = y.shape
    x = x.reshape(clients * windows, *x.shape[2:])
    owner = np.repeat(np.arange(clients), windows)
    inputs = {m: x[:, a:b] for m, (a, b) in MODALITIES.items()}
    split = np.zeros(len(owner), np.int8)
    data = Windows(inputs, y.reshape(-1), owner, split, Classification(CLASSES))
    suites = [data.modalities] * clients
    return Fleet(data, suites, client_of=owner, streams=PeerStreams(), normalise="none")


def make_method(w):
    if WORKLOADS[w]["opt"] == "sgd":
        return FedAvg(lr=0.05, momentum=0.9, batch=WORKLOADS[w]["bs"])
    return FedAvg(lr=1e-3, optimizer="adam", batch=WORKLOADS[w]["bs"])


def make_run(w, rounds, workers=2):
    plan = Plan(
        rounds=rounds, cohort=WORKLOADS[w]["m"], eval_every=0, eval_clients=1, workers=workers
    )
    return Run(make_fleet(w), make_method(w), plan)


def translated(state):
    """The peers' parameters under the paths and in the layout of communis."""
    names = {
        "f1.bias": "fusion.shared.bias",
        "f2.weight": "head.out.weight",
        "f2.bias": "head.out.bias",
    }
    found = {names[k]: p for k, p in state.items() if k in names}
    for m, block in zip(MODALITIES, torch.split(state["f1.weight"], 64, 1), strict=True):
        found[f"fusion.blocks.{m}.weight"] = block
    for i, m in enumerate(MODALITIES):
        for theirs, ours in (("c1", "conv1"), ("c2", "conv2")):
            weight = state[f"encoders.{i}.{theirs}.weight"]  # (out, in, kernel)
            found[f"encoders.{m}.{ours}.weight"] = weight.permute(2, 1, 0).contiguous()
            found[f"encoders.{m}.{ours}.bias"] = state[f"encoders.{i}.{theirs}.bias"]
    return State(found)


def plain_round(w, net, r):
    """One round of the plain loop: the mean of the clients' models."""
    x, y = load_data(w)
    before = {k: v.clone() for k, v in net.state_dict().items()}
    total, ids = None, workload.cohort(w, r)
    for i in ids:
        net.load_state_dict(before)
        order = workload.order(r, i, y.shape[1])
        workload.local_train(net, w, torch.from_numpy(x[i]), torch.from_numpy(y[i]), order)
        new = {k: v.clone() for k, v in net.state_dict().items()}
        total = new if total is None else {k: total[k] + new[k] for k in new}
    return {k: v / len(ids) for k, v in total.items()}


def check(w):
    """Prints the largest difference of a parameter to the plain loop's after one round, relative
    to the largest parameter at its path."""
    net = workload.initial_model()
    run = make_run(w, 1)
    run.servers = {a: type(s)(w=translated(net.state_dict())) for a, s in run.servers.items()}
    with run:
        list(run)
    torch.set_num_threads(1)
    expected = translated(plain_round(w, net, 0))
    gaps = {k: (run.server.w[k] - v).abs().max() / v.abs().max() for k, v in expected.items()}
    print(f"{w}: largest relative difference {max(map(float, gaps.values())):.1e}")


def main():
    w = sys.argv[1]
    if "--check" in sys.argv:
        return check(w)
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else WORKLOADS[w]["rounds"]
    load_data(w)
    memory = TreeMemory()
    memory.start()
    with make_run(w, rounds + 1) as run:
        startup = time.time() - START
        seconds = [record.seconds for record in run]
        report("communis", w, seconds[1:], startup, memory.sample(), first=round(seconds[0], 2))


if __name__ == "__main__":
    main()
