-- float8.apply{experts = true}: products of experts in float8, against float32 products of the same rounded numbers.

local experts = require "lockstep.models.experts"
local float8 = require "lockstep.float8"
local t = require "lockstep.testing"
local tiny = require "tiny_fixture"
local torch = require "lockstep.torch"

torch.set_num_threads(1) -- small tensors

local RECIPES = { "tensorwise", "rowwise", "rowwise_with_gw_hp" }

--- Returns the float32 numbers that a cast of x stands for. dim: 1 or 0 for a scale of each row or column.
local function rounded(x, dtype, dim)
  local values, scale = unpack { torch.ops.lockstep.float8_cast(x, dtype, dim, dim ~= nil) }
  return values:float() / scale
end

--- Returns y, dx and dweight of one expert.
local function expected_of(recipe, x, weight, dy)
  local e4m3, e5m2 = torch.float8_e4m3fn, torch.float8_e5m2
  if recipe == "tensorwise" then
    local w, g = rounded(weight, e4m3), rounded(dy, e5m2)
    return rounded(x, e4m3):matmul(w:t()), g:matmul(w), g:t():matmul(rounded(x, e4m3))
  end
  local y = rounded(x, e4m3, 1):matmul(rounded(weight, e4m3, 1):t())
  if recipe == "rowwise" then
    return y, rounded(dy, e4m3, 1):matmul(rounded(weight, e4m3, 0)), rounded(dy, e4m3, 0):t():matmul(
      rounded(x, e4m3, 0))
  end
  local values, scale = unpack { torch.ops.lockstep.float8_cast(weight, e4m3, nil, true) }
  return y, rounded(dy, e4m3, 1):matmul(values:float() / scale), dy:t():matmul(x)
end

local function near(actual, expected, message)
  t.equal(tostring(actual.shape), tostring(expected.shape), message)
  local error = (actual - expected):norm():item()
  t.truthy(error <= 2e-6 * (expected:norm():item() + 1e-30), ("%s: %g of %g"):format(message, error,
    expected:norm():item()))
end

t.test("EachExpertHasTheScalesOfItsRowsAndItsWeight", function()
  torch.manual_seed(11)
  -- Rows of each expert: empty ones first, between and last, one token alone, and none at all.
  local cases = { { 3, 0, 5 }, { 0, 1, 0, 17 }, { 1 }, { 0, 0, 2, 0 }, { 0, 0 } }
  for _ = 1, 4 do
    local counts = {}
    for e = 1, 2 + torch.randint(0, 6, { 1 }):item() do counts[e] = torch.randint(0, 9, { 1 }):item() end
    cases[#cases + 1] = counts
  end
  for i, counts in ipairs(cases) do
    local inputs, outputs = 16 * (1 + i % 3), 16 * (1 + i % 4)
    local rows, ends = 0, {}
    for e, count in ipairs(counts) do
      rows = rows + count
      ends[e] = rows
    end
    for _, recipe in ipairs(RECIPES) do
      -- Experts of magnitudes that no scale can have in common.
      local size = torch.pow(torch.tensor(1e3), torch.arange(#counts):float()):view { #counts, 1, 1 }
      local weight = (torch.randn { #counts, outputs, inputs } * size):requires_grad_(true)
      local x = torch.randn({ rows, inputs }):requires_grad_(true)
      local dy = torch.randn { rows, outputs }
      for _, list in ipairs { ends, false } do
        x.grad, weight.grad = nil, nil
        local y = experts.multiplier(torch.tensor(ends, { dtype = torch.int32 }), list or nil, recipe)(x, weight)
        y:backward(dy)
        local from = 0
        for e, to in ipairs(ends) do
          local message = ("case %d, expert %d, %s"):format(i, e, recipe)
          if to == from then
            t.equal(weight.grad[e - 1]:abs():max():item(), 0, message)
          else
            local own, given = x:detach()[{ { from, to } }], dy[{ { from, to } }]
            local want_y, dx, dweight = expected_of(recipe, own, weight:detach()[e - 1], given)
            near(y:detach()[{ { from, to } }], want_y, message .. ", y")
            near(x.grad[{ { from, to } }], dx, message .. ", dx")
            near(weight.grad[e - 1], dweight, message .. ", dweight")
          end
          from = to
        end
        t.equal(tostring(y.shape), tostring(dy.shape))
      end
    end
  end
end)

local GPT_OSS = { architectures = { "GptOssForCausalLM" }, model_type = "gpt_oss", num_local_experts = 4,
  num_experts_per_tok = 2, intermediate_size = 32, head_dim = 16, sliding_window = 8 }

t.test("AMixtureLearnsAboutAsWellAsWithoutFloat8", function()
  for name, config in pairs { qwen3_moe = tiny.MIXTURE, gpt_oss = GPT_OSS } do
    local first, last = tiny.train(tiny.model(config), 12)
    for _, recipe in ipairs { "tensorwise", "rowwise" } do
      local layers, model = tiny.model(config), tiny.model(config)
      local count = float8.apply(layers, { recipe = recipe })
      local with_experts, left = float8.apply(model, { recipe = recipe, experts = true })
      t.equal(with_experts, count + 2, name)
      for _, one in ipairs(left) do
        t.truthy(one.name:find "gate$" or one.name:find "router$" or one.name == "lm_head", one.name)
      end
      local without, with = tiny.step(layers, tiny.batch(1)), tiny.step(model, tiny.batch(1))
      t.truthy(without ~= with, name .. ": the experts are in float8")
      layers:zero_grad()
      model:zero_grad()
      local begin, finish = tiny.train(model, 12)
      local message = ("%s %s: %g, then %g; without %g, then %g"):format(name, recipe, begin, finish, first, last)
      t.near(begin, first, 0.005 * first, message)
      t.near(finish, last, 0.05 * first, message)
    end
  end
end)

t.test("ExpertsAreConvertedWhereTheyCanBe", function()
  t.raises("experts = true, but the model has no experts that can be converted", float8.apply, tiny.model(),
    { experts = true })
  local narrow = { moe_intermediate_size = 24 }
  for key, value in pairs(tiny.MIXTURE) do narrow[key] = narrow[key] or value end
  t.raises('"model.layers.0.mlp.experts", for example: its weight is {32, 24}, and not both are multiples of 16',
    float8.apply, tiny.model(narrow), { experts = true })
  local model = tiny.model(tiny.MIXTURE)
  float8.apply(model, { experts = true })
  t.raises("is a float8 layer already", float8.apply, model, { experts = true })
end)
