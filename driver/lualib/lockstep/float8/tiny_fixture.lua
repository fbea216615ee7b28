--- Small models whose layers have multiples of 16, for tests of lockstep.float8.

local models = require "lockstep.models"
local optim = require "lockstep.optim"
local torch = require "lockstep.torch"

local M = {}

--- Keys of config.json of a mixture of experts.
M.MIXTURE = { architectures = { "Qwen3MoeForCausalLM" }, model_type = "qwen3_moe", num_experts = 4,
  num_experts_per_tok = 2, moe_intermediate_size = 16, norm_topk_prob = true }

--- A model of Qwen3's shape, with the same numbers in each call.
---@param changes table? other keys of config.json
---@param dtype torch.dtype?
---@param device string?
function M.model(changes, dtype, device)
  local config = { architectures = { "Qwen3ForCausalLM" }, model_type = "qwen3", tie_word_embeddings = false,
    max_position_embeddings = 64, rope_theta = 10000, vocab_size = 48, hidden_size = 32, num_hidden_layers = 2,
    num_attention_heads = 2, num_key_value_heads = 1, head_dim = 16, intermediate_size = 64 }
  for key, value in pairs(changes or {}) do config[key] = value end
  torch.manual_seed(1)
  return models.build(config, { dtype = dtype, device = device })
end

--- One of 3 batches that repeat.
---@param step integer
---@param rank integer?
function M.batch(step, rank)
  return { input_ids = (torch.arange(21) * (5 + 2 * (step % 3)) + step % 3 + 7 * (rank or 0)):remainder(48),
    seq_lens = { 9, 12 } }
end

---@return torch.Tensor
function M.loss(model, batch)
  local sum, count = model(batch, "loss")
  return sum / count
end

--- Returns the loss of one batch, and the gradients.
function M.step(model, batch)
  local loss = M.loss(model, batch)
  loss:backward()
  local gradients = {}
  for name, p in model:named_parameters() do gradients[name] = p.grad end
  return loss:item(), gradients
end

--- Trains, and returns the mean loss of the first and of the last 3 steps.
function M.train(model, steps, loss_of)
  local optimizer = optim.AdamW(model:parameters(), { lr = 3e-3 })
  local first, last = 0, 0
  for step = 1, steps do
    local loss = (loss_of or function(i) return M.loss(model, M.batch(i)) end)(step)
    loss:backward()
    optimizer:step()
    optimizer:zero_grad()
    if step <= 3 then first = first + loss:item() / 3 end
    if step > steps - 3 then last = last + loss:item() / 3 end
  end
  return first, last
end

return M
