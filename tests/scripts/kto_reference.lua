-- The losses of scripts/kto.lua for all weights of a model, one sequence at a time and with TRL's formula. Makes the
-- model in the folder, and reads a file of {"prompt", "completion", "label"}.
--
-- lockstep --nproc 1 kto_reference.lua -- FOLDER FILE STEPS ANSWERS_PER_STEP LEARNING_RATE

package.path = require("lockstep.core").script():gsub("tests/scripts/[^/]*$", "scripts/?.lua;") .. package.path

local data = require "lockstep.data"
local log = require "lockstep.log"
local models = require "lockstep.models"
local optim = require "lockstep.optim"
local run = require "lockstep.run"
local text = require "lockstep.text"
local torch = require "lockstep.torch"

local dir, path, steps, answers_per_step, lr = unpack(run.args)
local BETA, DESIRABLE, UNDESIRABLE = 0.5, 1.2, 0.7

torch.manual_seed(3)
require("reverse_words").write_model(dir, { steps = 20 })
local tokenizer = text.tokenizer(dir)
local samples = {}
for line in data.jsonl(path) do
  samples[#samples + 1] = { prompt = "<|user|>" .. line.prompt .. "<|end|><|assistant|>",
    answer = line.completion .. "<|end|>", label = line.label }
end

-- Returns the log-probability of an answer.
local function log_prob(net, prompt, answer)
  local before, ids = #tokenizer:encode(prompt), tokenizer:encode(prompt .. answer)
  local of_all = torch.log_softmax(net({ input_ids = torch.tensor(ids, { dtype = torch.int64 }) }):double(), -1)
  local sum = 0
  for t = before, #ids - 1 do sum = sum + of_all[t - 1][ids[t + 1]] end
  return sum
end

local net, frozen = models.load(dir, { dtype = torch.float32 }), models.load(dir, { dtype = torch.float32 })
local optimizer = optim.AdamW(net:parameters(), { lr = tonumber(lr), weight_decay = 0 })
local loader = data.loader { source = data.split(samples, { held_out = 0, seed = 1 }), seed = 1, rank = 0, world = 1 }

local function log_ratio(prompt, answer)
  return log_prob(net, prompt, answer) - torch.no_grad(log_prob, frozen, prompt, answer)
end

for _ in run:steps(function() return {} end, tonumber(steps)) do
  local drawn, kl, num_kl, loss = {}, 0, 0, 0
  for i = 1, tonumber(answers_per_step) do drawn[i] = loader() end
  for i, sample in ipairs(drawn) do
    for k = 1, #drawn - 1 do
      local other = drawn[(i + k - 1) % #drawn + 1]
      if other.prompt ~= sample.prompt then
        kl, num_kl = kl + torch.no_grad(log_ratio, sample.prompt, other.answer):item(), num_kl + 1
        break
      end
    end
  end
  kl = math.max(num_kl > 0 and kl / num_kl or 0, 0)
  for _, sample in ipairs(drawn) do
    local h = log_ratio(sample.prompt, sample.answer)
    loss = loss + (sample.label and DESIRABLE * (1 - torch.sigmoid(BETA * (h - kl)))
      or UNDESIRABLE * (1 - torch.sigmoid(BETA * (kl - h))))
  end
  loss = loss / #drawn
  loss:backward()
  optimizer:step(1, { max_grad_norm = 1.0 })
  optimizer:zero_grad()
  log.step { loss = loss, kl = kl }
end
