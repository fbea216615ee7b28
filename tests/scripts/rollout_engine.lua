-- The other engine of grpo.lua: waits for the weights that a run exports, samples answers with them, and appends these
-- to a file, until the file holds so many lines.
--
-- lockstep --nproc 1 rollout_engine.lua -- EXPORT FILE GROUPS STEPS GROUP_SIZE

package.path = require("lockstep.core").script():gsub("tests/scripts/[^/]*$", "scripts/?.lua;") .. package.path

local core = require "lockstep.core"
local files = require "lockstep.core.files"
local models = require "lockstep.models"
local run = require "lockstep.run"
local tasks = require "reverse_words"
local torch = require "lockstep.torch"

local export, path = run.args[1], run.args[2]
local groups, steps, group_size = tonumber(run.args[3]), tonumber(run.args[4]), tonumber(run.args[5])
require("ffi").cdef "int usleep(unsigned int microseconds);"

for version = 0, steps - 1 do
  local folder = ("%s/step-%06d"):format(export, version)
  while #files.list(folder) == 0 do require("ffi").C.usleep(10000) end
  local model, task = models.load(folder), tasks.new(folder)
  for number = 1, groups do
    local problem, answers, prompts = task.problem(version * groups + number), {}, {}
    for i = 1, group_size do prompts[i] = problem.prompt end
    local drawn = models.generate(model, prompts, { max_new_tokens = 10, temperature = 1, stop = task.stop,
      suppress = task.placeholders, seed = version * groups + number })
    for i, ids in ipairs(drawn) do
      local prompt = problem.prompt.input_ids
      local whole = torch.cat { prompt, torch.tensor(ids, { dtype = torch.int64 }) }
      local log_probs = torch.no_grad(model.log_probs, model, { input_ids = whole })
      answers[i] = { ids = ids, reward = task.reward(problem, ids),
        log_probs = log_probs[{ { prompt:size(0), whole:size(0) } }]:totable() }
    end
    local file = assert(io.open(path, "ab"))
    file:write(core.json_encode { version = version, problem = version * groups + number, answers = answers }, "\n")
    file:close()
  end
end
