--- The map of loader_benchmark.lua: the text as a tensor of ids. `path` is of a tokenizer.json.

local text = require "lockstep.text"
local torch = require "lockstep.torch"

local tokenizer

return function(sample, path)
  tokenizer = tokenizer or text.tokenizer(path)
  return torch.tensor(tokenizer:encode(sample.text), { dtype = torch.int64 })
end
