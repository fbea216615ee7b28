-- Maps for the tests of data.loader, by options.kind.

local torch = require "lockstep.torch"

local maps = {}

--- Numbers, tensors, nested tables, nulls: what may travel.
function maps.all(sample)
  return {
    id = sample.id, tensor = torch.arange(sample.id, { dtype = torch.int64 }) * 2, list = { 1, 2, sample.id },
    nested = { { a = { true, false, "x" } } }, none = sample.none, random = math.random(),
  }
end

--- Work that takes a while, and longer for some samples: results come out of order.
function maps.slow(sample)
  local x = torch.ones { 40, 40 }
  for _ = 1, sample.id % 7 * 10 do x = x:matmul(x) / 40 end
  return { id = sample.id, sum = x:sum():item() }
end

function maps.fail_at(sample, options)
  for _, id in ipairs(options.ids) do
    if sample.id == id then
      local missing = nil
      return missing.field
    end
  end
  return { id = sample.id }
end

function maps.run(sample, options) return assert(loadstring(options.code))(sample) end

return function(sample, options) return maps[options.kind](sample, options) end
