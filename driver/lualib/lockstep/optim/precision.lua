--- Keeps the precision of optimizers whose parameters or moments are stored in a low-precision dtype.
---
--- A bfloat16 number differs from its neighbor by 0.4 to 0.8 %. Most steps of training are smaller than half of
--- that: rounded to nearest, they leave the weight where it was. There are three ways:
---   "float32"     The optimizer keeps each weight in float32, too (a master), and rounds it into the parameter.
---   "stochastic"  The weight has no master. It is rounded up or down at random, so that it is right on average.
---   "none"        The weight is rounded to nearest, as PyTorch's AdamW does.
---
--- The random bits are a function of the step, the parameter's position and the element. So replicas on several ranks
--- stay equal, a resumed run continues with the same bits, and a CUDA graph draws new ones in each replay.

local core = require "lockstep.core"
local plain = require "lockstep.plain"
local torch = require "lockstep.torch"

local M = {}

local MASTERS = { float32 = true, stochastic = true, none = true }
local IS_LOW = { [torch.bfloat16] = true, [torch.float16] = true }

--- Returns whether a tensor is bfloat16 or float16.
---@param x torch.Tensor
---@return boolean
function M.is_low(x) return IS_LOW[x.dtype] == true end

---@class optim.Policy how one group keeps its precision
---@field master "float32"|"stochastic"|"none"
---@field states torch.dtype of the moments

--- Returns the options `master` and `states` as a policy. Throws where they are not valid, or not valid for `params`.
---@param name string the optimizer, for messages
---@param master any
---@param states any
---@param params torch.Tensor[]
---@return optim.Policy
function M.policy(name, master, states, params)
  plain.check(MASTERS[master], '%s: master must be "float32", "stochastic" or "none", not "%s"', name, master)
  if states ~= torch.float32 and states ~= torch.bfloat16 then
    core.raise(string.format("%s: states must be torch.float32 or torch.bfloat16, not %s", name,
      torch.is_tensor(states) and "a tensor" or tostring(states)))
  end
  for i, p in ipairs(params) do
    plain.check(master ~= "stochastic" or p.dtype ~= torch.float16, '%s: master = "stochastic" rounds to bfloat16, but '
      .. 'parameter %d is float16; use master = "float32" for it', name, i)
  end
  return { master = master, states = states }
end

local function moments_dtype(p, policy)
  return p.dtype == torch.float64 and policy.states == torch.float32 and torch.float64 or policy.states
end

--- Returns the dtype in which a step of the parameter is computed.
local function arithmetic_dtype(p, policy)
  if not M.is_low(p) then return p.dtype end
  return policy.master == "none" and policy.states == p.dtype and p.dtype or torch.float32
end

--- Returns new state tensors of a parameter: its count of steps and, where the policy asks for one, a master.
---@param p torch.Tensor
---@param policy optim.Policy
---@return table<string, torch.Tensor>
function M.new_state(p, policy)
  -- float32 whatever the default dtype: the kernel reads it as float32 on a GPU.
  local state = { step = torch.zeros({}, { device = p.device, dtype = torch.float32 }) }
  if M.is_low(p) and policy.master == "float32" then state.master = p:detach():float() end
  return state
end

--- Returns a new moment of a parameter, of zeros.
---@param p torch.Tensor
---@param policy optim.Policy
---@return torch.Tensor
function M.new_moment(p, policy) return torch.zeros_like(p:detach(), { dtype = moments_dtype(p, policy) }) end

-- Masters ---------------------------------------------------------------------------------------------

-- The versions of each parameter and its master after the optimizer's last write: {parameter's, master's}.
local versions = setmetatable({}, { __mode = "k" })

local function note_versions(p, master) versions[p] = { p:_version(), master:_version() } end

--- Lets the master follow what something else wrote into the parameter, loaded weights for example. Elements that
--- still are the rounded master keep the master's bits. A graph that is being recorded does so in each call.
local function refresh_master(p, master)
  local known = not torch.cuda.is_current_stream_capturing() and versions[p]
  if known and known[1] == p:_version() and known[2] == master:_version() then return end
  master:copy_(torch.where(torch.eq(p, master:to(p.dtype)), master, p:float()))
end

-- Rounding --------------------------------------------------------------------------------------------

--- Returns int32 numbers from 0 to 65535, one per element, that depend on the step and the salt.
local function random_bits(like, step, salt)
  local key = step:to(torch.int32):mul(-1640531535):add(bit.tobit(salt * 668265263))
  local x = torch.arange(like:numel(), { dtype = torch.int32, device = like.device })
  x:mul_(-2048144789):add_(key)
  x:bitwise_xor_(x:bitwise_right_shift(15):bitwise_and_(0x1ffff))
  x:mul_(-1028477387)
  x:bitwise_xor_(x:bitwise_right_shift(13):bitwise_and_(0x7ffff))
  x:mul_(-1640531535)
  return x:bitwise_right_shift_(16):bitwise_and_(0xffff):view(like.shape)
