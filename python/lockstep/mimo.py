"""Plans models whose modules have ranks and parallel layouts of their own: a vision encoder beside a language model.

The failures this prevents. Each module's sampler divides the data by its own data-parallel size, and the modules train
on different samples, without an error. A tensor of images is cut by rows, though only some samples have images, and a
replica gets the image of another's sample. Encoder gradients are too large or too small by the ratio of two
data-parallel sizes. One rank sends while another reduces, and both wait.

    topology = lockstep.mimo.topology(4, [{"name": "vision", "dp": 3}, {"name": "language", "first_rank": 3}])
    topology.validate(micro_batch_size=6, global_batch_size=24)
    dp_rank, dp_size, needs_data = topology.sampling_info(rank)   # for the sampler: the same on every rank that loads
    images = lockstep.mimo.ownership(items=[0, 0, 2, 1, 1, 0], tokens=[4, 6, 9, 4])
    mine = images.rows(*topology.dp_info(rank))                   # rows of the images' tokens that this rank keeps
    topology.simulate(micro_batches=4, micro_batch_size=6)        # proves that all sends and receives match

All of it is plain data: ranks that make the same topology agree without communication, and no process group is needed.
The source is the C++ library mimo (docs/mimo.md); Megatron-Bridge's pull requests 2956, 4066, 4608, 5525 and 5555.

Errors are ValueError with all rules that are broken and the nearest values that work; LookupError for a module or an
edge that is not there.
"""

import ctypes
import dataclasses
import json
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from lockstep import _core

_make = _core.function("lockstep_mimo_topology", ctypes.c_char_p, ctypes.POINTER(ctypes.c_void_p))
_delete = _core.plain("lockstep_mimo_delete", None, ctypes.c_void_p)
_run = _core.function(
    "lockstep_mimo_call", ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.POINTER(ctypes.c_void_p)
)


def _call(topology: "ctypes.c_void_p | None", call: str, /, **arguments: Any) -> Any:
    result = ctypes.c_void_p()
    _run(topology, call.encode(), _core.encode(arguments), ctypes.byref(result))
    assert result.value is not None
    return json.loads(_core.take_text(result.value))


def _wholes(**values: Any) -> dict[str, int]:
    return {name: _core.whole(value, name) for name, value in values.items()}


def _optional(name: str | None) -> str | None:
    return None if name is None else _core.text(name, "name")


class DpInfo(NamedTuple):
    """A replica: its index and the number of replicas."""

    dp_rank: int
    dp_size: int


class SamplingInfo(NamedTuple):
    """The values for a rank's sampler. Without needs_data the rank needs no loader."""

    dp_rank: int
    dp_size: int
    needs_data: bool


class Coordinates(NamedTuple):
    """A rank's position in a module's grid."""

    dp: int
    tp: int
    cp: int
    pp: int


@dataclasses.dataclass(frozen=True)
class Module:
    """A module's grid: its sizes, its ranks by place, and the axes from the one that varies fastest."""

    name: str
    dp: int
    tp: int
    cp: int
    pp: int
    ranks: list[int]
    order: str


