--- Tiny models on grids against one rank with the whole model and all micro-batches, in float64.

local copy = require("lockstep.plain").copy
local core = require "lockstep.core"
local dist = require "lockstep.distributed"
local lora = require "lockstep.lora"
local models = require "lockstep.models"
local optim = require "lockstep.optim"
local sharding = require "lockstep.sharding"
local splits = require "lockstep.nn.splits"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local M = {}

local SHAPE = { vocab_size = 61, hidden_size = 16, intermediate_size = 24, num_hidden_layers = 2,
  num_attention_heads = 4, num_key_value_heads = 2, head_dim = 8, rope_theta = 10000, max_position_embeddings = 512,
  initializer_range = 0.3 }

local function with(more)
  local config = {}
  for key, value in pairs(SHAPE) do config[key] = value end
  for key, value in pairs(more) do config[key] = value end
  return config
end

--- Configs by the name of a form.
M.CONFIGS = {
  qwen3 = with { architectures = { "Qwen3ForCausalLM" }, model_type = "qwen3", num_key_value_heads = 4 },
  qwen3_tied = with { architectures = { "Qwen3ForCausalLM" }, model_type = "qwen3", tie_word_embeddings = true,
    num_key_value_heads = 4, attention_bias = true },
  qwen3_few_kv = with { architectures = { "Qwen3ForCausalLM" }, model_type = "qwen3", attention_bias = true },
  qwen3_moe = with { architectures = { "Qwen3MoeForCausalLM" }, model_type = "qwen3_moe", num_key_value_heads = 4,
    num_experts = 4, num_experts_per_tok = 2, moe_intermediate_size = 12, norm_topk_prob = true,
    output_router_logits = true, router_aux_loss_coef = 0.05 },
  mixtral = with { architectures = { "MixtralForCausalLM" }, model_type = "mixtral", num_local_experts = 8,
    num_experts_per_tok = 2, output_router_logits = true, router_aux_loss_coef = 0.05 },
  qwen3_next = with { architectures = { "Qwen3NextForCausalLM" }, model_type = "qwen3_next", num_key_value_heads = 4,
    num_hidden_layers = 3, layer_types = { "linear_attention", "full_attention", "linear_attention" }, num_experts = 4,
    num_experts_per_tok = 2, moe_intermediate_size = 12, shared_expert_intermediate_size = 10,
    linear_key_head_dim = 4, linear_value_head_dim = 6, linear_num_key_heads = 2, linear_num_value_heads = 4,
    output_router_logits = true, router_aux_loss_coef = 0.05 },
  qwen3_vl = { architectures = { "Qwen3VLForConditionalGeneration" }, model_type = "qwen3_vl", image_token_id = 57,
    video_token_id = 58, tie_word_embeddings = false,
    text_config = with { num_key_value_heads = 4, num_hidden_layers = 3, rope_theta = 5000,
      rope_parameters = { rope_type = "default", mrope_section = { 2, 1, 1 }, mrope_interleaved = true } },
    vision_config = { depth = 2, hidden_size = 16, intermediate_size = 20, num_heads = 2, patch_size = 2,
      temporal_patch_size = 2, in_channels = 3, spatial_merge_size = 2, out_hidden_size = 16,
      num_position_embeddings = 16, deepstack_visual_indexes = { 0, 1 }, hidden_act = "gelu_pytorch_tanh" } },
}
M.CONFIGS.qwen3_judge = copy(M.CONFIGS.qwen3, { architectures = { "Qwen3ForSequenceClassification" }, num_labels = 1 })
M.CONFIGS.qwen3_vl.text_config.rope_theta = nil
M.CONFIGS.qwen3_vl.text_config.rope_parameters.rope_theta = 5000
M.CONFIGS.qwen3_vl_moe = copy(M.CONFIGS.qwen3_vl, { model_type = "qwen3_vl_moe",
  architectures = { "Qwen3VLMoeForConditionalGeneration" },
  text_config = copy(M.CONFIGS.qwen3_vl.text_config, { num_experts = 4, num_experts_per_tok = 2,
    moe_intermediate_size = 12 }) })


-- Families whose attention or MLP is not Llama's. Two layers: of some one has a window, or is dense.
local WINDOWS = { sliding_window = 5, layer_types = { "sliding_attention", "full_attention" } }
M.CONFIGS.olmo3 = with(copy(WINDOWS, { architectures = { "Olmo3ForCausalLM" }, model_type = "olmo3",
  attention_bias = true }))
M.CONFIGS.phi3 = with { architectures = { "Phi3ForCausalLM" }, model_type = "phi3", sliding_window = 7,
  partial_rotary_factor = 0.75 }
-- Sequences of more than 8 tokens have other frequencies.
M.CONFIGS.phi3_long = copy(M.CONFIGS.phi3, { sliding_window = core.null, max_position_embeddings = 64,
  original_max_position_embeddings = 8,
  rope_scaling = { rope_type = "longrope", short_factor = { 1, 1.1, 1.4 }, long_factor = { 1.5, 2.5, 6 } } })
