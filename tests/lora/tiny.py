"""The model that the fixtures of LoRA are for, in Python. driver/lualib/lockstep/lora/tiny_fixture.lua is the same in Lua."""

import torch
from torch import nn

VOCABULARY, HIDDEN, WIDE, EXPERTS, INNER = 11, 6, 10, 3, 5


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj = nn.Linear(HIDDEN, WIDE)
        self.v_proj = nn.Linear(HIDDEN, WIDE, bias=False)
        self.o_proj = nn.Linear(WIDE, HIDDEN)

    def forward(self, x):
        return x + self.o_proj(torch.tanh(self.q_proj(x)) * self.v_proj(x))


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.empty(EXPERTS, 2 * INNER, HIDDEN))
        self.down_proj = nn.Parameter(torch.empty(EXPERTS, HIDDEN, INNER))

    def forward(self, x):
        gate, up = torch.einsum("th,eoh->teo", x, self.gate_up_proj).chunk(2, -1)
        return torch.einsum("tei,ehi->th", torch.nn.functional.silu(gate) * up, self.down_proj)


class TinyMixture(nn.Module):
    """A mixture whose tokens all go to all experts: routing has no part in adapters."""

    def __init__(self):
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCABULARY, HIDDEN)
        self.q_proj = nn.Linear(HIDDEN, HIDDEN)
        self.experts = Experts()
        self.lm_head = nn.Linear(HIDDEN, VOCABULARY, bias=False)

    def forward(self, ids):
        x = self.embed_tokens(ids)
        return self.lm_head(x + self.experts(self.q_proj(x)))


class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCABULARY, HIDDEN)
        self.layers = nn.ModuleList([Attention(), Attention()])
        self.lm_head = nn.Linear(HIDDEN, VOCABULARY, bias=False)

    def forward(self, ids):
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(x)
