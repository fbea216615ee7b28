"""Runs a module that treats each row by itself over tiles of its input. Private: lockstep.nn shows TiledMLP and tile.

Idea. An MLP's activations are several times as large as its input. Tiles of tokens, one after another, need the memory of
one, forward and backward, for one more forward pass (arXiv 2506.13996).

Usual tiled MLPs run a whole backward pass for each tile. Autograd does not know their weights, so each weight's hooks run
once for each tile: DistributedDataParallel stops with "marked ready twice", or averages after the first tile. Here the
weights are inputs of one autograd node. The tiles compute on detached aliases of them, and the node returns the sums. Hooks
see the same as without tiles.

The module's forward is what is tiled, not its call. So the module's own hooks, such as those with which fully_shard gathers
its weights, run once around all tiles.
"""

import contextlib
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from lockstep import _core


def _rows_of(whole: torch.Tensor, x: torch.Tensor, like_x: bool) -> torch.Tensor:
    """Returns [rows, ...] of an output's gradient, which has x's leading shape or one dimension in its place."""
    return whole.reshape(x.shape[:-1].numel(), *whole.shape[x.dim() - 1 :]) if like_x else whole


class _Outputs:
    """The outputs of all rows, filled tile by tile."""

    def __init__(self, x: torch.Tensor, name: str) -> None:
        self.lead, self.rows, self.name = x.shape[:-1], x.shape[:-1].numel(), name
        self.single = True
        self.whole: list[torch.Tensor] = []
        self.like_x: list[bool] = []

    def add(self, result: Any, begin: int, end: int) -> None:
        single = isinstance(result, torch.Tensor)
        parts = (result,) if single else tuple(result)
        lead = (*(1,) * (len(self.lead) - 1), end - begin)
        if begin == 0:
            self.single, self.like_x = single, [tuple(part.shape[: len(lead)]) == lead for part in parts]
            self.whole = [
                part.new_empty((self.rows, *part.shape[len(lead) if like_x else 1 :]))
                for part, like_x in zip(parts, self.like_x)
            ]
        if len(parts) != len(self.whole):
            raise ValueError(
                f"{self.name}: forward returned {len(parts)} tensors for rows {begin} to {end}, but "
                f"{len(self.whole)} for the first tile"
            )
        for part, whole, like_x in zip(parts, self.whole, self.like_x):
            expected = (*(lead if like_x else lead[-1:]), *whole.shape[1:])
            if tuple(part.shape) != expected or part.dtype != whole.dtype:
                raise ValueError(
                    f"{self.name}: forward returned {part.dtype} {list(part.shape)} for {end - begin} rows; "
                    f"{whole.dtype} {list(expected)} is expected, one row for each row of the input"
                )
            whole[begin:end].copy_(part.reshape(end - begin, *whole.shape[1:]))

    def take(self) -> list[torch.Tensor]:
        return [
            whole.view(*self.lead, *whole.shape[1:]) if like_x else whole
            for whole, like_x in zip(self.whole, self.like_x)
        ]