end

--- Writes float32 numbers into a bfloat16 tensor, each rounded to one of its two neighbors: the nearer one is the
--- likelier, so that the mean is exact. A number that bfloat16 can hold stays as it is.
---@param into torch.Tensor
---@param from torch.Tensor
---@param step torch.Tensor a scalar
---@param salt integer
local function round_stochastically(into, from, step, salt)
  from = from:float()
  -- bfloat16 is the upper half of float32: adding to the lower half carries as often as it is large.
  local bits = from:view(torch.int32) + random_bits(from, step, salt)
  -- The carry would turn a NaN into a number.
  into:copy_(torch.where(from:isfinite(), bits:bitwise_and_(-65536):view(torch.float32), from))
end

-- Steps -----------------------------------------------------------------------------------------------

--- Returns whether two tensors of one shape have their elements in the same places of memory.
---@param a torch.Tensor
---@param b torch.Tensor
---@return boolean
function M.same_layout(a, b)
  if a:is_contiguous() and b:is_contiguous() then return true end
  local strides_a, strides_b = a:stride(), b:stride()
  for i, stride in ipairs(strides_a) do
    if stride ~= strides_b[i] then return false end
  end
  return true
end

--- The parameters that one call of a fused kernel updates. The kernel wants one device, for each parameter one layout,
--- and, unless it takes all dtypes, one dtype. The bucket copies what differs, and copies the results back.
---@class optim.Bucket
---@field owners torch.Tensor[] the optimizer's parameters
---@field params torch.Tensor[] these, grads, steps and moments are what the kernel takes
---@field grads torch.Tensor[]
---@field steps torch.Tensor[]
---@field states table<string, torch.Tensor>[] all that the optimizer keeps of a parameter
---@field moments table<string, torch.Tensor[]> by name
---@field takes_all_dtypes boolean whether the kernel takes, and rounds, each tensor in its own dtype
---@field kernel_masters torch.Tensor[] if so: the masters, of all parameters or of none,
---@field salts integer[] and, of all or of none, the salts of parameters that are rounded at random
---@field copied integer elements in copies
---@field grad_dtypes torch.dtype[] of the kernel's gradients
local Bucket = {}
Bucket.__index = Bucket

--- A bucket is run once its copies have this many elements: 256 MiB in float32.
M.MAX_COPIED = 2 ^ 26

---@param moments string[] their names
---@param takes_all_dtypes boolean
---@return optim.Bucket
function M.bucket(moments, takes_all_dtypes)
  local by_name = {}
  for _, name in ipairs(moments) do by_name[name] = {} end
  return setmetatable({
    takes_all_dtypes = takes_all_dtypes, kernel_masters = {}, salts = {},
    owners = {}, params = {}, grads = {}, grad_dtypes = {}, steps = {}, states = {}, moments = by_name, names = moments,
    copied = 0,
    sources = {}, copies = {}, results = {}, targets = {}, roundings = {}, masters = {},
  }, Bucket)
end

--- Returns whether a step rounds a tensor of the parameter at random.
local function rounds_at_random(p, policy)
  return policy.master ~= "none" and (policy.states == torch.bfloat16 or M.is_low(p) and policy.master == "stochastic")
end

--- Returns whether a kernel that takes all dtypes can update the parameter. It computes in float64 only if all is
--- float64.
---@param p torch.Tensor
---@param policy optim.Policy
---@return boolean
function M.fits_one_pass(p, policy)
  return (p.dtype == torch.float64) == (moments_dtype(p, policy) == torch.float64)
end

--- Returns the key of the bucket that a parameter belongs to.
---@param p torch.Tensor
---@param policy optim.Policy
---@param takes_all_dtypes boolean
---@return string
function M.bucket_key(p, policy, takes_all_dtypes)
  if not takes_all_dtypes then return p.device .. tostring(arithmetic_dtype(p, policy)) end
  local has_master = M.is_low(p) and policy.master == "float32"
  return p.device .. (has_master and " master" or " plain") .. (rounds_at_random(p, policy) and " random" or "")
end

--- Returns the tensor as the kernel takes it: itself, or memory that is filled before the kernel runs.
---@param tensor torch.Tensor
---@param like torch.Tensor whose layout the kernel expects
---@param dtype torch.dtype
---@return torch.Tensor
function Bucket:input(tensor, like, dtype)
  if tensor.dtype == dtype and M.same_layout(like, tensor) then return tensor end
  local copy = torch.empty_like(like, { dtype = dtype })
  self.copied = self.copied + like:numel()
  table.insert(self.sources, tensor)
  table.insert(self.copies, copy)
  return copy
