--- The model that the tests of LoRA adapt. tests/lora/tiny.py is the same in Python.

local data = require "lockstep.data"
local nn = require "lockstep.nn"
local torch = require "lockstep.torch"

local M = {}

local VOCABULARY, HIDDEN, WIDE, EXPERTS, INNER = 11, 6, 10, 3, 5

local Attention = nn.Module:subclass("Attention")

function Attention:init()
  self.q_proj = nn.Linear(HIDDEN, WIDE)
  self.v_proj = nn.Linear(HIDDEN, WIDE, { bias = false })
  self.o_proj = nn.Linear(WIDE, HIDDEN)
end

function Attention:forward(x) return x + self.o_proj(torch.tanh(self.q_proj(x)) * self.v_proj(x)) end

local Tiny = nn.Module:subclass("Tiny")

function Tiny:init()
  self.embed_tokens = nn.Embedding(VOCABULARY, HIDDEN)
  self.layers = nn.ModuleList { Attention(), Attention() }
  self.lm_head = nn.Linear(HIDDEN, VOCABULARY, { bias = false })
end

function Tiny:forward(ids)
  local x = self.embed_tokens(ids)
  for _, layer in ipairs(self.layers) do x = layer(x) end
  return self.lm_head(x)
end

M.Tiny = Tiny

local Experts = nn.Module:subclass("Experts")

function Experts:init()
  self.gate_up_proj = torch.empty({ EXPERTS, 2 * INNER, HIDDEN }):requires_grad_(true)
  self.down_proj = torch.empty({ EXPERTS, HIDDEN, INNER }):requires_grad_(true)
end

function Experts:forward(x)
  local gate, up = unpack(torch.einsum("th,eoh->teo", { x, self.gate_up_proj }):chunk(2, -1))
  return torch.einsum("tei,ehi->th", { torch.silu(gate) * up, self.down_proj })
end

local TinyMixture = nn.Module:subclass("TinyMixture")

function TinyMixture:init()
  self.embed_tokens = nn.Embedding(VOCABULARY, HIDDEN)
  self.q_proj = nn.Linear(HIDDEN, HIDDEN)
  self.experts = Experts()
  self.lm_head = nn.Linear(HIDDEN, VOCABULARY, { bias = false })
end

function TinyMixture:forward(ids)
  local x = self.embed_tokens(ids)
  return self.lm_head(x + self.experts(self.q_proj(x)))
end

M.FIXTURES = "tests/lora/fixtures"

--- The model that a case is about, with the fixtures' weights.
---@param case string
---@param dtype torch.dtype?
---@return nn.Module
function M.base_of(case, dtype)
  local is_mixture = case:find("experts", 1, true)
  local model = is_mixture and TinyMixture() or Tiny()
  model:load_state_dict((data.safetensors(M.FIXTURES .. (is_mixture and "/base_experts" or "/base") .. ".safetensors")))
  return model:to { dtype = dtype }
end

--- The model of most cases.
---@param dtype torch.dtype?
---@return nn.Module
function M.base(dtype) return M.base_of("plain", dtype) end

--- The loss that the fixtures' gradients are of.
---@param logits torch.Tensor
---@return torch.Tensor
function M.loss(logits)
  return torch.sum(logits:float() * torch.arange(logits:numel(), { dtype = torch.float32 }):reshape(logits.shape):cos())
end

return M
