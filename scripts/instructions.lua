--- A small set of instructions that a tiny model can learn: what to do with words that the user names. Also finds the
--- model of pretrain.lua that finetune.lua teaches them.

local files = require "lockstep.files"

local M = {}

local WORDS = {}
for word in ([[batch bucket cache check data device error file folder gradient group kernel label layer learning line
  loader loss memory model module number optimizer order output parameter plan rank script seed shape step table tensor
  test time token value weight world]]):gmatch("%S+") do WORDS[#WORDS + 1] = word end

-- The user's question about two words, and the answer.
local KINDS = {
  function(a) return "Write " .. a .. " twice.", a .. " " .. a end,
  function(a, b) return ("Which comes first, %s or %s?"):format(a, b), a end,
  function(a, b) return ("Which comes last, %s or %s?"):format(a, b), b end,
  function(a, b) return ("Swap %s and %s."):format(a, b), b .. " and " .. a end,
}

--- Returns conversations of a question and its answer: for each pair of words one kind of question, in turns.
---@return {messages: table[]}[]
function M.conversations()
  local list = {}
  for i, a in ipairs(WORDS) do
    for j, b in ipairs(WORDS) do
      local question, answer = KINDS[(i + j) % #KINDS + 1](a, b)
      if i ~= j then
        list[#list + 1] = { messages = { { role = "user", content = question },
          { role = "assistant", content = answer } } }
      end
    end
  end
  return list
end

--- Returns the folder of the newest model that pretrain.lua wrote in runs/.
---@return string
function M.newest_model()
  local names = files.list("runs") -- they end in the time of their start
  for i = #names, 1, -1 do
    local folder = "runs/" .. names[i] .. "/model"
    if names[i]:find("^pretrain%-") and #files.list(folder) > 0 then return folder end
  end
  error("there is no model of pretrain.lua in runs/; run that first, or give --set model=FOLDER", 0)
end

return M
