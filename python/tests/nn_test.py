"""The fused operators of lockstep.nn against torch's own, in float64; under autograd, autocast and torch.compile."""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import torch
import torch.nn.functional as F

import lockstep
from lockstep import nn

ops = torch.ops.lockstep

# How far from float64 a result may be, of its largest number.
TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}


def reference_rotate(x, positions, base):
    """Rotary embeddings by complex numbers."""
    half = x.shape[-1] // 2
    angles = positions[..., None, None].double() * base ** (-torch.arange(half).double() / half)
    turned = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat((turned.real, turned.imag), -1)


def reference_attention(q, k, v, seq_lens, causal, window):
    outputs = []
    for q, k, v in zip(*(x.split(seq_lens) for x in (q, k, v))):
        group = q.shape[1] // k.shape[1]
        apart = torch.arange(len(q))[:, None] - torch.arange(len(q))
        sees = torch.ones_like(apart, dtype=torch.bool) if window is None else apart.abs() < window
        if causal:
            sees &= apart >= 0
        scores = torch.einsum("qhd,khd->hqk", q, k.repeat_interleave(group, 1)) / q.shape[-1] ** 0.5
        weights = scores.masked_fill(~sees, -torch.inf).softmax(-1)
        outputs.append(torch.einsum("hqk,khd->qhd", weights, v.repeat_interleave(group, 1)))
    return torch.cat(outputs)


def reference_loss(hidden, weight, labels, bias, reduction, label_smoothing, z_loss, softcap):
    logits = (hidden @ weight.T + (0 if bias is None else bias)).flatten(0, -2)
    if softcap:
        logits = softcap * (logits / softcap).tanh()
    losses = F.cross_entropy(logits, labels.flatten(), reduction="none", label_smoothing=label_smoothing)
    counted = labels.flatten() != -100
    losses = losses + z_loss * logits.logsumexp(-1).square() * counted
    if reduction == "none":
        return losses.view(labels.shape)
    return losses.sum() / (counted.sum().clamp(min=1) if reduction == "mean" else 1)


def pairs():
    """Yields random cases: name, our function, the reference, and inputs in float64."""
    for seed in range(10):
        generator = torch.Generator().manual_seed(seed)
        draw = lambda low, high: int(torch.randint(low, high, (), generator=generator))
        randn = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)
        lead, size = [draw(1, 5) for _ in range(draw(0, 3))], draw(1, 40)
        yield (
            f"rms_norm {seed}",
            lambda x, weight: nn.rms_norm(x, weight, 1e-5),
            lambda x, weight: F.rms_norm(x, (x.shape[-1],), weight, 1e-5),
            (randn(*lead, size), randn(size)),
        )
        yield f"swiglu {seed}", nn.swiglu, lambda gate, up: F.silu(gate) * up, (randn(*lead, size), randn(*lead, size))

        size, tokens, heads = 2 * draw(1, 9), draw(1, 9), draw(1, 4)
        positions = torch.randint(0, 50, (tokens,), generator=generator)
        turns = nn.Rotary(size, base=500.0)(positions, torch.float64)
        turns = [turn.to(torch.float64) for turn in turns]
        yield (
            f"rotate {seed}",
            lambda x, turns=turns: nn.rotate(
                x, *(turn.to(torch.promote_types(x.dtype, torch.float32)) for turn in turns)
            ),
            lambda x, positions=positions: reference_rotate(x, positions, 500.0),
            (randn(draw(1, 3), tokens, heads, size),),
        )

        seq_lens, kv_heads = [draw(1, 9) for _ in range(draw(1, 5))], draw(1, 3)
        causal, window, tokens = draw(0, 2) == 1, draw(1, 6) if draw(0, 2) else None, sum(seq_lens)
        options = {"causal": causal, "window": window}
        if draw(0, 2):
            options["seq_lens"] = seq_lens
        else:
            options["cu_seqlens"] = torch.tensor([0, *seq_lens, 0]).cumsum(0).int()  # the last sequence is empty
        yield (
            f"attention {seed} {seq_lens} {causal} {window}",
            lambda q, k, v, options=options: nn.attention(q, k, v, **options),
            lambda q, k, v, a=(seq_lens, causal, window): reference_attention(q, k, v, *a),
            (randn(tokens, 2 * kv_heads, size), randn(tokens, kv_heads, size), randn(tokens, kv_heads, size)),
        )

        lead, vocabulary = [draw(1, 4), draw(1, 9)], draw(2, 20)
        labels = torch.randint(0, vocabulary, lead, generator=generator)
        labels[torch.rand(lead, generator=generator) < 0.3] = -100
        reduction = ("mean", "sum", "none")[draw(0, 3)]
        smoothing, z_loss, softcap, tile_tokens = 0.1 * draw(0, 2), 0.01 * draw(0, 2), 3.0 * draw(0, 2), draw(0, 6)
        with_bias = draw(0, 2)
        yield (
            f"cross_entropy {seed} {reduction} {smoothing} {z_loss} {softcap}",
            lambda hidden, weight, bias=None, a=(labels, reduction, smoothing, z_loss, softcap, tile_tokens): (
                nn.TiledCrossEntropy(reduction=a[1], label_smoothing=a[2], z_loss=a[3], softcap=a[4], tile_tokens=a[5])(
                    hidden, weight, a[0], bias
                )
            ),
            lambda hidden, weight, bias=None, a=(labels, reduction, smoothing, z_loss, softcap): reference_loss(
                hidden, weight, a[0], bias, *a[1:]
            ),
            (randn(*lead, 7), randn(vocabulary, 7), *([randn(vocabulary)] * with_bias)),
        )