@dataclasses.dataclass(frozen=True)
class Ownership:
    """Says which sample owns each row of a tensor. Sample s has the items [item_offsets[s], item_offsets[s + 1]), and
    item i the tokens [token_offsets[i], token_offsets[i + 1]). Make it with `ownership`.

    `rows_of` is what a tensor's rows are: "tokens", "items" or "samples".
    """

    item_offsets: list[int]
    token_offsets: list[int]

    @property
    def num_samples(self) -> int:
        return len(self.item_offsets) - 1

    def _offsets(self) -> dict[str, list[int]]:
        return {
            "item_offsets": _core.integers(self.item_offsets, "item_offsets").tolist(),
            "token_offsets": _core.integers(self.token_offsets, "token_offsets").tolist(),
        }

    def rows(self, dp_rank: int, dp_size: int, rows_of: str = "tokens", uneven: bool = False) -> range:
        """Returns the rows of a replica. Those of all replicas concatenate to all rows.

        Raises ValueError if the samples cannot be divided by dp_size, unless `uneven`.
        """
        return range(
            *_call(
                None,
                "rows",
                **self._offsets(),
                rows_of=_core.text(rows_of, "rows_of"),
                uneven=bool(uneven),
                **_wholes(dp_rank=dp_rank, dp_size=dp_size),
            )
        )

    def slice(self, dp_rank: int, dp_size: int, uneven: bool = False) -> "Ownership":
        """Returns the table of a replica's samples alone, with offsets from 0."""
        return Ownership(
            **_call(None, "slice", **self._offsets(), uneven=bool(uneven), **_wholes(dp_rank=dp_rank, dp_size=dp_size))
        )

    def rows_per_sample(self, rows_of: str = "tokens") -> list[int]:
        """Returns the number of rows of each sample."""
        found: list[int] = _call(None, "rows_per_sample", **self._offsets(), rows_of=_core.text(rows_of, "rows_of"))
        return found

    def reordered(self, order: Iterable[int]) -> "Ownership":
        """Returns the table of the samples in an order of `balanced_order`."""
        return Ownership(**self._reorder(order, "tokens")["ownership"])

    def row_order(self, order: Iterable[int], rows_of: str = "tokens") -> list[int]:
        """Returns the rows of a tensor in the new order: new row i is old row result[i]."""
        found: list[int] = self._reorder(order, rows_of)["rows"]
        return found

    def _reorder(self, order: Iterable[int], rows_of: str) -> Any:
        return _call(
            None,
            "reorder",
            **self._offsets(),
            rows_of=_core.text(rows_of, "rows_of"),
            order=_core.integers(order, "order").tolist(),
        )


def ownership(
    *,
    items: Iterable[int] | None = None,
    tokens: Iterable[int] | None = None,
    grid_thw: Any = None,
    merge: int | None = None,
    sample_of_item: Iterable[int] | None = None,
    num_samples: int | None = None,
    rows_per_sample: Iterable[int] | None = None,
) -> Ownership:
    """Makes a table of the owners of rows for one kind of item, as images, of a global micro-batch.

    Give one of these:

    items: the number of items of each sample.
    sample_of_item: the sample of each item, ascending from 0, with num_samples.
    rows_per_sample: the rows of each sample, if there are no items.

    The tokens of each item are `tokens`; or those of `grid_thw`, [items, 3] of time, height and width in patches, where
    merge x merge patches become a token (default 1); or one each.
    """
    ways = {"items": items, "sample_of_item": sample_of_item, "rows_per_sample": rows_per_sample}
    given = [name for name, value in ways.items() if value is not None]
    if len(given) != 1:
        raise TypeError(
            "ownership needs one of items, sample_of_item and rows_per_sample, not "
            + (" and ".join(given) if given else "none of them")
        )
    way = given[0]
    counts = _core.integers(ways[way] or (), way).tolist()
    if way == "rows_per_sample" and (tokens is not None or grid_thw is not None):
        raise TypeError("rows_per_sample gives all rows: leave out tokens and grid_thw, or give items in its place")
    if tokens is not None and grid_thw is not None:
        raise TypeError("ownership needs tokens or grid_thw, not both")
    if merge is not None and grid_thw is None:
        raise TypeError("merge needs grid_thw, which is not given")
    if (num_samples is not None) != (way == "sample_of_item"):
        raise TypeError(f"num_samples goes with sample_of_item; {way} is given")
    arguments: dict[str, Any] = {way: counts}
    if num_samples is not None:
        arguments["num_samples"] = _core.whole(num_samples, "num_samples")
    if grid_thw is not None:
        rows = grid_thw.tolist() if hasattr(grid_thw, "tolist") else grid_thw
        grid = [_core.integers(row, f"grid_thw[{i}]").tolist() for i, row in enumerate(rows)]
        for i, row in enumerate(grid):
            _core.of_length(row, 3, f"grid_thw[{i}]", "of them: time, height and width")
        arguments["grid_thw"] = [number for row in grid for number in row]
        arguments["merge"] = _core.whole(1 if merge is None else merge, "merge")
    elif tokens is not None:
        arguments["tokens"] = _core.integers(tokens, "tokens").tolist()
    elif way == "sample_of_item":
        arguments["tokens"] = [1] * len(counts)
    elif way == "items":
        total = sum(counts)
        if total > _MAX_ITEMS:
            raise ValueError(f"items add up to {total}; a micro-batch has at most {_MAX_ITEMS}")
        arguments["tokens"] = [1] * total
    return Ownership(**_call(None, "ownership", **arguments))


