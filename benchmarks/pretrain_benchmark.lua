-- Runs scripts/pretrain.lua, and keeps what its loop trained on, for pretrain_benchmark.py:
--
--     ./run --nproc 1 --run-dir runs/peer benchmarks/pretrain_benchmark.lua --set optimizer=adamw
--
-- The run's folder then also has initial.safetensors, the weights before the first step, and tokens.safetensors, the
-- ids of all steps [steps, sequences, seq_len].

local data = require "lockstep.data"
local run = require "lockstep.run"
local sharding = require "lockstep.sharding"
local torch = require "lockstep.torch"

local accumulate, steps = sharding.accumulate, {}

-- Called by the script in place of the library's function.
function sharding.accumulate(model, micro_batches, ...) -- luacheck: no global
  if #steps == 0 then data.save_safetensors(run.dir .. "/initial.safetensors", model:state_dict()) end
  local ids = {}
  for i, batch in ipairs(micro_batches) do ids[i] = batch.input_ids:view(#batch.seq_lens, -1) end
  steps[#steps + 1] = torch.cat(ids)
  return accumulate(model, micro_batches, ...)
end

dofile "scripts/pretrain.lua"
data.save_safetensors(run.dir .. "/tokens.safetensors", { tokens = torch.stack(steps) })