def run(function, inputs, dtype, seed=5):
    """The result and the gradients of inputs in this dtype."""
    leaves = [x.detach().to(dtype, copy=True).requires_grad_() for x in inputs]
    y = function(*leaves)
    generator = torch.Generator().manual_seed(seed)
    y.backward(torch.randn(y.shape, generator=generator, dtype=torch.float64).to(dtype).to(y.dtype))
    return [y.detach(), *(leaf.grad for leaf in leaves)]


class Layer(torch.nn.Module):
    """All of them."""

    def __init__(self):
        super().__init__()
        self.before, self.after, self.turns = nn.RMSNorm(16), nn.RMSNorm(16), nn.Rotary(4)
        self.q, self.kv = torch.nn.Linear(16, 16), torch.nn.Linear(16, 16)
        self.mlp, self.head = nn.SwiGLU(16, 32), torch.nn.Linear(16, 11)

    def forward(self, x, positions, cu_seqlens, labels):
        h = self.before(x)
        q, (k, v) = self.q(h).view(-1, 4, 4), self.kv(h).view(-1, 4, 4).chunk(2, 1)
        cos, sin = self.turns(positions)
        a = nn.attention(nn.rotate(q, cos, sin), nn.rotate(k, cos, sin), v, cu_seqlens=cu_seqlens)
        y, x = self.after(a.reshape(-1, 16), x)
        return nn.cross_entropy(x + self.mlp(y), self.head.weight, labels, self.head.bias, tile_tokens=4)


def packed(seq_lens):
    tokens = sum(seq_lens)
    generator = torch.Generator().manual_seed(tokens)
    return (
        torch.randn(tokens, 16, generator=generator),
        torch.cat([torch.arange(length) for length in seq_lens]),
        torch.tensor([0, *seq_lens]).cumsum(0),
        torch.randint(0, 11, (tokens,), generator=generator),
    )


