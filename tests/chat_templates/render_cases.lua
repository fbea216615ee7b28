-- Renders the cases of compare_jinja.py: {{folder, messages, options}, ...} in one JSON file, the results in another.
-- With a third argument each case is rendered that many times, and the seconds of each case are written.

local chats = require "lockstep.text.chat"
local data = require "lockstep.data"
local run = require "lockstep.run"

local cases, results, open = data.json(run.args[1]), {}, {}
local repeats = tonumber(run.args[3] or "1")

for i, case in ipairs(cases) do
  open[case.folder] = open[case.folder] or chats.open(case.folder)
  local chat = open[case.folder]
  local ok, text, spans = pcall(chat.render_marked, chat, case.messages, case.options)
  results[i] = ok and { text = text, spans = data.array(spans) } or { failure = tostring(text) }
  if ok and repeats > 1 then
    local start = os.clock()
    for _ = 1, repeats do chat:render(case.messages, case.options) end
    results[i].seconds = (os.clock() - start) / repeats
  end
end
data.save_json(run.args[2], results)
