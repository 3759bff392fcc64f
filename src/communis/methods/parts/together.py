"""Local training of several clients at once, as one batch of models (torch.func).

A step of a small model starts some hundred operations, which takes an accelerator longer than to
compute them. `vmap` starts each of them once for all clients of a group. The result is that of
`Recipe.train`, up to rounding: same batches, same order.

It is for clients that agree in model, sensors and number of windows, and for what vmap computes as
a loop would: layers without a random generator and without statistics of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from communis.core import diagnostics
from communis.core.contract import Batch, Client, Model, Task, Trained
from communis.core.state import State
from communis.core.tasks import Classification
from communis.methods.parts.optim import make_optimizer
from communis.methods.parts.training import Recipe, mean_loss, note_training, task_loss
from communis.models.convpool import ConvPool, composed
from communis.models.encoders import CNN1d, Dense
from communis.models.fusion import Bias, Blocks
from communis.models.network import MLP, Network

_Loss = Callable[[Mapping[str, Tensor], Mapping[str, Tensor], Tensor], Tensor]
LAYERS = (
    Network, CNN1d, Dense, ConvPool, Blocks, Bias, MLP, nn.Linear, nn.ModuleDict, nn.ModuleList,
)  # fmt: skip


def group_of(recipe: Recipe, client: Client) -> Hashable | None:
    """Returns the key that clients share which can be trained together; None for a client that has
    to be trained alone."""
    suits = (
        recipe.plain_training
        and not (recipe.carry or recipe.clip or recipe.rates(client))
        and isinstance(client.task, Classification)
        and len(client.train)
        and not client.train.missing
        and all(type(module) in LAYERS for module in client.model.modules())
    )
    return (id(client.model), len(client.train)) if suits else None


def train_together(
    recipe: Recipe, clients: Sequence[Client], models: Sequence[State]
) -> list[tuple[State, Trained]]:
    """Trains clients of one group and returns the parameters and the result of each. models: the
    parameters that each of them starts from."""
    model = clients[0].model
    task = clients[0].task
    paths = list(model.by_path[0])
    stacked = {path: torch.stack([m[path] for m in models]).requires_grad_() for path in paths}
    optimizer = make_optimizer(
        recipe.optimizer, list(stacked.values()), recipe.lr, recipe.momentum, recipe.weight_decay
    )
    losses = vmap(_loss_of(model, task))
    sizes: list[int] = []  # windows of a client in each step
    values: list[Tensor] = []  # (clients,) of each step
    model.train()
    with composed():
        for inputs, target in _steps(recipe, clients):
            for p in stacked.values():
                p.grad = None
            value = losses(stacked, inputs, target)
            value.sum().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            sizes.append(target.shape[1])
            values.append(value.detach())
    trained = []
    for i, client in enumerate(clients):
        result = Trained(len(sizes), mean_loss([value[i] for value in values], sizes))
        client.log[diagnostics.LOSS.name] = result.loss
        if sizes and client.timed:
            note_training(client, task_loss(task), paths, sum(sizes))
        trained.append((State({path: p.detach()[i] for path, p in stacked.items()}), result))
    return trained


def _steps(recipe: Recipe, clients: Sequence[Client]) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
    """Yields the inputs by modality and the targets of each step; the first axis is the client. The
    windows of a pass are brought into its order once, so that batches are views of them."""
    orders = (recipe.orders(client, recipe.epochs) for client in clients)
    for of_pass in zip(*orders, strict=True):
        parts = [client.train.batch(order) for client, order in zip(clients, of_pass, strict=True)]
        inputs = {m: torch.stack([part.inputs[m] for part in parts]) for m in parts[0].inputs}
        target = torch.stack([part.target for part in parts])
        for start in range(0, target.shape[1], recipe.batch):
            rows = slice(start, start + recipe.batch)
            yield {m: x[:, rows] for m, x in inputs.items()}, target[:, rows]


def _loss_of(model: Model, task: Task) -> _Loss:
    """Returns the loss of a client as a function of its parameters, its windows, all of which have
    all sensors, and their targets."""

    def loss(parameters: Mapping[str, Tensor], inputs: Mapping[str, Tensor], y: Tensor) -> Tensor:
        here = torch.ones(len(y), dtype=torch.bool, device=y.device)
        batch = Batch(inputs, dict.fromkeys(inputs, here), y)
        named = {path.removesuffix(model.mark): p for path, p in parameters.items()}
        return task.loss(functional_call(model, named, (batch,)).prediction, y)

    return loss