class Operators(unittest.TestCase):
    def near(self, got, wanted, tolerance):
        for mine, theirs in zip(got, wanted, strict=True):
            self.assertEqual(mine.shape, theirs.shape)
            bound = tolerance * max(1.0, theirs.abs().max().item())
            self.assertLess((mine.double() - theirs).abs().max().item(), bound)

    def test_values_and_gradients_are_those_of_torch_in_float64(self):
        for name, ours, reference, inputs in pairs():
            for dtype in TOLERANCES:
                with self.subTest(name, dtype=dtype):
                    # The reference starts from the numbers that the dtype holds.
                    wanted = run(reference, [x.to(dtype).double() for x in inputs], torch.float64)
                    if dtype.itemsize == 2 and "cross_entropy" in name:
                        continue  # the logits are rounded to 16 bits, in ours as in torch's
                    # The angles of rotary embeddings are float32.
                    self.near(run(ours, inputs, dtype), wanted, TOLERANCES[dtype] + 1e-5 * name.startswith("rotate"))

    def test_gradcheck(self):
        for name, ours, _, inputs in pairs():
            if name.split()[1] in ("0", "1"):
                with self.subTest(name):
                    leaves = [x.double().requires_grad_() for x in inputs]
                    self.assertTrue(torch.autograd.gradcheck(ours, leaves))
                    if name.startswith(("rms_norm", "swiglu", "rotate")):
                        self.assertTrue(torch.autograd.gradgradcheck(ours, leaves))

    def test_opcheck(self):
        t = lambda *shape, grad=True: torch.randn(*shape, requires_grad=grad)
        labels = torch.tensor([[3, -100, 19], [0, 1, 2]])
        cu_seqlens = torch.tensor([0, 3, 7])
        options = (None, -100, 0.1, 0.01, 5.0)
        for operator, arguments, keywords in (
            (ops.rms_norm, (t(2, 5, 8), t(8), 1e-6), {}),
            (ops.add_rms_norm, (t(2, 5, 8), t(2, 5, 8), t(8), 1e-6), {}),
            (ops.swiglu, (t(2, 5, 8), t(2, 5, 8)), {}),
            (ops.rotate, (t(5, 2, 8), t(5, 1, 8, grad=False), t(5, 1, 8, grad=False)), {}),
            (ops.varlen_attention, (t(7, 4, 8), t(7, 2, 8), t(7, 2, 8), cu_seqlens), {}),
            (ops.varlen_attention, (t(7, 4, 8), t(7, 2, 8), t(7, 2, 8), cu_seqlens), {"window": 2, "causal": False}),
            (
                ops.tiled_cross_entropy,
                (t(2, 3, 8), t(20, 8), labels, t(20), *options, "mean", 2, False, [True] * 3),
                {},
            ),
            (ops.tiled_cross_entropy, (t(2, 3, 8), t(20, 8), labels, None, *options, "none", 2, False, [True] * 3), {}),
            (
                ops.tiled_cross_entropy,
                (t(2, 3, 8, grad=False), t(20, 8, grad=False), labels, None, *options, "sum", 0, False, [False] * 3),
                {},
            ),
        ):
            with self.subTest(str(operator)):
                torch.library.opcheck(operator.default, arguments, keywords)

    def test_compile_of_a_whole_layer_has_no_graph_break_and_the_same_bits(self):
        torch.manual_seed(0)
        layer = Layer()
        compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
        for autocast in (False, True):
            for seq_lens in ([3, 4], [5, 4], [2, 2, 9]):  # from the second on with sizes that are symbols
                results = []
                for function in (layer, compiled):
                    layer.zero_grad()
                    with torch.autocast("cpu", enabled=autocast):
                        loss = function(*packed(seq_lens))
                    loss.backward()
                    results.append([loss.detach(), *(parameter.grad for parameter in layer.parameters())])
                with self.subTest(autocast=autocast, seq_lens=seq_lens):
                    for mine, theirs in zip(*results, strict=True):
                        self.assertTrue(torch.equal(mine, theirs))

    def test_compile_runs_tiles_as_they_are(self):
        torch.manual_seed(0)
        layer = Layer()
        x = packed([5, 6])
        layer(*x).backward()
        wanted = [parameter.grad.clone() for parameter in layer.parameters()]
        layer.zero_grad()
        nn.tile(layer, ["mlp"], tiles=3)
        torch.compile(layer, backend="aot_eager")(*x).backward()
        for mine, theirs in zip((parameter.grad for parameter in layer.parameters()), wanted, strict=True):
            torch.testing.assert_close(mine, theirs)

    def test_autocast_has_the_dtypes_of_torch(self):
        low, wide = torch.randn(3, 8).bfloat16(), torch.randn(3, 8)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            for x in (low, wide):
                for weight in (low[0], wide[0]):
                    self.assertEqual(ops.rms_norm(x, weight, 1e-6).dtype, F.rms_norm(x, (8,), weight, 1e-6).dtype)
                    self.assertEqual(nn.rms_norm(x, weight).dtype, F.rms_norm(x, (8,), weight, 1e-6).dtype)
                for up in (low, wide):
                    self.assertEqual(nn.swiglu(x, up).dtype, (F.silu(x) * up).dtype)
                    self.assertEqual([y.dtype for y in nn.RMSNorm(8)(x, up)], [(x + up).dtype] * 2)
            heads = wide.view(3, 2, 4)
            self.assertEqual(
                nn.attention(heads, heads, heads).dtype, F.scaled_dot_product_attention(heads, heads, heads).dtype
            )
            weight = torch.randn(5, 8, requires_grad=True)
            loss = nn.cross_entropy(low, weight, torch.tensor([0, 1, 4]))
        loss.backward()
        self.assertEqual((loss.dtype, weight.grad.dtype), (torch.float32, torch.float32))

    def test_the_residual_is_added_before_the_norm(self):
        norm, x, residual = nn.RMSNorm(8).double(), torch.randn(3, 8).double(), torch.randn(3, 8).double()
        y, total = norm(x, residual)
        torch.testing.assert_close(total, x + residual)
        torch.testing.assert_close(y, F.rms_norm(x + residual, (8,), norm.weight, norm.eps))

    def test_a_loss_whose_labels_are_all_ignored_is_0(self):
        hidden = torch.randn(2, 8, requires_grad=True)
        loss = nn.cross_entropy(hidden, torch.randn(5, 8), torch.tensor([-100, -100]))
        loss.backward()
        self.assertEqual((loss.item(), hidden.grad.abs().max().item()), (0, 0))

    def test_a_divisor_replaces_the_number_of_labels(self):
        hidden, weight, labels = torch.randn(2, 8), torch.randn(5, 8), torch.tensor([1, 2])
        got = nn.cross_entropy(hidden, weight, labels, divisor=torch.tensor(7.0))
        torch.testing.assert_close(got, F.cross_entropy(hidden @ weight.T, labels, reduction="sum") / 7)

    def test_errors_are_value_errors_that_say_what_is_wrong(self):
        q = torch.randn(5, 2, 4)
        hidden, weight = torch.randn(2, 8), torch.randn(5, 8)
        for words, function in (
            (r"weight must have shape \[8\]", lambda: nn.rms_norm(hidden, torch.ones(7))),
            ("gate and up must have one shape", lambda: nn.swiglu(hidden, weight)),
            ("size must be even and at least 2, not 5", lambda: nn.Rotary(5)),
            ("give seq_lens or cu_seqlens, not both", lambda: nn.attention(q, q, q, seq_lens=[5], cu_seqlens=q)),
            ("begin with 0 and end with q's 5 tokens, got 0 and 4", lambda: nn.attention(q, q, q, seq_lens=[1, 3])),
            (
                "must not decrease, but 2 follows 6",
                lambda: nn.attention(q, q, q, cu_seqlens=torch.tensor([0, 6, 2, 5])),
            ),
            ("must be int32 or int64", lambda: nn.attention(q, q, q, cu_seqlens=torch.tensor([0.0, 5.0]))),
            ("2 query heads are not a multiple of 3", lambda: nn.attention(q, *[torch.randn(5, 3, 4)] * 2)),
            (
                "label 5 of token 1 is not in the vocabulary of 5",
                lambda: nn.cross_entropy(hidden, weight, torch.tensor([0, 5])),
            ),
            (
                'must be "mean", "sum" or "none", not "max"',
                lambda: nn.cross_entropy(hidden, weight, torch.tensor([0, 1]), reduction="max"),
            ),
        ):
            with self.subTest(words), self.assertRaisesRegex(ValueError, words):
                function()

    def test_gradients_of_gradients_of_attention_and_loss_are_errors(self):
        q = torch.randn(5, 2, 4, requires_grad=True)
        (gradient,) = torch.autograd.grad(nn.attention(q, q, q).square().sum(), q, create_graph=True)
        with self.assertRaisesRegex(RuntimeError, "varlen_attention_backward has no gradient of gradients"):
            gradient.sum().backward()