M.CONFIGS.granite = with { architectures = { "GraniteForCausalLM" }, model_type = "granite", logits_scaling = 2,
  embedding_multiplier = 3, residual_multiplier = 0.6, attention_multiplier = 0.4, tie_word_embeddings = true }
M.CONFIGS.gpt_oss = with(copy(WINDOWS, { architectures = { "GptOssForCausalLM" }, model_type = "gpt_oss",
  num_local_experts = 4, num_experts_per_tok = 2, output_router_logits = true, router_aux_loss_coef = 0.05 }))
M.CONFIGS.gemma3 = with(copy(WINDOWS, { architectures = { "Gemma3ForCausalLM" }, model_type = "gemma3_text",
  query_pre_attn_scalar = 11, tie_word_embeddings = true }))
M.CONFIGS.gemma3_vision = { architectures = { "Gemma3ForConditionalGeneration" }, model_type = "gemma3",
  image_token_index = 57, mm_tokens_per_image = 4, text_config = copy(M.CONFIGS.gemma3),
  vision_config = { hidden_size = 16, intermediate_size = 20, num_hidden_layers = 1, num_attention_heads = 2,
    num_channels = 3, image_size = 8, patch_size = 2 } }
M.CONFIGS.deepseek_v3 = with { architectures = { "DeepseekV3ForCausalLM" }, model_type = "deepseek_v3",
  num_key_value_heads = 4, head_dim = 4, kv_lora_rank = 6, q_lora_rank = 10, qk_nope_head_dim = 6,
  qk_rope_head_dim = 4, v_head_dim = 7, n_routed_experts = 4, n_group = 2, topk_group = 1, num_experts_per_tok = 2,
  moe_intermediate_size = 12, n_shared_experts = 1, first_k_dense_replace = 1 }
M.CONFIGS.deepseek_v3_plain = copy(M.CONFIGS.deepseek_v3, { q_lora_rank = core.null, first_k_dense_replace = 0 })

--- Returns a model of a form, the same on every rank.
---@param form string
---@param seed integer
---@param adapter lora.Options?
---@return models.CausalLM
function M.build(form, seed, adapter)
  torch.manual_seed(seed)
  local model = models.build(M.CONFIGS[form], { dtype = torch.float64 })
  if not adapter then return model end
  lora.apply(model, adapter)
  for name, p in model:named_parameters() do -- an update that is not 0
    if name:find "lora_B" then torch.no_grad(p.uniform_, p, -0.1, 0.1) end
  end
  return model
end

--- A micro-batch: two sequences of 16 tokens together; for models of pictures one sequence has one.
---@param form string
---@param generator_seed integer
---@return models.Batch
function M.new_batch(form, generator_seed)
  torch.manual_seed(generator_seed)
  local first = 3 + torch.randint(9, {}):item()
  local batch = { input_ids = torch.randint(56, { 16 }), seq_lens = { first, 16 - first },
    loss_mask = torch.rand({ 16 }):gt(0.2) }
  batch.loss_mask[first - 1] = true
  if form:find "^qwen3_vl" then
    batch.image_grid_thw = torch.tensor({ { 1, 2, 4 } }, { dtype = torch.int64 })
    batch.pixel_values = torch.randn { 8, 24 }
    batch.input_ids[{ { first, first + 2 } }]:fill_(57)
  elseif form == "gemma3_vision" then
    batch.image_grid_thw = torch.tensor({ { 1, 4, 4 } }, { dtype = torch.int64 })
    batch.pixel_values = torch.randn { 16, 12 }
    batch.input_ids[{ { first, first + 4 } }]:fill_(57)
  end
  return batch
end

--- Returns the micro-batches of a step: of each dp row, then in the order of the micro-steps.
---@return models.Batch[][]
function M.batches(form, seed, step, rows, micro_steps)
  local all = {}
  for row = 1, rows do
    all[row] = {}
    for i = 1, micro_steps do all[row][i] = M.new_batch(form, ((seed * 10 + step) * 100 + row) * 10 + i) end
  end
  return all
end

--- Returns the number of tokens with a loss.
---@param batches models.Batch[][]
---@return integer
function M.count(batches)
  local count = 0
  for _, row in ipairs(batches) do
    for _, batch in ipairs(row) do
      local start = 0
      for _, length in ipairs(batch.seq_lens) do
        count = count + batch.loss_mask[{ { start + 1, start + length } }]:sum():item()
        start = start + length
      end
    end
  end
  return count
end

--- Returns the sum of a micro-batch's losses, and their count.
function M.loss_of(model, batch) return model(batch, "loss") end

--- Whether these are of the whole micro-batch also where cp cuts it: see sharding.accumulate.
M.is_whole = false

local STEPS, MAX_NORM = 3, 0.5

--- Micro-batches of each row of dp in a step.
M.micro_steps = 2

local function new_optimizer(params) return optim.AdamW(params, { lr = 0.01, weight_decay = 0.1 }) end

