"""Host time of 1,000 operators in Python: see tiny_operators.lua."""

import timing
import torch

OPERATORS = 1000
x = torch.ones(4, device=timing.DEVICE)
w = torch.ones(4, device=timing.DEVICE, requires_grad=True)


def chain(tensor):
    y = tensor
    for _ in range(OPERATORS):
        y = y + tensor
    return y


def forward():
    with torch.no_grad():
        chain(x)


def forward_and_backward():
    chain(w).sum().backward()
    w.grad = None


timing.report("1,000 additions, ms", 1e3 * timing.seconds(5, 5, forward))
timing.report("with backward, ms", 1e3 * timing.seconds(5, 5, forward_and_backward))
