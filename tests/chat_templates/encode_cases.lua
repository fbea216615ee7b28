-- Encodes the cases of compare_masks.py: {{folder, messages, options}, ...} in one JSON file, the samples in another.

local data = require "lockstep.data"
local run = require "lockstep.run"
local text = require "lockstep.text"

local cases, results, open = data.json(run.args[1]), {}, {}
for i, case in ipairs(cases) do
  open[case.folder] = open[case.folder] or text.chat(case.folder)
  local ok, sample = pcall(open[case.folder].encode, open[case.folder], case.messages, case.options)
  results[i] = ok and sample or { failure = tostring(sample) }
end
data.save_json(run.args[2], results)
