--- The machine's ceilings: copies, and the products of large matrices. ceilings.py measures the same in Python.

local timing = require "timing"
local torch = require "lockstep.torch"

local elements = timing.size(2 ^ 31, 2 ^ 20)
local from = torch.empty({ elements }, { dtype = torch.uint8, device = timing.device })
local to = torch.empty_like(from)
timing.report("copy, GB/s", 2 * elements / timing.seconds(10, 3, function() to:copy_(from) end) / 1e9)

local n = timing.size(8192, 128)
local a = torch.randn({ n, n }, { dtype = torch.bfloat16, device = timing.device })
local b = torch.randn_like(a)
timing.report("matmul, TFLOP/s", 2 * n ^ 3 / timing.seconds(10, 3, function() torch.mm(a, b) end) / 1e12)
