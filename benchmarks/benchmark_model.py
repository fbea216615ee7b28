"""The transformer that benchmarks compare with Lockstep's in benchmark_model.lua."""

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(hidden, eps=1e-6), nn.RMSNorm(hidden, eps=1e-6)
        self.qkv, self.proj = nn.Linear(hidden, 3 * hidden, bias=False), nn.Linear(hidden, hidden, bias=False)
        self.up, self.down = nn.Linear(hidden, 4 * hidden, bias=False), nn.Linear(4 * hidden, hidden, bias=False)

    def forward(self, x):
        batch, tokens, hidden = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, tokens, 3, self.heads, hidden // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(attended.transpose(1, 2).reshape(batch, tokens, hidden))
        return x + self.down(F.silu(self.up(self.norm2(x))))


class Model(nn.Module):
    """A model of a size with vocab, hidden, layers and heads: ids [batch, tokens] to logits [batch, tokens, vocab]."""

    def __init__(self, size):
        super().__init__()
        self.embed = nn.Embedding(size.vocab, size.hidden)
        self.blocks = nn.ModuleList(Block(size.hidden, size.heads) for _ in range(size.layers))
        self.norm = nn.RMSNorm(size.hidden, eps=1e-6)
        self.head = nn.Linear(size.hidden, size.vocab, bias=False)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def fill(model):
    """The same numbers in both programs: no generator is shared."""
    with torch.no_grad():
        for i, p in enumerate(model.parameters(), 1):
            values = torch.arange(p.numel(), dtype=torch.float64) * 0.7 + i
            p.copy_(values.sin().mul(0.08).view(p.shape))
