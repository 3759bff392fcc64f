"""The convolution in C: every instruction set that this processor has, and torch, against double
precision; which one is chosen; and that nothing breaks where there is none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from communis import CommunisError
from communis.core.streams import Streams
from communis.models.convpool import ConvPool
from communis.models.flops import forward_flops
from communis.models.kernels import build, library
from communis.models.kernels.library import Kernel
from communis.models.network import initialise
from communis.models.zoo import Architecture
from tests.golden.test_golden import FILE as GOLDEN
from tests.golden.test_golden import RELATIVE, measure
from tests.pairwise import pairwise
from tests.unit.small import random, same_bits

# Of the largest value. Sums of up to 140 products of numbers around one, in single precision, are
# off by about 1e-6 of it.
ROUNDING = 1e-5
CAPABILITY = torch.backends.cpu.get_cpu_capability()
RUNNABLE = {"AVX512": ("AVX512", "AVX2"), "AVX2": ("AVX2",)}.get(CAPABILITY, ())


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The libraries, compiled anew; skips where they cannot be."""
    folder = tmp_path_factory.mktemp("kernels")
    build.build(folder)
    paths = {target: build.library(target, folder) for target in build.TARGETS}
    found = {target: path for target, path in paths.items() if path.exists()}
    if not found:
        pytest.skip("no C compiler, or another system than Linux on x86-64")
    return found