_MAX_ITEMS = 1 << 24


@dataclasses.dataclass(frozen=True)
class Reads:
    """A plan by which each rank reads only its own part of the global micro-batch. See Topology.reads."""

    num_groups: int
    samples_per_group: int
    micro_batch_size: int
    num_micro_batches: int

    def positions(self, micro_batch: int, dp_rank: int, dp_size: int) -> range:
        """Returns the positions, in the common order of the dataset, that a replica reads. Do not slice them again."""
        return range(
            *_call(
                None,
                "positions",
                **dataclasses.asdict(self),
                **_wholes(micro_batch=micro_batch, dp_rank=dp_rank, dp_size=dp_size),
            )
        )


@dataclasses.dataclass(frozen=True)
class Side:
    """One end of a route. ranks[p] is the rank at place p = dp_rank * lanes + lane, where a replica's lanes are its
    tp * cp ranks. Place p carries the rows [bounds[p], bounds[p + 1])."""

    dp_size: int
    lanes: int
    ranks: list[int]
    bounds: list[int]


class Transfer(NamedTuple):
    """Rows of the global micro-batch that one rank sends to another, or copies."""

    from_rank: int
    to_rank: int
    rows: range


@dataclasses.dataclass(frozen=True)
class Route:
    """All transfers of an edge in forward, by their rows. Backward sends the same rows the other way."""

    from_side: Side
    to_side: Side
    transfers: list[Transfer]


@dataclasses.dataclass(frozen=True)
class Simulation:
    """The counts of a step that was run without a message; and the operations of one rank as text, if asked for."""

    operations: int
    transfers: int
    collectives: int
    of_rank: list[str]


