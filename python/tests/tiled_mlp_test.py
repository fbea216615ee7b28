"""TiledMLP on one process: values, gradients, hooks, memory and errors."""

import copy
import pickle
import unittest

import torch

import lockstep
from lockstep.nn import SwiGLU, TiledMLP, tile
from naive_tiles import Naive

HIDDEN = 6


class Several(torch.nn.Module):
    """Several outputs: of x's leading shape, flat, whole numbers; and a weight that no tile uses."""

    def __init__(self):
        super().__init__()
        self.mlp = SwiGLU(HIDDEN, 10, bias=True)
        self.tied = self.mlp.up_proj
        self.unused = torch.nn.Linear(2, 2)
        self.frozen = torch.nn.Linear(HIDDEN, 3).requires_grad_(False)

    def forward(self, x):
        y = self.mlp(x) + 0.1 * self.mlp.down_proj(self.tied(x))
        return y, self.frozen(x).flatten(0, -2), y.argmax(-1)


class Dropout(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(HIDDEN, dtype=torch.float64))

    def forward(self, x):
        return torch.nn.functional.dropout(x * self.scale, 0.5)


def outputs_of(module, x):
    result = module(x)
    return [result] if isinstance(result, torch.Tensor) else list(result)


def gradients_of(module, x, seed, needs_x=True):
    """The outputs, and the gradients of x and the parameters, for random gradients of the floating-point outputs."""
    module.zero_grad()
    x = x.detach().requires_grad_(needs_x)
    outputs = outputs_of(module, x)
    generator = torch.Generator().manual_seed(seed)
    trained = [output for output in outputs if output.requires_grad]
    seeds = [torch.randn(y.shape, generator=generator, dtype=torch.float64).to(y.dtype) for y in trained]
    torch.autograd.backward(trained, seeds)
    return [*outputs, x.grad, *(parameter.grad for parameter in module.parameters())]


class LiveBytes:
    """The bytes that autograd's graph holds beside a module's weights, forward and backward, now and at most."""

    def __init__(self, module):
        self.live = self.peak = 0
        self.weights = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}

    def __enter__(self):
        counter = self

        class Held:
            def __init__(self, tensor):
                self.tensor = tensor
                self.bytes = 0 if tensor.untyped_storage().data_ptr() in counter.weights else tensor.nbytes
                counter.live += self.bytes
                counter.peak = max(counter.peak, counter.live)

            def __del__(self):
                counter.live -= self.bytes

        self.hooks = torch.autograd.graph.saved_tensors_hooks(Held, lambda held: held.tensor)
        self.hooks.__enter__()
        return self

    def __exit__(self, *error):
        self.hooks.__exit__(*error)