end

--- Notes that the kernel's result goes into `target`, to be rounded at random or to nearest.
---@param result torch.Tensor
---@param target torch.Tensor
---@param rounding {step: torch.Tensor, salt: integer}? at random; false or nil: to nearest
function Bucket:output(result, target, rounding)
  if result == target then return end
  if rounding and target.dtype == torch.bfloat16 then
    rounding.result, rounding.target = result, target
    table.insert(self.roundings, rounding)
  else
    table.insert(self.results, result)
    table.insert(self.targets, target)
  end
end

--- Adds a parameter for a kernel that takes all dtypes: each tensor as it is where its layout fits.
---@param p torch.Tensor
---@param state table<string, torch.Tensor>
---@param policy optim.Policy
---@param position integer of the parameter in the optimizer
function Bucket:add_as_is(p, state, policy, position)
  local n, grad = #self.params + 1, p.grad
  local at_random = rounds_at_random(p, policy)
  -- The random bits belong to the position of an element, which must be its place in memory.
  local param = at_random and not p:is_contiguous() and p:detach():contiguous() or p
  local grad_dtype = grad.dtype == torch.float32 and M.is_low(p) and grad.dtype or p.dtype
  self.params[n], self.grads[n], self.grad_dtypes[n] = param, self:input(grad, param, grad_dtype), grad_dtype
  self:output(param, p)
  for _, name in ipairs(self.names) do
    self.moments[name][n] = self:input(state[name], param, state[name].dtype)
    self:output(self.moments[name][n], state[name])
  end
  if state.master then
    self.kernel_masters[n] = self:input(state.master, param, torch.float32)
    self:output(self.kernel_masters[n], state.master)
  end
  if at_random then self.salts[n] = 3 * position end
end

--- Adds a parameter for a kernel that wants one dtype.
---@param p torch.Tensor
---@param state table<string, torch.Tensor>
---@param policy optim.Policy
---@param position integer of the parameter in the optimizer
function Bucket:add_in_one_dtype(p, state, policy, position)
  local dtype, n = arithmetic_dtype(p, policy), #self.params + 1
  local function rounding(salt)
    return policy.master ~= "none" and { step = state.step, salt = 3 * position + salt } or nil
  end
  self.params[n] = state.master or self:input(p, p, dtype)
  self.grads[n] = self:input(p.grad, p, dtype)
  self:output(self.params[n], p, not state.master and rounding(0))
  for salt, name in ipairs(self.names) do
    self.moments[name][n] = self:input(state[name], p, dtype)
    self:output(self.moments[name][n], state[name], rounding(salt))
  end
end

--- Adds a parameter that has a gradient.
---@param p torch.Tensor
---@param state table<string, torch.Tensor>
---@param policy optim.Policy
---@param position integer of the parameter in the optimizer
function Bucket:add(p, state, policy, position)
  local n = #self.params + 1
  if state.master then table.insert(self.masters, { p, state.master }) end
  self.owners[n], self.steps[n], self.states[n] = p, state.step, state
  -- One of the two makes functions, which LuaJIT does not compile.
  if self.takes_all_dtypes then
    self:add_as_is(p, state, policy, position)
  else
    self:add_in_one_dtype(p, state, policy, position)
  end
end

--- Returns whether the kernel takes every tensor as it is. Another step can then run this bucket with new gradients.
---@return boolean
function Bucket:is_reusable()
  return self.takes_all_dtypes and #self.copies == 0 and #self.targets == 0 and #self.roundings == 0
end

--- Takes the gradient that parameter `n` of a reusable bucket has now. Returns whether the kernel takes it as it is.
---@param n integer
---@return boolean
function Bucket:take_gradient(n)
  local grad = self.owners[n].grad
  if not grad or grad.dtype ~= self.grad_dtypes[n] or not M.same_layout(self.params[n], grad) then return false end
  self.grads[n] = grad
  return true
end

--- Counts the steps, calls the kernel and stores what it computed. Forgets the gradients.
---@param kernel fun(bucket: optim.Bucket) which counts the steps if it takes all dtypes
function Bucket:run(kernel)
  for _, pair in ipairs(self.masters) do refresh_master(pair[1], pair[2]) end
  if #self.copies > 0 then torch._foreach_copy_(self.copies, self.sources) end
  if not self.takes_all_dtypes then torch._foreach_add_(self.steps, 1) end
  kernel(self)
  self.grads = {}
  if #self.targets > 0 then torch._foreach_copy_(self.targets, self.results) end
  for _, r in ipairs(self.roundings) do round_stochastically(r.target, r.result, r.step, r.salt) end
  for _, pair in ipairs(self.masters) do note_versions(pair[1], pair[2]) end
end

return M