@pytest.fixture(params=["AVX512", "AVX2", "torch"])
def way(
    request: pytest.FixtureRequest, built: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """What convolutions are computed by during the test."""
    name: str = request.param
    kernel = None
    if name != library.TORCH:
        if name not in RUNNABLE:
            pytest.skip(f"this processor has no {name}")
        kernel = Kernel(name, str(built[name]))
    monkeypatch.setattr(library, "chosen", lambda: kernel)
    return name


def conv_pool(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    layer = ConvPool(weight.shape[1], weight.shape[2], weight.shape[0])
    del layer.weight, layer.bias  # so that the leaves themselves get the gradients
    layer.weight, layer.bias = weight, bias
    out: Tensor = layer(x)
    return out


def reference(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    y = F.conv1d(x.transpose(1, 2), weight.permute(2, 1, 0), bias, padding=weight.shape[0] // 2)
    return F.relu(F.max_pool1d(y, 2)).transpose(1, 2)


def with_gradients(function, leaves: list[Tensor], weighing: Tensor) -> list[Tensor]:
    leaves = [t.detach().clone().requires_grad_() for t in leaves]
    out = function(*leaves)
    (out * weighing).sum().backward()
    return [out.detach(), *(t.grad for t in leaves)]


def close(found: Tensor, expected: Tensor) -> None:
    error = (found.double() - expected.double()).abs().max()
    assert error <= ROUNDING * expected.abs().max()


@pairwise(
    {
        "kernel": [1, 3, 5, 7],
        "channels": [1, 3, 15, 16, 20],
        "width": [1, 7, 32, 70],
        "size, steps": [(1, 8), (2, 9), (4, 13), (3, 2), (2, 4), (1, 150)],
    }
)
def test_agrees_with_double_precision(
    way: str, kernel: int, channels: int, width: int, size: int, steps: int
) -> None:
    leaves = [
        random(size, steps, channels, seed=1),
        random(kernel, channels, width, seed=2),
        random(width, seed=3),
    ]
    weighing = random(size, steps // 2, width, seed=4)
    found = with_gradients(conv_pool, leaves, weighing)
    expected = with_gradients(reference, [t.double() for t in leaves], weighing.double())
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == torch.float32
        close(ours, theirs)


@pytest.mark.parametrize("channels", [3, 16])
def test_takes_any_layout(way: str, channels: int) -> None:
    """Inputs with time as the last axis, cut from a larger tensor; gradients that are expanded,
    cut, or in another order."""
    weight, bias = random(5, channels, 32, seed=1), random(32, seed=2)
    whole = random(3, channels + 2, 20)
    x = whole[:, 1:-1, ::2].transpose(1, 2)
    weighing = random(3, 32, 5, seed=4).transpose(1, 2)
    plain = [x.contiguous(), weight, bias]
    expected = with_gradients(conv_pool, plain, weighing.contiguous())
    found = [x.detach().requires_grad_(), weight.clone().requires_grad_(), bias.requires_grad_()]
    out = conv_pool(*found)
    out.backward(weighing)
    for ours, theirs in zip([out.detach(), *(t.grad for t in found)], expected, strict=True):
        assert same_bits(ours, theirs)
    for reduce in (lambda y: y.sum(1).square().sum(), lambda y: y[:, ::2, 1:].square().sum()):
        results = []
        for function, dtype in ((conv_pool, torch.float32), (reference, torch.float64)):
            leaf = plain[0].detach().to(dtype).requires_grad_()
            reduce(function(leaf, weight.to(dtype), bias.detach().to(dtype))).backward()
            results.append(leaf.grad)
        close(*results)


@pytest.mark.parametrize("channels", [3, 16])
def test_a_window_has_the_same_bits_in_any_batch(way: str, channels: int) -> None:
    if way == library.TORCH:
        pytest.skip("the batch is one product in torch: equal up to rounding")
    x, weight, bias = random(5, 24, channels), random(5, channels, 40, seed=1), random(40, seed=2)
    weighing = random(5, 12, 40, seed=4)
    together = with_gradients(conv_pool, [x, weight, bias], weighing)
    for i in range(5):
        alone = with_gradients(conv_pool, [x[i : i + 1], weight, bias], weighing[i : i + 1])
        assert same_bits(alone[0][0], together[0][i])
        assert same_bits(alone[1][0], together[1][i])


def test_the_number_of_threads_changes_no_bit(way: str) -> None:
    if way == library.TORCH:
        pytest.skip("torch's products may be divided otherwise")
    leaves, weighing = [random(4, 16, 20), random(5, 20, 33), random(33)], random(4, 8, 33)
    one = with_gradients(conv_pool, leaves, weighing)
    torch.set_num_threads(2)
    try:
        two = with_gradients(conv_pool, leaves, weighing)
    finally:
        torch.set_num_threads(1)
    assert all(same_bits(a, b) for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("at", [4, 5])
def test_what_is_not_finite_stays_visible(way: str, bad: float, at: int) -> None:
    """In the output wherever the reference has it, and in the gradient of the weights."""
    x, weight, bias = random(2, 12, 3), random(3, 3, 40, seed=1), random(40, seed=2)
    x[1, at, 1] = bad
    found = with_gradients(conv_pool, [x, weight, bias], torch.ones(()))
    expected = with_gradients(reference, [x, weight, bias], torch.ones(()))
    assert torch.equal(torch.isfinite(found[0]), torch.isfinite(expected[0]))
    assert same_bits(found[0].isnan().int(), expected[0].isnan().int())
    assert not torch.isfinite(found[2]).all()


def test_on_a_tie_the_gradient_is_handed_on_once(way: str) -> None:
    x = torch.ones(1, 6, 17).requires_grad_()
    conv_pool(x, torch.ones(1, 17, 1), torch.zeros(1)).sum().backward()
    assert x.grad is not None
    pairs = x.grad.view(3, 2, 17).sum(1)
    assert torch.equal(pairs, torch.ones_like(pairs))


def test_only_the_gradients_that_are_asked_for_are_made(way: str) -> None:
    tensors, weighing = (
        [random(2, 8, 3), random(5, 3, 4, seed=1), random(4, seed=2)],
        random(2, 4, 4),
    )
    everything = with_gradients(conv_pool, tensors, weighing)
    for i in range(3):
        leaves = [t.clone().requires_grad_(i == j) for j, t in enumerate(tensors)]
        (conv_pool(*leaves) * weighing).sum().backward()
        found = leaves[i].grad
        assert found is not None
        assert same_bits(found, everything[1 + i])
        assert all(leaves[j].grad is None for j in range(3) if j != i)


@pytest.mark.parametrize("channels", [3, 16])
def test_an_empty_batch_gives_an_empty_batch(way: str, channels: int) -> None:
    x = torch.zeros(0, 8, channels, requires_grad=True)
    weight = random(5, channels, 4).requires_grad_()
    out = conv_pool(x, weight, random(4))
    assert out.shape == (0, 4, 4)
    out.sum().backward()
    assert x.grad is not None
    assert x.grad.shape == x.shape
    assert weight.grad is not None
    assert not weight.grad.any()


@pytest.mark.parametrize("shape", [(2, 8, 4), (2, 8, 2), (8, 3), (1, 2, 8, 3)])
def test_windows_of_another_shape_are_refused(way: str, shape: tuple[int, ...]) -> None:
    """C would read what lies behind the weights."""
    with pytest.raises(ValueError, match=r"expected windows \(B, T, 3\), got the shape"):
        conv_pool(torch.zeros(shape), random(5, 3, 4), random(4))


def test_a_lazy_negation_is_done(way: str) -> None:
    x = torch.view_as_complex(random(2, 8, 3, 2)).conj().imag
    assert x.is_neg()
    leaves = [random(5, 3, 4, seed=1), random(4, seed=2)]
    found = with_gradients(lambda *own: conv_pool(x, *own), leaves, torch.ones(()))
    expected = with_gradients(lambda *own: conv_pool(x.resolve_neg(), *own), leaves, torch.ones(()))
    for ours, theirs in zip(found, expected, strict=True):
        close(ours, theirs)


def test_windows_of_a_single_step_give_nothing(way: str) -> None:
    weight, bias = random(5, 3, 4), random(4)
    assert conv_pool(torch.zeros(2, 1, 3), weight, bias).shape == (2, 0, 4)


def test_cannot_be_differentiated_twice_and_says_so(way: str) -> None:
    x = random(1, 6, 2).requires_grad_()
    out = conv_pool(x, random(3, 2, 2, seed=1), random(2, seed=2))
    (first,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="twice"):
        first.square().sum().backward()


def test_flops_do_not_depend_on_who_computes(way: str) -> None:
    model = Architecture(width=8).build({"a": (3, 16)}, 4)
    initialise(model, Streams(0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library, "chosen", lambda: None)
        of_torch = forward_flops(model, {"a": (3, 16)})
    assert forward_flops(model, {"a": (3, 16)}) == of_torch
    assert of_torch > 0


@pytest.mark.parametrize("method", ["fedavg", "fedproto"])
def test_a_run_has_the_numbers_on_file(way: str, method: str) -> None:
    golden = json.loads(GOLDEN.read_text("utf-8"))[method]
    found = measure(method)
    for key in ("loss", "nll", "server_norm"):
        assert found[key] == pytest.approx(golden[key], rel=RELATIVE, abs=0.0)


def test_without_a_compiler_nothing_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CC", str(tmp_path / "no-compiler"))
    assert build.build(tmp_path) == []
    monkeypatch.setenv("CC", "false")  # one that fails
    assert build.build(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_a_library_of_another_source_is_not_loaded(
    tmp_path: Path, built: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    target = next(iter(built))
    other = tmp_path / "convpool.c"
    other.write_text(build.SOURCE.read_text("utf-8") + "\n", "utf-8")
    monkeypatch.setattr(build, "SOURCE", other)
    assert build.library(target).name != built[target].name
    assert library.load(target) is None


def test_a_damaged_library_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "library", lambda target: tmp_path / f"{target}.so")
    (tmp_path / "AVX2.so").write_bytes(b"not a library")
    assert library.load("AVX2") is None
    assert library.load("AVX512") is None  # missing
    assert library.load("NEON") is None  # no such target


def run_python(code: str, **environment: str) -> str:
    """The last line that a fresh process prints, or of its error."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    return (done.stdout or done.stderr).strip().splitlines()[-1]


DESCRIBE = "from communis.models.kernels import library; print(library.description())"


def test_the_environment_can_choose_torch() -> None:
    assert run_python(DESCRIBE, COMMUNIS_KERNEL="torch") == "torch"


def test_an_unknown_choice_is_refused() -> None:
    last = run_python(DESCRIBE, COMMUNIS_KERNEL="fast")
    assert CommunisError.__name__ in last
    assert "COMMUNIS_KERNEL=fast: there is no such kernel here, expected torch" in last


def test_a_processor_without_vectors_gets_torch() -> None:
    assert run_python(DESCRIBE, ATEN_CPU_CAPABILITY="default", COMMUNIS_KERNEL="") == "torch"
