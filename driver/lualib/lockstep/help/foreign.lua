--- Names of options in PyTorch, transformers and PEFT, and their names here: for errors about an unknown option.
---
---     foreign.hint("lora.apply", "lora_alpha", { "alpha", "r" })   -- 'did you mean "alpha"?'

local M = {}

--- The names here, by their names there. A name counts only where the function has that option.
local NAMES = {
  -- PEFT
  lora_alpha = "alpha", lora_dropout = "dropout", lora_rank = "r", rank = "r", target_modules = "targets",
  target_parameters = "parameters", use_dora = "dora", use_rslora = "rslora",
  -- torchao
  config = "recipe", filter_fqns = "filter", module_filter_fn = "filter", recipe_name = "recipe",
  -- transformers
  add_generation_prompt = "generation_prompt", add_special_tokens = "special",
  eos_token_id = "stop", max_length = "max_new_tokens", max_shard_size = "max_shard_bytes",
  max_tokens = "max_new_tokens", num_training_steps = "total_steps", num_warmup_steps = "warmup_steps",
  skip_special_tokens = "skip_special", stop_token_ids = "stop", streamer = "on_token", torch_dtype = "dtype",
  -- torch.optim
  learning_rate = "lr",
  -- torch.utils.data
  dataset = "source", num_replicas = "world", num_workers = "workers", prefetch_factor = "prefetch",
  world_size = "world",
  -- torch.distributed
  bucket_cap_mb = "bucket_mb", device_mesh = "group", find_unused_parameters = "find_unused", mesh = "group",
  process_group = "group",
  -- FullyShardedDataParallel, fully_shard, checkpoint
  auto_wrap_policy = "units", cpu_offload = "offload", ignored_modules = "ignore", ignored_params = "ignore",
  ignored_states = "ignore", mixed_precision = "param_dtype", mp_policy = "param_dtype", offload_policy = "offload",
  preserve_rng_state = "preserve_rng",
}

--- Advice by function and name, where no single option does the same.
local REMARKS = {
  ["chat:encode"] = {
    add_special_tokens = "the template writes all special tokens",
    images = 'pictures are in the messages, and the option "processor" reads them',
    return_assistant_tokens_mask = "loss_mask of the result marks what the assistant says",
    return_tensors = "the result holds arrays: torch.tensor makes a tensor of one",
    tokenize = "chat:render returns the text",
  },
  ["data.loader"] = {
    batch_size = "a loader hands out single samples: batching.stream and sharding.pack make micro-batches of them",
    collate_fn = "a loader hands out single samples: batching.stream and sharding.pack make micro-batches of them",
    pin_memory = "with device = dist.device() samples are copied to the GPU ahead",
    sampler = "the loader shares samples out over the ranks itself",
  },
  ["float8.apply"] = {
    enable_fsdp_float8_all_gather = "sharding.fully_shard(net, { float8_gather = true }) gathers weights in float8",
  },
  ["models.generate"] = {
    do_sample = "temperature = 0 takes the most probable token, and a temperature above 0 samples",
    pad_token_id = "prompts of different lengths need no padding",
  },
  ["models.load"] = {
    device_map = "device = dist.device() loads onto this rank's GPU, and shard = {} divides the model over all ranks",
  },
  ["optim.AdamW"] = {
    foreach = "the optimizer always runs fused kernels",
    fused = "the optimizer always runs fused kernels",
  },
  ["sharding.data_parallel"] = {
    device_ids = "move the module to dist.device() before, as in net:to { device = dist.device() }",
    output_device = "move the module to dist.device() before, as in net:to { device = dist.device() }",
  },
}

--- Returns what an option of another library is called here, or nil.
---@param caller string the function that was called
---@param key string its unknown option
---@param known string[] its options
---@return string?
function M.hint(caller, key, known)
  local remark = (REMARKS[caller] or {})[key]
  if remark then return remark end
  for _, name in ipairs(known) do
    if name == NAMES[key] then return ('did you mean "%s"?'):format(name) end
  end
end

return M
