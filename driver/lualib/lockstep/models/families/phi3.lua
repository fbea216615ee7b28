--- Phi-3 (arXiv 2404.14219), Phi-3.5 and Phi-4 (arXiv 2412.08905): Llama whose projections of queries, keys and values
--- are one weight, qkv_proj, as are those of gate and up, gate_up_proj. So they are in memory, too, and adapters of
--- PEFT fit.

local config = require "lockstep.models.config"
local decoder = require "lockstep.models.decoder"
local nn = require "lockstep.nn"
local options = require "lockstep.options"
local plain = require "lockstep.plain"

---@class models.Phi3Attention: models.Attention
local Attention = decoder.Attention:subclass("Phi3Attention")

function Attention:init(c, index)
  local q_size, kv_size = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
  self.index, self.head_dim, self.window = index, c.head_dim, c.windows[index]
  self.qkv_proj = nn.Linear(c.hidden_size, q_size + 2 * kv_size, { bias = false })
  self.qkv_proj.sections = { q_size, kv_size, kv_size }
  self.o_proj = nn.Linear(q_size, c.hidden_size, { bias = false })
end

--- See Attention:project.
---@param x torch.Tensor
---@return torch.Tensor q
---@return torch.Tensor k
---@return torch.Tensor v
function Attention:project(x)
  local q, k, v = unpack(self.qkv_proj(x):split(self.qkv_proj.sections, -1))
  local tokens, dim = q:size(0), self.head_dim -- sharding.tensor_parallel may split the tokens of x
  return q:reshape(tokens, -1, dim), k:reshape(tokens, -1, dim), v:reshape(tokens, -1, dim)
end

--- down(silu(gate) * up), where one layer gives gate and up.
---@class models.Phi3Mlp: nn.Module
local Mlp = nn.Module:subclass("Phi3MLP")

function Mlp:init(hidden, intermediate)
  self.gate_up_proj = nn.Linear(hidden, 2 * intermediate, { bias = false })
  self.gate_up_proj.sections = { intermediate, intermediate }
  self.down_proj = nn.Linear(intermediate, hidden, { bias = false })
end

function Mlp:forward(x)
  local gate, up = unpack(self.gate_up_proj(x):chunk(2, -1))
  return self.down_proj(nn.swiglu(gate, up))
end

---@class models.Phi3: models.CausalLM
local Phi3 = decoder.CausalLM:subclass("Phi3ForCausalLM")
Phi3.model_type = "phi3"
-- transformers reads embd_pdrop, and drops nothing.
Phi3.keys = decoder.keys { rms_norm_eps = 1e-5, sliding_window = options.optional,
  max_position_embeddings = 4096, resid_pdrop = 0, embd_pdrop = 0,
  partial_rotary_factor = 1, original_max_position_embeddings = 4096 }

--- See CausalLM.tensor_plan. A rank has its rows of each of the weights that are one behind another.
---@return table<string, "column"|"row"|"vocabulary">
function Phi3.tensor_plan()
  return { embed_tokens = "vocabulary", lm_head = "vocabulary", ["layers.*.self_attn.qkv_proj"] = "column",
    ["layers.*.self_attn.o_proj"] = "row", ["layers.*.mlp.gate_up_proj"] = "column",
    ["layers.*.mlp.down_proj"] = "row" }
end

--- See CausalLM.read.
---@param c table<string, any>
function Phi3.read(c)
  plain.check(c.resid_pdrop == 0, 'models: Phi3ForCausalLM: "resid_pdrop" is %s; only 0 is supported',
    tostring(c.resid_pdrop))
  -- transformers takes "yarn" of these models for longrope.
  local rope = c.rope
  if rope.rope_type == "su" or rope.rope_type == "yarn" then rope.rope_type = "longrope" end
  local share = rope.partial_rotary_factor or c.partial_rotary_factor
  plain.check(type(share) == "number" and share > 0 and share <= 1,
    "models: Phi3ForCausalLM: partial_rotary_factor must be a number above 0 and at most 1, got %s", tostring(share))
  rope.partial_rotary_factor, c.rotary_dim = nil, math.floor(c.head_dim * share)
  if rope.rope_type == "longrope" then
    rope.original_max_position_embeddings = c.original_max_position_embeddings
    rope.factor = rope.factor or c.max_position_embeddings / rope.original_max_position_embeddings
  end
  c.use_sliding_window, c.max_window_layers = true, 0
  c.windows = config.windows(c)
end

--- See CausalLM.mlp.
---@param c table<string, any>
---@return nn.Module
function Phi3.mlp(c) return Mlp(c.hidden_size, c.intermediate_size) end

--- See CausalLM.layer.
---@param c table<string, any>
---@param index integer from 1
---@param mlp nn.Module
---@return nn.Module
function Phi3.layer(c, index, mlp) return decoder.Layer(c, index, mlp, Attention(c, index)) end

return { Phi3 = Phi3 }