class Topology:
    """Modules on ranks, and the edges between them. It never changes. Make it with `topology`."""

    modules: list[Module]
    edges: list[tuple[str, str]]
    forward_order: list[str]
    world_size: int

    def __init__(self, handle: ctypes.c_void_p, world_size: int) -> None:
        self._handle = handle
        weakref.finalize(self, _delete, handle)
        self.world_size = world_size
        described = self._call("modules")
        self.modules = [Module(**module) for module in described["modules"]]
        self.edges = [(source, sink) for source, sink in described["edges"]]
        self.forward_order = described["forward_order"]

    def _call(self, call: str, /, **arguments: Any) -> Any:
        return _call(self._handle, call, **arguments)

    def modules_of(self, rank: int) -> list[str]:
        """Returns the names of the modules that run on a rank; none outside the world."""
        found: list[str] = self._call("modules_of", **_wholes(rank=rank))
        return found

    def coordinates(self, rank: int, name: str | None = None) -> Coordinates:
        """Returns a rank's position in the grid of a module, by default of its first."""
        return Coordinates(**self._call("coordinates", name=_optional(name), **_wholes(rank=rank)))

    def dp_info(self, rank: int, name: str | None = None) -> DpInfo:
        """Returns which part of the micro-batch the rank's module keeps. For slices, never for a sampler.

        Without a name the result is (0, 1) where modules share their ranks, because each slices by its own size.
        """
        return DpInfo(*self._call("dp_info", name=_optional(name), **_wholes(rank=rank)))

    def sampling_info(self, rank: int, scalable_reads: bool = False) -> SamplingInfo:
        """Returns the values for a sampler: (0, 1) on every rank that loads. With scalable_reads: its replica."""
        return SamplingInfo(*self._call("sampling_info", scalable_reads=bool(scalable_reads), **_wholes(rank=rank)))

    def validate(
        self,
        *,
        micro_batch_size: int,
        global_batch_size: int | None = None,
        eval_micro_batch_size: int | None = None,
        eval_global_batch_size: int | None = None,
        uneven: bool = False,
    ) -> None:
        """Raises ValueError, with all broken rules and the nearest sizes that work, unless batches can be divided.

        micro_batch_size: samples of the global micro-batch. A multiple of every module's dp; with `uneven` at least dp.
        global_batch_size: samples of a step, a multiple of micro_batch_size.
        """
        sizes = {
            "micro_batch_size": micro_batch_size,
            "global_batch_size": global_batch_size,
            "eval_micro_batch_size": eval_micro_batch_size,
            "eval_global_batch_size": eval_global_batch_size,
        }
        self._call(
            "validate",
            uneven=bool(uneven),
            **_wholes(**{name: size for name, size in sizes.items() if size is not None}),
        )

    def process_groups(self) -> list[tuple[str, list[list[int]]]]:
        """Returns the names and ranks of all process groups, in the one order in which every rank must create them."""
        return [(name, groups) for name, groups in self._call("all_groups")]

    def groups(self, name: str, axes: str) -> list[list[int]]:
        """Returns the groups of a module over axes that "-" joins, as "dp-cp"."""
        found: list[list[int]] = self._call("groups", name=_core.text(name, "name"), axes=_core.text(axes, "axes"))[1]
        return found

    def reads(self, *, micro_batch_size: int, num_samples: int) -> Reads:
        """Plans reads so that each rank reads only what it keeps. The last samples of an epoch that fill no micro-batch
        are dropped: num_samples - num_micro_batches * micro_batch_size of them."""
        return Reads(**self._call("reads", **_wholes(micro_batch_size=micro_batch_size, num_samples=num_samples)))

    def route(
        self, from_name: str, to_name: str, owners: Ownership, rows_of: str = "tokens", uneven: bool = False
    ) -> Route:
        """Plans which rows each rank of a module sends to each rank of the next."""
        found = self._call(
            "route",
            **{"from": _core.text(from_name, "from_name"), "to": _core.text(to_name, "to_name")},
            rows_of=_core.text(rows_of, "rows_of"),
            uneven=bool(uneven),
            **owners._offsets(),
        )
        return Route(
            Side(**found["from"]),
            Side(**found["to"]),
            [Transfer(a, b, range(begin, end)) for a, b, begin, end in found["transfers"]],
        )

    def simulate(
        self, *, micro_batches: int = 1, micro_batch_size: int, order: str = "sequential", rank: int | None = None
    ) -> Simulation:
        """Runs all sends, receives and collectives of a step against each other, without sending a message.

        order: "sequential", "all_forwards_first" or "1f1b".
        rank: lists this rank's operations, too.

        Raises RuntimeError with the ranks that wait for each other and their operations, if the step does not end.
        """
        return Simulation(
            **self._call(
                "simulate",
                order=_core.text(order, "order"),
                rank=None if rank is None else _core.whole(rank, "rank"),
                **_wholes(micro_batches=micro_batches, micro_batch_size=micro_batch_size),
            )
        )

    def draw(self, micro_batch_size: int = 0, *, svg: bool = False) -> str:
        """Returns a drawing of the modules' grids, of the replicas' samples and of the edges: text, or an SVG file."""
        if _core.whole(micro_batch_size, "micro_batch_size") < 0:
            raise ValueError(f"micro_batch_size must be at least 0, not {micro_batch_size}")
        found: str = self._call("draw", svg=bool(svg), **_wholes(micro_batch_size=micro_batch_size))
        return found