class Pages(unittest.TestCase):
    def test_the_examples_of_the_pages_run(self):
        for page in ("batching", "kernels", "tiled_mlp"):
            with self.subTest(page):
                text = pathlib.Path("docs", page + ".md").read_text()
                blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
                self.assertEqual(len(blocks), 1)
                exec(compile(blocks[0], page + ".md", "exec"), {})


class Loading(unittest.TestCase):
    def test_operators_of_another_torch_are_refused_before_they_are_loaded(self):
        with tempfile.TemporaryDirectory() as folder:
            package = pathlib.Path(folder, "lockstep")
            shutil.copytree(pathlib.Path(lockstep.__file__).parent, package)
            built = package / "liblockstep_torch.txt"
            for version, works in (("2.99.0", False), (torch.__version__.split("+")[0], True)):
                built.unlink()
                built.write_text(version + "\n")
                program = f"import sys; sys.path.insert(0, {folder!r}); import lockstep.nn; print(lockstep.__file__)"
                done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
                if works:
                    self.assertIn(folder, done.stdout, done.stderr)
                else:
                    got = ".".join(torch.__version__.split(".")[:2])
                    self.assertIn(
                        f"ImportError: lockstep: its operators were built for torch 2.99.0, but torch "
                        f"{torch.__version__} is imported. Install torch 2.99, or the wheel "
                        f"lockstep-{lockstep.__version__}+torch{got}-*.whl",
                        done.stderr,
                    )

    def test_the_package_itself_needs_no_torch(self):
        program = "import sys, lockstep; lockstep.batching; assert 'torch' not in sys.modules"
        subprocess.run([sys.executable, "-c", program], check=True)


if __name__ == "__main__":
    unittest.main()