class Tiled(unittest.TestCase):
    def same(self, got, wanted, tolerance=1e-12):
        self.assertEqual(len(got), len(wanted))
        for mine, theirs in zip(got, wanted):
            if theirs is None:
                self.assertIsNone(mine)
            else:
                torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance)

    def test_values_and_gradients_are_those_of_the_module(self):
        for seed in range(40):
            generator = torch.Generator().manual_seed(seed)
            torch.manual_seed(seed)
            draw = lambda low, high: int(torch.randint(low, high, (), generator=generator))
            plain = (SwiGLU(HIDDEN, 10) if seed % 2 else Several()).double()
            shape = [draw(1, 4) for _ in range(draw(0, 3))] + [draw(1, 12), HIDDEN]
            x = torch.randn(shape, generator=generator, dtype=torch.float64)
            if draw(0, 2):
                x = x.transpose(0, -2).contiguous().transpose(0, -2)
            tiled = TiledMLP(copy.deepcopy(plain), tiles=draw(1, 7))
            with self.subTest(seed=seed, shape=shape, tiles=tiled.module.forward.tiles):
                needs_x = seed % 5 != 0
                self.same(gradients_of(tiled, x, seed, needs_x), gradients_of(plain, x, seed, needs_x))
                with torch.no_grad():
                    self.same(outputs_of(tiled, x), outputs_of(plain, x))

    def test_an_input_without_tokens(self):
        tiled = TiledMLP(SwiGLU(HIDDEN, 10), tiles=3)
        x = torch.zeros(2, 0, HIDDEN, requires_grad=True)
        tiled(x).sum().backward()
        self.assertEqual(x.grad.shape, x.shape)
        self.assertEqual([parameter.grad.abs().sum().item() for parameter in tiled.parameters()], [0, 0, 0])

    def test_gradcheck(self):
        tiled = TiledMLP(SwiGLU(HIDDEN, 4).double(), tiles=3)
        x = torch.randn(2, 5, HIDDEN, dtype=torch.float64, requires_grad=True)
        names = [name for name, _ in tiled.named_parameters()]

        def run(x, *weights):
            return torch.func.functional_call(tiled, dict(zip(names, weights)), (x,))

        self.assertTrue(torch.autograd.gradcheck(run, (x, *tiled.parameters())))

    def test_the_graph_holds_one_tile(self):
        plain = SwiGLU(64, 256)
        tiled = TiledMLP(copy.deepcopy(plain), tiles=8)
        x = torch.randn(1, 512, 64)
        peaks = []
        for module in (plain, tiled):
            with LiveBytes(module) as counter:
                gradients_of(module, x, seed=0)
            self.assertEqual(counter.live, 0)
            peaks.append(counter.peak - x.nbytes)  # both hold x itself
        self.assertLess(peaks[1], peaks[0] / 7)

    def test_each_hook_fires_once_where_naive_tiles_fire_it_for_each_tile(self):
        for make, expected in ((lambda mlp: Naive(mlp, 4), 4), (lambda mlp: TiledMLP(mlp, 4), 1)):
            module = make(SwiGLU(HIDDEN, 10))
            calls = []
            for parameter in module.parameters():
                parameter.register_post_accumulate_grad_hook(lambda _: calls.append("accumulated"))
                parameter.register_hook(lambda _: calls.append("tensor"))
            module(torch.randn(2, 8, HIDDEN, requires_grad=True)).sum().backward()
            self.assertEqual(sorted(calls), ["accumulated"] * 3 * expected + ["tensor"] * 3 * expected)

    def test_dropout_drops_the_same_numbers_in_backward(self):
        torch.manual_seed(3)
        tiled = TiledMLP(Dropout(), tiles=3)
        x = torch.full((1, 10, HIDDEN), 2.0, dtype=torch.float64, requires_grad=True)
        y = tiled(x)
        after = torch.get_rng_state()
        torch.rand(5)
        between = torch.get_rng_state()
        y.sum().backward()
        self.assertTrue(torch.equal(x.grad, y.detach() / 2))
        self.assertTrue(torch.equal(torch.get_rng_state(), between))
        self.assertFalse(torch.equal(after, between))

    def test_autocast_is_that_of_forward_and_leaves_no_cast_without_a_gradient(self):
        plain = SwiGLU(HIDDEN, 10)
        tiled = TiledMLP(copy.deepcopy(plain), tiles=3)
        x = torch.randn(2, 5, HIDDEN)
        results = []
        for module, inner in ((plain, plain), (tiled, tiled.module)):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                y = module(x)
                again = inner.down_proj(torch.ones(1, 10))  # a use of the same weight outside of the tiles
            self.assertEqual(y.dtype, torch.bfloat16)
            module.zero_grad()
            (y.float().sum() + again.float().sum()).backward()
            results.append([y, *(parameter.grad for parameter in module.parameters())])
        self.same(results[1], results[0], tolerance=0.02)

    def test_gradients_of_bfloat16_weights_in_float32_are_nearer_to_the_truth(self):
        torch.manual_seed(0)
        plain = SwiGLU(32, 64).bfloat16()
        x = (torch.randn(1, 2048, 32) + 0.5).bfloat16()
        truth = gradients_of(copy.deepcopy(plain).double(), x.double(), 0)[2:]
        errors = []
        for accumulate_fp32 in (False, True):
            tiled = TiledMLP(copy.deepcopy(plain), tiles=64, accumulate_fp32=accumulate_fp32)
            got = gradients_of(tiled, x, 0)[2:]
            self.assertEqual({gradient.dtype for gradient in got}, {torch.bfloat16})
            errors.append(sum((mine.double() - wide).norm() / wide.norm() for mine, wide in zip(got, truth)).item())
        self.assertLess(errors[1], 0.8 * errors[0])

    def test_tile_keeps_names_and_copies_are_tiled_too(self):
        model = torch.nn.ModuleDict(
            {"layers": torch.nn.ModuleList(torch.nn.ModuleDict({"mlp": SwiGLU(HIDDEN, 10)}) for _ in range(2))}
        )
        names = list(model.state_dict())
        self.assertEqual(tile(model, ["layers.*.mlp"], tiles=3), ["layers.0.mlp", "layers.1.mlp"])
        self.assertEqual(list(model.state_dict()), names)
        for other in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            mlp = other["layers"][0]["mlp"]
            self.assertIs(mlp.forward.module, mlp)
            mlp(torch.randn(1, 7, HIDDEN)).sum().backward()
            self.assertIsNotNone(mlp.up_proj.weight.grad)
            other.zero_grad()
        with self.assertRaisesRegex(ValueError, 'no module of ModuleDict is named "blocks.\\*"'):
            tile(model, ["blocks.*"])
        with self.assertRaisesRegex(ValueError, "SwiGLU runs in tiles already"):
            TiledMLP(model["layers"][0]["mlp"])

    def test_misuse_is_an_error(self):
        scale = torch.ones(HIDDEN, requires_grad=True)
        shift = torch.ones(HIDDEN, requires_grad=True) * 2

        class Module(torch.nn.Linear):
            def __init__(self, act):
                super().__init__(HIDDEN, HIDDEN)
                self.act = act

            def forward(self, x):
                return self.act(super().forward(x))

        x = torch.randn(2, 5, HIDDEN, requires_grad=True)
        for act in (lambda y: y * scale, lambda y: y + shift):
            with self.assertRaisesRegex(RuntimeError, r"uses a trained tensor of shape \[6\] that is not one of"):
                TiledMLP(Module(act))(x).sum().backward()
        with self.assertRaisesRegex(
            ValueError, r"returned torch.float32 \[6\] for 2 rows; torch.float32 \[2\] is expected"
        ):
            TiledMLP(Module(lambda y: y.sum((0, 1))))(x)
        with self.assertRaisesRegex(ValueError, r"must be a floating-point tensor .*, got torch.int64 \[3\]"):
            TiledMLP(Module(torch.relu))(torch.arange(3))
        with self.assertRaisesRegex(ValueError, "tiles must be at least 1, not 0"):
            TiledMLP(Module(torch.relu), tiles=0)
        with self.assertRaisesRegex(RuntimeError, "no gradients of gradients, but backward has create_graph=True"):
            torch.autograd.grad(TiledMLP(Module(torch.relu))(x).sum(), x, create_graph=True)

    def test_a_module_that_changes_what_it_reads_has_no_tiles(self):
        # Without the check: counts of every tile and of backward again; a weight's gradient that is twice too large.
        class InPlace(torch.nn.Linear):
            def forward(self, x):
                return super().forward(x.mul_(2))

        x = torch.randn(1, 8, HIDDEN)
        with self.assertRaisesRegex(RuntimeError, "forward changes its input in place"):
            TiledMLP(InPlace(HIDDEN, HIDDEN))(x * 1.0)
        norm = torch.nn.Sequential(
            torch.nn.Flatten(0, -2), torch.nn.BatchNorm1d(HIDDEN), torch.nn.Unflatten(0, (1, -1))
        )
        with self.assertRaisesRegex(RuntimeError, "forward changes the buffer 1.num_batches_tracked in place"):
            TiledMLP(norm)(x)
        norm.eval()(x)  # reads them alone

    def test_the_package_lists_the_module(self):
        self.assertIn("nn", dir(lockstep))


if __name__ == "__main__":
    unittest.main()
