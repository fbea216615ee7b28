-- nn.rotary and nn.rotate against transformers' values (tests/models/make.py) and against the formula.

local core = require "lockstep.core"
local data = require "lockstep.data"
local nn = require "lockstep.nn"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

t.test("AnglesAreThoseOfTransformers", function()
  local answers, metadata = data.safetensors "tests/models/rotary/answers.safetensors"
  local cases = core.json_decode(metadata.cases)

  for name, options in pairs(cases) do
    local rotary = nn.rotary(options)
    local cos, sin = rotary(answers.position_ids)

    t.near(rotary.frequencies / answers[name .. ".frequencies"], torch.ones { options.dim / 2 }, 1e-6, name)
    -- Near position 131,071 one unit in the last place of a frequency changes a cosine by up to 0.008.
    t.near(cos:squeeze(1), answers[name .. ".cos"], 2e-6, name)
    t.near(sin:squeeze(1):narrow(-1, options.dim / 2, options.dim / 2), answers[name .. ".sin"]:narrow(-1, 0,
      options.dim / 2), 2e-6, name)
  end
end)

t.test("EachPairTurnsByItsAngle", function()
  local rotary = nn.rotary { dim = 4, rope_theta = 100 }
  local positions = torch.tensor({ 0, 1, 5 }, { dtype = torch.int64 })
  local x = torch.randn { 3, 2, 4 }

  local y = nn.rotate(x, rotary(positions))

  for token, position in ipairs { 0, 1, 5 } do
    for pair = 0, 1 do
      local angle = position * 100 ^ (-pair / 2)
      local a, b = x[{ token - 1, {}, pair }], x[{ token - 1, {}, pair + 2 }]
      t.near(y[{ token - 1, {}, pair }], a * math.cos(angle) - b * math.sin(angle), 1e-6)
      t.near(y[{ token - 1, {}, pair + 2 }], b * math.cos(angle) + a * math.sin(angle), 1e-6)
    end
  end
end)

t.test("FrequenciesDependOnTheLengthOfEachSequence", function()
  local longrope = nn.rotary { dim = 4, rope_type = "longrope", rope_theta = 100, factor = 3,
    original_max_position_embeddings = 4, short_factor = { 1, 2 }, long_factor = { 4, 5 } }
  local dynamic = nn.rotary { dim = 4, rope_type = "dynamic", rope_theta = 100, factor = 3,
    max_position_embeddings = 4 }
  local lengths, rows = { 4, 6, 1 }, {}
  local positions = torch.cat { torch.arange(4), torch.arange(6), torch.arange(1) }
  local function expected(length, position)
    local base = 100 * (math.max(length, 4) * 3 / 4 - 2) ^ 2
    rows[#rows + 1] = length > 4 and { position / 4, position / 50 } or { position, position / 20 }
    return { position, position / base ^ 0.5 }
  end
  local of_dynamic = {}
  for _, length in ipairs(lengths) do
    for position = 0, length - 1 do of_dynamic[#of_dynamic + 1] = expected(length, position) end
  end

  t.near(longrope:angles(positions, lengths), torch.tensor(rows), 1e-5)
  t.near(dynamic:angles(positions, lengths), torch.tensor(of_dynamic), 1e-5)
  t.near(longrope.factor, math.sqrt(1 + math.log(3) / math.log(4)), 1e-12)
  t.equal(longrope:angles(torch.arange(6)), longrope:angles(positions, lengths):narrow(0, 4, 6), "one sequence")
end)

t.test("CosinesHaveTheDtypeThatIsAskedFor", function()
  local cos, sin = nn.rotary { dim = 8 }(torch.arange(5), { dtype = torch.bfloat16 })

  t.equal({ cos.dtype, sin.dtype }, { torch.bfloat16, torch.bfloat16 })
end)

t.test("BadOptionsAreNamed", function()
  t.raises('unknown rope_type "spiral" (known: default, dynamic, linear, llama3, longrope, yarn)', nn.rotary,
    { dim = 8, rope_type = "spiral" })
  t.raises('rope_type "dynamic" needs the number "max_position_embeddings", got nil', nn.rotary,
    { dim = 8, rope_type = "dynamic", factor = 2 })
  local longrope = { dim = 4, rope_type = "longrope", factor = 2, original_max_position_embeddings = 4,
    short_factor = { 1, 1 }, long_factor = { 1 } }
  t.raises('needs 2 numbers "long_factor", one for each pair of dimensions, got 1', nn.rotary, longrope)
  longrope.long_factor = { 1, 2 }
  t.raises("all its positions are needed: expected [6], got {3}", function()
    nn.rotary(longrope):angles(torch.arange(3), { 4, 2 })
  end)
  t.raises('rope_type "llama3" needs the number "low_freq_factor", got nil', nn.rotary,
    { dim = 8, rope_type = "llama3", factor = 8 })
  t.raises("dim must be an even number of at least 2, got 7", nn.rotary, { dim = 7 })
  t.raises('unknown option "theta"', nn.rotary, { dim = 8, theta = 1 })
end)
