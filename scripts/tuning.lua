--- Steps that dpo.lua, kto.lua, reward.lua and grpo.lua have in common. Each takes the script's configuration.

local data = require "lockstep.data"
local dist = require "lockstep.distributed"
local lora = require "lockstep.lora"
local log = require "lockstep.log"
local models = require "lockstep.models"
local optim = require "lockstep.optim"
local run = require "lockstep.run"
local sharding = require "lockstep.sharding"
local reverse_words = require "reverse_words"

local M = {}

--- Returns the model's folder and the file of answers. Where the configuration names none, these are a small model and
--- words written backwards. Collective.
function M.start(config)
  local dir, path = config.model, config.data
  if dir == "" then
    dir = run.dir .. "/start"
    reverse_words.write_model(dir, { steps = 100 })
  end
  if path == "" then path = reverse_words.write_preferences(run.dir .. "/preferences.jsonl", 4000) end
  return dir, path
end

--- Loads the model. Layers in 4 or 8 bits stay so, unless all weights are trained.
function M.load(dir, config, num_labels)
  local packed = nil
  if config.lora.r == 0 then packed = false end
  return models.load(dir, { device = dist.device(), dtype = run.dtype(config.precision), ignore = config.ignore,
    load_in_4bit = packed, load_in_8bit = packed, num_labels = num_labels })
end

--- Returns the number of steps, the schedule of the learning rate, and for `train` the loader of its samples.
function M.plan(config, num_samples, samples_per_step, train)
  local steps = optim.schedule.steps { steps = config.steps, epochs = config.epochs, samples = num_samples,
    samples_per_step = samples_per_step }
  return steps, optim.schedule.named(config.schedule, { warmup_steps = config.warmup_steps, total_steps = steps }),
    train and data.loader { source = train, seed = config.seed, rank = 0, world = 1 }
end

--- Returns the next `count` samples of a loader.
function M.take(loader, count)
  local drawn = {}
  for i = 1, count do drawn[i] = loader() end
  return drawn
end

--- Records the share of held-out samples that the model is right about. `batches` and `loss_of` are as in training.
function M.record_accuracy(model, batches, loss_of)
  log.record("held out", { accuracy = sharding.evaluate(model, batches, function(batch)
    local _, count, right = loss_of(batch)
    return right, count
  end) })
end

--- Writes the adapter, or the whole model if there is none, into `folder`. Collective.
function M.save(model, config, folder, dir)
  if config.lora.r > 0 then lora.save(model, folder) else models.save(model, folder, { like = dir }) end
end

return M