class _Surroundings:
    """Autocast's settings and the states of random generators, to be had again in backward."""

    def __init__(self, x: torch.Tensor) -> None:
        self.devices = {"cpu", x.device.type}
        self.autocast = {
            kind: (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
            for kind in self.devices
            if torch.amp.is_autocast_available(kind)
        }
        self.device = x.device
        self.random = self._states()

    def _states(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        on_cpu = self.device.type in ("cpu", "meta")
        return (
            torch.get_rng_state(),
            None if on_cpu else torch.get_device_module(self.device.type).get_rng_state(self.device),
        )

    def _set(self, states: tuple[torch.Tensor, torch.Tensor | None]) -> None:
        torch.set_rng_state(states[0])
        if states[1] is not None:
            torch.get_device_module(self.device.type).set_rng_state(states[1], self.device)

    @contextlib.contextmanager
    def with_autocast(self) -> Iterator[None]:
        """Without its cache, which would hold casts of weights after the tiles."""
        with contextlib.ExitStack() as stack:
            for kind, (enabled, dtype) in self.autocast.items():
                stack.enter_context(torch.autocast(kind, dtype=dtype, enabled=enabled, cache_enabled=False))
            yield

    @contextlib.contextmanager
    def again(self) -> Iterator[None]:
        now = self._states()
        self._set(self.random)
        try:
            with self.with_autocast(), torch.enable_grad():
                yield
        finally:
            self._set(now)


@contextlib.contextmanager
def _in_place_of_parameters(module: torch.nn.Module, tensors: dict[str, torch.Tensor]) -> Iterator[None]:
    """Lets the module and its parts use other tensors, also where several share one parameter."""
    # torch.func.functional_call would leave them there where two names lead to one part.
    now = dict(module.named_parameters())
    others = {id(now[name]): tensor for name, tensor in tensors.items()}
    places = [
        (part._parameters, name, parameter)
        for part in module.modules()
        for name, parameter in part._parameters.items()
        if id(parameter) in others
    ]
    for parameters, name, parameter in places:
        parameters[name] = others[id(parameter)]
    try:
        yield
    finally:
        for parameters, name, parameter in places:
            parameters[name] = parameter


def _foreign(outputs: Sequence[torch.Tensor], leaves: set[int]) -> torch.Tensor | None:
    """Returns a trained tensor on the graph of `outputs` that is none of the leaves, given by their ids."""
    nodes = [output.grad_fn for output in outputs]
    seen = set(nodes)
    while nodes:
        node = nodes.pop()
        variable = getattr(node, "variable", None)
        if variable is not None and id(variable) not in leaves:
            return variable
        for following, _ in node.next_functions if node is not None else ():
            if following is not None and following not in seen:
                seen.add(following)
                nodes.append(following)
    return None


class _Tiles(torch.autograd.Function):
    """The node: its inputs are x and the module's parameters."""

    @staticmethod
    def forward(
        ctx: Any, tiled: "TiledForward", names: Sequence[str], x: torch.Tensor, *parameters: torch.Tensor
    ) -> Any:
        ctx.tiled, ctx.names, ctx.surroundings = tiled, names, _Surroundings(x)
        ctx.save_for_backward(x, *parameters)
        ctx.set_materialize_grads(False)
        outputs = tiled.run(x, ctx.surroundings)
        whole = outputs.take()
        ctx.like_x = outputs.like_x
        ctx.mark_non_differentiable(*(output for output in whole if not output.is_floating_point()))
        return outputs.single, *whole

    @staticmethod
    def backward(ctx: Any, _: Any, *gradients: torch.Tensor | None) -> Any:
        tiled: TiledForward = ctx.tiled
        if torch.is_grad_enabled():
            raise RuntimeError(
                f"{tiled.name}: tiles have no gradients of gradients, but backward has create_graph=True"
            )
        x, *parameters = ctx.saved_tensors
        _, _, needs_x, *needs = ctx.needs_input_grad
        aliases = [parameter.detach().requires_grad_(need) for parameter, need in zip(parameters, needs)]
        trained = [index for index, need in enumerate(needs) if need]
        dx = x.new_empty((x.shape[:-1].numel(), x.shape[-1])) if needs_x else None
        sums: dict[int, torch.Tensor] = {}
        owned: set[int] = set()
        with ctx.surroundings.again(), _in_place_of_parameters(tiled.module, dict(zip(ctx.names, aliases))):
            for begin, end, tile in tiled.tiles_of(x):
                tile = tile.detach().requires_grad_(needs_x)
                result = tiled.rows(tile)
                parts = (result,) if isinstance(result, torch.Tensor) else tuple(result)
                used = [
                    (part, _rows_of(gradient, x, like_x)[begin:end].reshape(part.shape))
                    for part, gradient, like_x in zip(parts, gradients, ctx.like_x)
                    if gradient is not None and part.requires_grad
                ]
                if begin == 0:
                    tiled.check_leaves([part for part, _ in used], [tile, *aliases])
                found: Sequence[torch.Tensor | None] = [None] * (needs_x + len(trained))
                if used:
                    found = torch.autograd.grad(
                        [part for part, _ in used],
                        [tile] * needs_x + [aliases[index] for index in trained],
                        [gradient for _, gradient in used],
                        allow_unused=True,
                    )
                if dx is not None:
                    dtile = found[0]
                    dx[begin:end] = 0 if dtile is None else dtile.reshape(end - begin, x.shape[-1])
                for index, share in zip(trained, found[needs_x:]):
                    if share is not None:
                        tiled.add(sums, owned, index, share)
        results = [
            sums[index].to(parameters[index].dtype) if index in sums else None for index in range(len(parameters))
        ]
        return None, None, None if dx is None else dx.view(x.shape), *results


class TiledForward:
    """The forward of a module that `tile` has changed."""

    def __init__(self, module: torch.nn.Module, tiles: int, accumulate_fp32: bool) -> None:
        self.module, self.tiles, self.accumulate_fp32 = module, tiles, accumulate_fp32
        self.own = module.__dict__.get("forward")  # of somebody else who replaced it

    @property
    def name(self) -> str:
        return f"TiledMLP of {type(self.module).__name__}"

    def rows(self, tile: torch.Tensor) -> Any:
        """Calls the forward that is tiled, without the module's hooks."""
        return type(self.module).forward(self.module, tile) if self.own is None else self.own(tile)

    def tiles_of(self, x: torch.Tensor) -> Iterator[tuple[int, int, torch.Tensor]]:
        """Yields begin, end and rows of each tile, with as many dimensions as x: [1, ..., rows, hidden]."""
        flat = x.reshape(-1, x.shape[-1])
        count = max(1, min(self.tiles, len(flat)))
        for i in range(count):
            begin, end = len(flat) * i // count, len(flat) * (i + 1) // count
            yield begin, end, flat[begin:end].view(*(1,) * (x.dim() - 2), end - begin, x.shape[-1])

    def run(self, x: torch.Tensor, surroundings: _Surroundings) -> _Outputs:
        outputs = _Outputs(x, self.name)
        watched = {"its input": x, **{f"the buffer {name}": buffer for name, buffer in self.module.named_buffers()}}
        versions = {name: tensor._version for name, tensor in watched.items() if not tensor.is_inference()}
        with torch.no_grad(), surroundings.with_autocast():
            for begin, end, tile in self.tiles_of(x):
                outputs.add(self.rows(tile), begin, end)
        for name, version in versions.items():
            if watched[name]._version != version:
                raise RuntimeError(
                    f"{self.name}: forward changes {name} in place. It runs for each tile and again in backward, so a "
                    "module that counts, as BatchNorm does in training, or that works in place on its input has no tiles"
                )
        return outputs

    def add(self, sums: dict[int, torch.Tensor], owned: set[int], index: int, share: torch.Tensor) -> None:
        """Adds a tile's share of a gradient. The first may lie in memory of others, so it is not added to in place."""
        if self.accumulate_fp32 and share.dtype in (torch.bfloat16, torch.float16):
            share = share.float()
        if index not in sums:
            sums[index] = share
        elif index in owned:
            sums[index].add_(share)
        else:
            sums[index] = sums[index] + share
            owned.add(index)

    def check_leaves(self, outputs: Sequence[torch.Tensor], leaves: Sequence[torch.Tensor]) -> None:
        foreign = _foreign(outputs, {id(leaf) for leaf in leaves})
        if foreign is not None:
            raise RuntimeError(
                f"{self.name}: forward uses a trained tensor of shape {list(foreign.shape)} that is not one of "
                "the module's parameters, so its gradient would be lost; register it in the module"
            )

    def check_input(self, x: torch.Tensor) -> None:
        if x.dim() < 2 or not x.is_floating_point():
            raise ValueError(
                f"{self.name}: the input must be a floating-point tensor [..., tokens, hidden], got {x.dtype} "
                f"{list(x.shape)}"
            )
        fsdp: Any = sys.modules.get("torch.distributed.fsdp")
        for name, part in self.module.named_modules() if fsdp is not None else ():
            if name and isinstance(part, fsdp.FSDPModule):
                raise RuntimeError(
                    f'{self.name}: fully_shard was called on its part "{name}", whose weights are gathered '
                    "for each tile and not there in backward; shard the whole module, or one around it"
                )

    @torch._disable_dynamo
    def __call__(self, x: torch.Tensor) -> Any:
        self.check_input(x)
        parameters = dict(self.module.named_parameters())
        if torch.is_grad_enabled() and any(t.requires_grad for t in (x, *parameters.values())):
            single, *whole = _Tiles.apply(self, tuple(parameters), x, *parameters.values())
        else:
            outputs = self.run(x, _Surroundings(x))
            single, whole = outputs.single, outputs.take()
        return whole[0] if single else tuple(whole)


def _tile(module: torch.nn.Module, tiles: int, accumulate_fp32: bool) -> None:
    if _core.whole(tiles, "tiles") < 1:
        raise ValueError(f"tiles must be at least 1, not {tiles}")
    if isinstance(module.__dict__.get("forward"), TiledForward):
        raise ValueError(f"{type(module).__name__} runs in tiles already")
    module.forward = TiledForward(module, tiles, accumulate_fp32)


class TiledMLP(torch.nn.Module):
    """Runs a module on one tile of tokens after another, forward and backward, so that its activations take the memory of
    one tile. Each weight's gradient arrives once.

        layer.mlp = lockstep.nn.TiledMLP(layer.mlp, tiles=4)     # its parameters are now mlp.module.*; `tile` keeps names
        model = DistributedDataParallel(model)                   # or fully_shard(layer); fully_shard(model)

    module: takes one floating-point tensor [..., tokens, hidden] and computes each row from that row alone. It sees tiles
        [1, ..., rows, hidden] and returns a tensor, or several, with a row for each row. Backward calls it again, so it must
        compute the same. Dropout drops the same numbers. From now on it runs in tiles wherever it is called.
    tiles: 1 to the number of rows; a shorter input has a tile for each row. Ranks may have different numbers of tokens.
    accumulate_fp32: adds up gradients of 16-bit weights in float32.

    Safe under DistributedDataParallel and fully_shard, of this module, of `module` and of modules around it, but not of
    parts of it. torch.compile leaves it as it is. Gradients of gradients are an error.

    Raises ValueError for other inputs and outputs, RuntimeError if `module` uses trained tensors that are not its own.
    """

    def __init__(self, module: torch.nn.Module, tiles: int = 4, *, accumulate_fp32: bool = False) -> None:
        super().__init__()
        _tile(module, tiles, accumulate_fp32)
        self.module = module

    def forward(self, x: torch.Tensor) -> Any:
        """Returns the module's outputs for all of x."""
        return self.module(x)

    def extra_repr(self) -> str:
        return f"tiles={self.module.forward.tiles}"


def tile(model: torch.nn.Module, names: Sequence[str], tiles: int = 4, *, accumulate_fp32: bool = False) -> list[str]:
    """Lets modules of a model run in tiles, as TiledMLP does, under the names that they have. Returns the names found.

        lockstep.nn.tile(model, ["model.layers.*.mlp"], tiles=8)     # "*" is any one part of a name

    Raises ValueError if no module has one of the names.
    """
    found: list[tuple[str, torch.nn.Module]] = []
    for pattern in names:
        expression = re.compile("[^.]*".join(map(re.escape, pattern.split("*"))))
        matches = [(name, module) for name, module in model.named_modules() if name and expression.fullmatch(name)]
        if not matches:
            raise ValueError(f'tile: no module of {type(model).__name__} is named "{pattern}"')
        found += matches
    for name, module in found:
        if isinstance(module.__dict__.get("forward"), TiledForward) or [each for each, _ in found].count(name) > 1:
            raise ValueError(f"tile: {name} runs in tiles already, or two of the names are of it")
    for _, module in found:
        _tile(module, tiles, accumulate_fp32)
    return [name for name, _ in found]
