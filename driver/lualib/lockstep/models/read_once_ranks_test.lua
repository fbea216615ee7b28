-- Weights that one rank reads and the others receive: models.load(dir, { read_once = true }).

local core_safetensors = require "lockstep.core.safetensors"
local dist = require "lockstep.distributed"
local models = require "lockstep.models"
local sharding = require "lockstep.sharding"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local RANK, WORLD = dist.rank(), dist.world_size()
local SOURCE = "tests/models/"

--- Loads while the files hold no values, only names, dtypes and shapes, unless this rank may read: reading one raises.
--- Returns the model, and the bytes of the tensors whose values could be read.
local function load(name, opts, may_read)
  local read, bytes = core_safetensors.read, 0
  core_safetensors.read = function(...) -- luacheck: ignore 122
    local tensors, metadata = read(...)
    for own, tensor in pairs(tensors) do
      if may_read then
        bytes = bytes + tensor:numel() * tensor:element_size()
      else
        tensors[own] = torch.empty(tensor.shape, { dtype = tensor.dtype, device = "meta" })
      end
    end
    return tensors, metadata
  end
  local ok, model = pcall(models.load, SOURCE .. name, opts)
  core_safetensors.read = read -- luacheck: ignore 122
  if not ok then error(model, 0) end
  return model, bytes
end

-- A tied head, a plain model, and experts that are put together from several tensors.
local NAMES = { "llama_tied", "qwen3", "qwen3_moe" }

t.test("OnlyTheFirstRankReadsAnyByteOfTheWeights", function()
  for _, name in ipairs(NAMES) do
    for _, dtype in ipairs { false, torch.bfloat16, torch.float64 } do
      local expected, all = load(name, { dtype = dtype or nil }, true)

      local loaded, bytes = load(name, { dtype = dtype or nil, read_once = true }, RANK == 0)

      t.equal(loaded:state_dict(), expected:state_dict(), name .. " " .. tostring(dtype))
      t.equal(dist.all_reduce(torch.tensor { bytes }, "sum"):item(), all, name)
    end
  end
end)

t.test("WithoutItEachRankReads", function()
  if RANK > 0 then t.raises("", load, "qwen3", { dtype = torch.float64 }, false) end
end)

t.test("OnAGridTheRanksOfDpReadOnce", function()
  local function load_on_grid(read_once, may_read)
    local grid = sharding.grid { tp = WORLD > 2 and 2 or 1 }
    return load("qwen3", { grid = grid, parallel = { fully_shard = false }, read_once = read_once },
      may_read == nil and grid:rank "dp" == 0 or may_read)
  end
  local plain = load_on_grid(nil, true)

  local model = load_on_grid(true)

  local expected = {}
  for name, p in plain:named_parameters() do expected[name] = p end
  for name, p in model:named_parameters() do t.equal(p:detach(), expected[name]:detach(), name) end
end)

t.test("MistakesAreNamed", function()
  t.raises("read_once is for ranks that hold the same weights", load, "qwen3", { shard = {}, read_once = true }, true)
  t.raises("read_once is true for a model on a grid", load, "qwen3",
    { grid = sharding.grid {}, read_once = dist.group { ranks = { RANK } } }, true)
end)
