"""The machine's ceilings in Python: see ceilings.lua."""

import timing
import torch

elements = timing.size(2**31, 2**20)
source = torch.empty(elements, dtype=torch.uint8, device=timing.DEVICE)
target = torch.empty_like(source)
timing.report("copy, GB/s", 2 * elements / timing.seconds(10, 3, lambda: target.copy_(source)) / 1e9)

n = timing.size(8192, 128)
a = torch.randn(n, n, dtype=torch.bfloat16, device=timing.DEVICE)
b = torch.randn_like(a)
timing.report("matmul, TFLOP/s", 2 * n**3 / timing.seconds(10, 3, lambda: torch.mm(a, b)) / 1e12)
