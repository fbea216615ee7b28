"""Qwen3 in plain PyTorch, as a good implementation has it: the peer of lockstep.models in check.py.

Names and values of weights are those of timing.lua, so both begin with the same loss.
"""

import torch
from torch import nn
from torch.nn import functional as F


class RMSNorm(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x):
        return F.rms_norm(x, (x.size(-1),), self.weight, 1e-6)


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        hidden, self.dim = c["hidden_size"], c["head_dim"]
        self.q_proj = nn.Linear(hidden, c["num_attention_heads"] * self.dim, bias=False)
        self.k_proj = nn.Linear(hidden, c["num_key_value_heads"] * self.dim, bias=False)
        self.v_proj = nn.Linear(hidden, c["num_key_value_heads"] * self.dim, bias=False)
        self.o_proj = nn.Linear(c["num_attention_heads"] * self.dim, hidden, bias=False)
        self.q_norm, self.k_norm = RMSNorm(self.dim), RMSNorm(self.dim)

    def forward(self, x, turn, cache=None, position=None, mask=None):
        def heads(y):
            return y.view(*y.shape[:2], -1, self.dim)

        q = rotate(self.q_norm(heads(self.q_proj(x))), *turn).transpose(1, 2)
        k = rotate(self.k_norm(heads(self.k_proj(x))), *turn).transpose(1, 2)
        v = heads(self.v_proj(x)).transpose(1, 2)
        if cache is not None:  # a cache of a fixed size, of which `mask` says what is filled
            k, v = (kept.index_copy_(2, position, new) for kept, new in zip(cache, (k, v)))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=True)
        return self.o_proj(y.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate_proj = nn.Linear(c["hidden_size"], c["intermediate_size"], bias=False)
        self.up_proj = nn.Linear(c["hidden_size"], c["intermediate_size"], bias=False)
        self.down_proj = nn.Linear(c["intermediate_size"], c["hidden_size"], bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(c["hidden_size"]), RMSNorm(c["hidden_size"])
        self.self_attn, self.mlp = Attention(c), MLP(c)

    def forward(self, x, turn, *cached):
        x = x + self.self_attn(self.input_layernorm(x), turn, *cached)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embed_tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.layers = nn.ModuleList(Layer(c) for _ in range(c["num_hidden_layers"]))
        self.norm = RMSNorm(c["hidden_size"])


class Model(nn.Module):
    """`forward` returns the mean loss of ids [batch, tokens]; `decode` the next ids after a token."""

    def __init__(self, c):
        super().__init__()
        self.model, self.dim = Decoder(c), c["head_dim"]
        self.lm_head = nn.Linear(c["hidden_size"], c["vocab_size"], bias=False)
        if c["tie_word_embeddings"]:
            self.lm_head.weight = self.model.embed_tokens.weight

    def hidden(self, ids, positions, caches=None, mask=None):
        x = self.model.embed_tokens(ids)
        slots = torch.arange(0, self.dim, 2, device=ids.device, dtype=torch.float32)
        angles = torch.outer(positions.float(), 1e6 ** (-slots / self.dim)).repeat(1, 2)[:, None]
        turn = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        for i, layer in enumerate(self.model.layers):
            x = layer(x, turn, caches[i], positions, mask) if caches else layer(x, turn)
        return self.model.norm(x)

    def forward(self, ids):
        logits = self.lm_head(self.hidden(ids, torch.arange(ids.size(1), device=ids.device))[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())

    def decode(self, ids, positions, caches):
        mask = torch.arange(caches[0][0].size(2), device=ids.device) <= positions[:, None]
        return self.lm_head(self.hidden(ids, positions, caches, mask)[:, -1]).argmax(-1, keepdim=True)


class LoRALinear(nn.Module):
    """As in PEFT: the layer stays frozen, and the adapter is float32."""

    def __init__(self, base, rank=16, alpha=32):
        super().__init__()
        self.base, self.scale = base, alpha / rank
        self.lora_A = nn.Linear(base.in_features, rank, bias=False, dtype=torch.float32)
        self.lora_B = nn.Linear(rank, base.out_features, bias=False, dtype=torch.float32)

    def forward(self, x):
        y = self.base(x)
        return (y + self.scale * self.lora_B(self.lora_A(x.to(self.lora_A.weight.dtype)))).to(y.dtype)


def add_lora(model):
    """Gives the layers of attention and MLP adapters, and freezes the rest."""
    model.requires_grad_(False)
    for layer in model.model.layers:
        for part in (layer.self_attn, layer.mlp):
            for name, child in list(part.named_children()):
                if isinstance(child, nn.Linear):
                    setattr(part, name, LoRALinear(child))


@torch.no_grad()
def fill(model):
    """Gives parameters the values that timing.lua gives those of the same names."""
    for name, p in model.named_parameters():
        name, seed = name.replace(".base.", "."), 7
        for byte in name.encode():
            seed = (seed * 31 + byte) % 100003
        if name.endswith("norm.weight"):
            p.fill_(1)
        elif "lora_B" in name:
            p.zero_()
        else:
            x = torch.arange(p.numel(), device=p.device, dtype=torch.int32).add_(seed).remainder_(2003)
            x = x.mul_(x).add_(seed).remainder_(2003)
            p.copy_(x.to(torch.float32).div_(2003).sub_(0.5).mul_(0.07).view(p.shape))


def build(config, device, dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    with torch.device(device):
        model = Model(config)
    torch.set_default_dtype(before)
    fill(model)
    return model
