--- Optimizers and gradient clipping.
---
---     local optimizer = optim.AdamW(model:parameters(), { lr = 3e-4, weight_decay = 0.1 })
---     loss:backward()
---     local norm = optim.clip_grad_norm(model:parameters(), 1.0)
---     optimizer:step(schedule(step)); optimizer:zero_grad()

local adafactor = require "lockstep.optim.adafactor"
local adamw = require "lockstep.optim.adamw"
local adamw8bit = require "lockstep.optim.adamw8bit"
local clipping = require "lockstep.optim.clipping"
local core = require "lockstep.core"
local fully_shard = require "lockstep.sharding.fully_shard"
local groups = require "lockstep.optim.groups"
local grad_scaler = require "lockstep.optim.grad_scaler"
local lion = require "lockstep.optim.lion"
local muon = require "lockstep.optim.muon"
local optimizer = require "lockstep.optim.optimizer"
local options = require "lockstep.options"
local schedule_free = require "lockstep.optim.schedule_free"
local sgd = require "lockstep.optim.sgd"

local M = {}

M.GradScaler = grad_scaler.GradScaler
M.groups = groups.groups
M.schedule = require "lockstep.schedule"

---@class optim.AdamWOptions
---@field lr number? default 1e-3
---@field betas number[]? default {0.9, 0.999}
---@field eps number? default 1e-8
---@field weight_decay number? default 0.01
---@field master ("float32"|"stochastic"|"none")? for bfloat16 and float16 parameters; default "float32"
---@field states torch.dtype? of the moments: torch.bfloat16, or torch.float32 (default; for float64 parameters float64)

--- Constructor: optim.AdamW(params, {lr =, betas =, eps =, weight_decay =, master =, states =}). `params` is an array
--- of tensors, or of groups: `{{params = {...}, weight_decay = 0.1}, {params = {...}, lr = 1e-4}}`. A group's options
--- override the second argument. `optim.groups(model, {weight_decay = 0.1})` makes the usual two.
---
--- Parameters in bfloat16 and float16 train as well as float32 ones. By default, the optimizer keeps a float32 copy of
--- each, its master: 4 bytes per element. A step updates the master and rounds it into the parameter. Values that a
--- script writes into a parameter between two steps go into the master, too.
---
--- `master = "stochastic"` needs no such copy, for bfloat16. It rounds each update up or down at random, so that the
--- mean is exact. `master = "none"` rounds to nearest, which loses every step smaller than 0.2 % of the weight.
--- `states = torch.bfloat16` halves the memory of the moments. They are rounded at random (with "none" to nearest).
---
--- Source: AdamW, arXiv 1711.05101, as torch.optim.AdamW computes it.
---@param params torch.Tensor[]|table[]
---@param opts optim.AdamWOptions?
---@return optim.Optimizer
function M.AdamW(params, opts) return optimizer.new(adamw, params, opts) end

---@class optim.AdamW8bitOptions
---@field lr number? default 1e-3
---@field betas number[]? default {0.9, 0.999}
---@field eps number? default 1e-8
---@field weight_decay number? default 0.01
---@field master ("float32"|"stochastic"|"none")? as for optim.AdamW

--- Constructor: AdamW whose moments have 8 bits, in blocks of 256 that share a magnitude. They take 2 bytes of an
--- element, not 8. Parameters of fewer than 4,096 elements keep float32 moments. For parameters in bfloat16 give
--- `master = "stochastic"`, too: a float32 master alone takes 4 bytes of an element.
---
--- A state of a run holds the moments in float32, as optim.AdamW's does. Either can go on from it, on any number of
--- ranks. On as many as before the run goes on bit for bit.
---
--- Source: arXiv 2110.02861, as bitsandbytes' AdamW8bit computes it.
---@param params torch.Tensor[]|table[]
---@param opts optim.AdamW8bitOptions?
---@return optim.Optimizer
function M.AdamW8bit(params, opts) return optimizer.new(adamw8bit, params, opts) end

---@class optim.ScheduleFreeAdamWOptions
---@field lr number? default 2.5e-3
---@field betas number[]? default {0.9, 0.999}: of the average, and of the squares
---@field eps number? default 1e-8
---@field weight_decay number? default 0
---@field warmup_steps integer? default 0: steps in which the lr rises to its value
---@field r number? default 0: the average weighs step t by t ^ r
---@field weight_lr_power number? default 2: and by the largest lr so far to this power
---@field master ("float32"|"stochastic"|"none")? as for optim.AdamW

--- Constructor: AdamW without a schedule, whose result is an average of the weights. The lr stays as it is to the end,
--- so that a run can end at any step. Give `step` no factor.
---
--- While it trains, the parameters are not the result. sharding.evaluate, models.generate, models.save, lora.save and
--- run:keep_best use the average by themselves. For all else there is optimizer:averaged(fn), which gives the
--- parameters the average while fn runs, and their values back, bit for bit. run:state saves both.
---
--- Source: "The Road Less Scheduled", arXiv 2405.15682, as the authors' AdamWScheduleFree computes it.
---@param params torch.Tensor[]|table[]
---@param opts optim.ScheduleFreeAdamWOptions?
---@return optim.Optimizer
function M.ScheduleFreeAdamW(params, opts) return optimizer.new(schedule_free, params, opts) end

---@class optim.SGDOptions
---@field lr number? default 1e-3
---@field momentum number? default 0, which keeps no buffer
---@field nesterov boolean? default false
---@field weight_decay number? default 0; added to the gradient, as in PyTorch
---@field master ("float32"|"stochastic"|"none")? as for optim.AdamW
---@field states torch.dtype? of the momentum, as for optim.AdamW

