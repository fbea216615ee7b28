-- sharding.propose for large runs: bazel-bin/driver/lockstep --nproc 1 benchmarks/propose_benchmark.lua
-- CPU seconds of one call, with the model's construction: the least of five.

local log = require "lockstep.log"
local sharding = require "lockstep.sharding"
local tables = require "lockstep.log.tables"

local LLAMA_70B = { model_type = "llama", vocab_size = 128256, hidden_size = 8192, intermediate_size = 28672,
  num_hidden_layers = 80, num_attention_heads = 64, num_key_value_heads = 8 }
local QWEN_235B = { model_type = "qwen3_moe", vocab_size = 151936, hidden_size = 4096, intermediate_size = 12288,
  num_hidden_layers = 94, num_attention_heads = 64, num_key_value_heads = 4, head_dim = 128,
  moe_intermediate_size = 1536, num_experts = 128, num_experts_per_tok = 8 }

local rows = { { "model", "GPUs", "candidates", "grids that fit", "CPU s" } }
for _, case in ipairs { { "Llama 3 70B", LLAMA_70B, 64 }, { "Llama 3 70B", LLAMA_70B, 16384 },
  { "Qwen3 235B-A22B", QWEN_235B, 256 }, { "Qwen3 235B-A22B", QWEN_235B, 16384 } } do
  local least, proposals = math.huge, nil
  for _ = 1, 5 do
    local before = os.clock()
    proposals = sharding.propose { config = case[2], gpus = case[3], memory_gib = 80, seq_len = 8192,
      tokens_per_step = 2 ^ 25 }
    least = math.min(least, os.clock() - before)
  end
  assert(#proposals > 0)
  rows[#rows + 1] = { case[1], tostring(case[3]), tostring(proposals.candidates), tostring(#proposals),
    ("%.2f"):format(least) }
end
log.print(tables.columns(rows))