_MODULE_FIELDS = ("name", "dp", "tp", "cp", "pp", "first_rank", "ranks", "order")


def topology(
    world_size: int, modules: Sequence[Mapping[str, Any]], edges: Sequence[tuple[str, str]] | None = None
) -> Topology:
    """Makes a topology.

    modules: each has `name`, the sizes dp, tp, cp and pp (default 1), and the ranks from `first_rank` on (default 0),
        or `ranks` by place. `order` says which axis varies fastest: "tp-cp-dp-pp". One module is "language".
    edges: pairs (from, to). None: every other module feeds "language".
    """
    described = []
    if isinstance(modules, (str, Mapping)) or not all(isinstance(module, Mapping) for module in modules):
        raise TypeError('modules must be a list of dictionaries, as [{"name": "language", "dp": 2}]')
    if edges is not None and any(len(edge) != 2 or isinstance(edge, str) for edge in edges):
        raise TypeError('edges must be pairs (from, to), as [("vision", "language")]')
    for i, module in enumerate(modules):
        unknown = [str(key) for key in module if key not in _MODULE_FIELDS]
        if unknown:
            raise TypeError(f"modules[{i}] has no field {', '.join(unknown)}; it has {', '.join(_MODULE_FIELDS)}")
        if "name" not in module:
            raise TypeError(f"modules[{i}] has no name")
        fields: dict[str, Any] = {}
        for key, value in module.items():
            name = f"modules[{i}].{key}"
            if key in ("name", "order"):
                fields[key] = _core.text(value, name)
            else:
                fields[key] = _core.integers(value, name).tolist() if key == "ranks" else _core.whole(value, name)
        described.append(fields)
    handle = ctypes.c_void_p()
    size = _core.whole(world_size, "world_size")
    pairs = (
        None if edges is None else [[_core.text(source, "edges"), _core.text(sink, "edges")] for source, sink in edges]
    )
    _make(_core.encode({"world_size": size, "modules": described, "edges": pairs}), ctypes.byref(handle))
    return Topology(handle, size)


def balanced_order(costs: Iterable[float], num_groups: int) -> list[int]:
    """Returns an order of a micro-batch's samples in which groups of equally many have about equal costs.

    Position p holds sample result[p]. num_groups is the largest dp. Every module must use this order.
    """
    found: list[int] = _call(
        None, "balanced_order", costs=_finite(costs), num_groups=_core.whole(num_groups, "num_groups")
    )
    return found


def _finite(values: Iterable[float]) -> list[float]:
    return [_core.number(value, f"costs[{i}]") for i, value in enumerate(_core.floats(values, "costs"))]


def gradient_scale(
    *,
    loss: str = "per_token",
    reduction: str = "sum",
    reduction_size: int = 1,
    language_dp: int = 1,
    num_micro_batches: int = 1,
    num_tokens: int = 0,
) -> float:
    """Returns the factor for a module's reduced gradient, so that it equals that of a run on one rank.

    loss: "per_token": a rank's loss is the sum over its tokens, and num_tokens counts the tokens with a loss of all
        ranks in the step. "mean_of_means": a replica's loss is the mean over its tokens; averaged over language_dp
        replicas and num_micro_batches.
    reduction: how the module's gradients were reduced over reduction_size = dp * cp ranks: "sum" or "mean".
    """
    found: float = _call(
        None,
        "gradient_scale",
        loss=_core.text(loss, "loss"),
        reduction=_core.text(reduction, "reduction"),
        **_wholes(
            reduction_size=reduction_size,
            language_dp=language_dp,
            num_micro_batches=num_micro_batches,
            num_tokens=num_tokens,
        ),
    )
    return found