--- Constructor: gradient descent, as torch.optim.SGD computes it without dampening. Groups, masters and moments in
--- bfloat16 are as in optim.AdamW.
---
---     local optimizer = optim.SGD(model:parameters(), { lr = 0.1, momentum = 0.9, nesterov = true })
---@param params torch.Tensor[]|table[]
---@param opts optim.SGDOptions?
---@return optim.Optimizer
function M.SGD(params, opts) return optimizer.new(sgd, params, opts) end

---@class optim.MuonOptions
---@field lr number? default 1e-3
---@field momentum number? default 0.95
---@field nesterov boolean? default true
---@field weight_decay number? default 0.1
---@field adjust_lr ("original"|"match_rms_adamw")? the second one takes the lr and weight decay of AdamW
---@field iterations integer? of Newton and Schulz; default 5
---@field coefficients number[]? of their polynomial; default {3.4445, -4.7750, 2.0315}
---@field eps number? least norm to divide by; default 1e-7
---@field precision ("bfloat16"|"float32")? of their products; default "bfloat16"
---@field master ("float32"|"stochastic"|"none")? as for optim.AdamW
---@field states torch.dtype? of the momentum, as for optim.AdamW

--- Constructor: momentum whose update is made orthogonal, for the matrices of hidden layers. A parameter that is no
--- matrix is an error. Embeddings, heads, norms and biases train by an optim.AdamW next to it:
---
---     local hidden, rest = {}, {}
---     for name, p in model:named_parameters() do
---       table.insert(p:dim() == 2 and name:find("^layers%.") and hidden or rest, p)
---     end
---     local muon, adamw = optim.Muon(hidden, { adjust_lr = "match_rms_adamw" }), optim.AdamW(rest)
---
--- Parameters of a model that is sharded (sharding.fully_shard) are 1-D parts: choose them by name, or by what p:dim()
--- was before. Ranks then exchange the updates of each unit, and share the work. step is collective.
---
--- Source: Keller Jordan, "Muon" (2024), as torch.optim.Muon computes it.
---@param params torch.Tensor[]|table[]
---@param opts optim.MuonOptions?
---@return optim.Optimizer
function M.Muon(params, opts) return optimizer.new(muon, params, opts) end

---@class optim.LionOptions
---@field lr number? default 1e-4
---@field betas number[]? default {0.9, 0.99}: of the update, and of the momentum
---@field weight_decay number? default 0
---@field master ("float32"|"stochastic"|"none")? as for optim.AdamW
---@field states torch.dtype? of the momentum, as for optim.AdamW

--- Constructor: moves each weight by lr, in the direction of the sign of its averaged gradient. It keeps one moment,
--- where AdamW keeps two. The authors advise a learning rate 3 to 10 times below AdamW's, and a weight decay as many
--- times above.
---
--- Source: arXiv 2302.06675, algorithm 2.
---@param params torch.Tensor[]|table[]
---@param opts optim.LionOptions?
---@return optim.Optimizer
function M.Lion(params, opts) return optimizer.new(lion, params, opts) end

---@class optim.AdafactorOptions
---@field lr number? the largest step, relative to the weights' root mean square; default 1e-2
---@field beta2_decay number? the squares of step t weigh t ^ beta2_decay; default -0.8
---@field eps number[]? default {2^-23, 1e-3}: least squares, and the least size of weights that steps are relative to
---@field d number? the root mean square that an update is cut to; default 1
---@field weight_decay number? default 0
---@field master ("float32"|"stochastic"|"none")? as for optim.AdamW

--- Constructor: AdamW without a momentum. In place of all squares it keeps the mean squares of a matrix's rows and
--- columns: 4 (rows + columns) bytes, where AdamW's moments take 8 rows columns. Steps are relative to the size of the
--- weights. Weights that tp splits are supported. Parameters of a sharded model are an error.
---
--- Source: arXiv 1804.04235, as torch.optim.Adafactor computes it.
---@param params torch.Tensor[]|table[]
---@param opts optim.AdafactorOptions?
---@return optim.Optimizer
function M.Adafactor(params, opts) return optimizer.new(adafactor, params, opts) end

--- Scales the gradients so that their joint norm is at most `max_norm`; returns the norm before,
--- a scalar tensor (no transfer from the device), in float32 for gradients of lower precision. Where gradients are
--- averaged over ranks each rank holds the same ones, and so gets the same norm. For a sharded model
--- (sharding.fully_shard) pass all trained parameters; the call is then collective and the norm is over all ranks.
--- Where one optimizer has all parameters, optimizer:step(factor, { max_grad_norm = 1 }) does the same in fewer passes.
---@param params torch.Tensor[]
---@param max_norm number
---@param opts {p: number?}? which norm; default 2, math.huge: the largest magnitude
---@return torch.Tensor
function M.clip_grad_norm(params, max_norm, opts)
  optimizer.check_array("optim.clip_grad_norm", params)
  local p_norm = options.read("optim.clip_grad_norm", opts, { p = 2 }).p
  if not (p_norm > 0) then core.raise("optim.clip_grad_norm: p must be a number above 0, not " .. p_norm) end
  clipping.check("optim.clip_grad_norm: max_norm", max_norm)
  fully_shard.check_spans("optim.clip_grad_norm", params)
  local sharded = fully_shard.model_of_all(params)
  if sharded then return sharded:clip_grad_norm(max_norm, { p = p_norm }) end
  return clipping.clip("optim.clip_grad_norm", params, max_norm, p_norm)
end

return M