--- Trains on one rank. Returns the losses, norms, the model and the optimizer.
function M.train_alone(form, seed, rows, steps, adapter)
  local model = M.build(form, seed, adapter)
  local optimizer, losses, norms = new_optimizer(model:parameters()), {}, {}
  for step = 1, steps or STEPS do
    local batches, sum = M.batches(form, seed, step, rows, M.micro_steps), 0
    local count = M.count(batches)
    for _, row in ipairs(batches) do
      for _, batch in ipairs(row) do
        local loss, own = M.loss_of(model, batch)
        torch.mul(loss, 1 / count):backward()
        sum = sum + loss:item()
        assert(own > 0)
      end
    end
    losses[step] = sum / count
    norms[step] = optim.clip_grad_norm(model:parameters(), MAX_NORM):item()
    optimizer:step()
    optimizer:zero_grad()
  end
  return losses, norms, model, optimizer
end

--- The same, computed on rank 0 alone, for all ranks. Collective.
function M.train_on_rank_0(form, seed, rows, steps, adapter)
  local losses, norms, model
  if dist.rank() == 0 then
    losses, norms, model = M.train_alone(form, seed, rows, steps, adapter)
  else
    model = M.build(form, seed, adapter)
  end
  for _, p in ipairs(model:parameters()) do dist.broadcast(p:detach(), 0) end
  local learnt = dist.all_gather_object { losses, norms }[1]
  return learnt[1], learnt[2], model
end

--- Returns the micro-batches of a dp row of the grid, of those of all rows.
local function own_batches(all, grid)
  local own = {}
  for row = grid:rank "dp" + 1, #all, grid.dp do
    for _, batch in ipairs(all[row]) do own[#own + 1] = batch end
  end
  return own
end

--- Trains on a grid, in steps `first` to `steps`. `rows`: of the data, a multiple of grid.dp, their default.
---@param o table {form: string, seed: integer, sync: string?, clip: string?, rows: integer?, first: integer?, ...}
function M.train(model, optimizer, grid, o)
  local losses, norms = {}, {}
  for step = o.first or 1, o.steps or STEPS do
    local batches = M.batches(o.form, o.seed, step, o.rows or grid.dp, M.micro_steps)
    local loss = sharding.accumulate(model, own_batches(batches, grid), M.count(batches), function(batch)
      return M.loss_of(model, batch)
    end, { sync = o.sync, whole = M.is_whole })
    losses[#losses + 1] = loss:item()
    norms[#norms + 1] = (o.clip == "model" and model:clip_grad_norm(MAX_NORM)
      or optim.clip_grad_norm(model:parameters(), MAX_NORM)):item()
    optimizer:step()
    optimizer:zero_grad()
  end
  return losses, norms
end

--- Returns whole weights by name: of a net, or of what parallelize returned.
---@return table<string, torch.Tensor>
function M.whole(model)
  local state = model:state_dict()
  for name, p in model:named_parameters() do
    local split = splits.of(p)
    if split then state[name] = splits.whole(p, split) end
  end
  return state
end

--- Fails unless two lists of numbers, or states, are the same within 1e-10 of their size.
---@param actual table
---@param expected table
---@param what string
function M.same(actual, expected, what)
  for key, value in pairs(expected) do
    if torch.is_tensor(value) then
      t.near(actual[key], value, 1e-10 * (1 + value:abs():max():item()), what .. ", " .. key)
    else
      local difference = math.abs(actual[key] - value)
      t.truthy(difference <= 1e-10 * (1 + math.abs(value)),
        ("%s %s: %.17g, not %.17g, off by %.3g"):format(what, key, actual[key], value, difference))
    end
  end
end

--- Trains a form on a grid, and fails unless losses, norms and weights are those of one rank.
---@param sizes table for sharding.grid
---@param opts table for sharding.parallelize
---@param o table {form: string, seed: integer, sync: string?, clip: string?, lora: lora.Options?, alone: function?},
--- where `alone` takes the place of train_on_rank_0
---@return sharding.FullyShard|sharding.DataParallel
---@return models.CausalLM plain trained on one rank
function M.check(sizes, opts, o)
  local grid = sharding.grid(sizes)
  local what = ("%s, seed %d, %s, rank %d"):format(o.form, o.seed, tostring(grid), dist.rank())
  local losses, norms, plain = (o.alone or M.train_on_rank_0)(o.form, o.seed, grid.dp, nil, o.lora)
  local model = sharding.parallelize(M.build(o.form, o.seed, o.lora), grid, opts)
  local optimizer = new_optimizer(model:parameters())
  local own_losses, own_norms = M.train(model, optimizer, grid, o)
  M.same(own_losses, losses, what .. ", loss")
  M.same(own_norms, norms, what .. ", norm")
  local whole, expected = M.whole(model), copy(plain:state_dict())
  if grid.pp > 1 then -- a stage has its own weights alone
    for name in pairs(plain:state_dict()) do expected[name] = whole[name] and expected[name] end
    t.truthy(next(expected), what)
  end
  M.same(whole, expected, what)
  return model, plain
end

M.new_optimizer = new_optimizer

return M
