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

t.test("CosinesHaveTheDtypeThatIsAskedFor", function()
  local cos, sin = nn.rotary { dim = 8 }(torch.arange(5), { dtype = torch.bfloat16 })

  t.equal({ cos.dtype, sin.dtype }, { torch.bfloat16, torch.bfloat16 })
end)

t.test("BadOptionsAreNamed", function()
  t.raises('unknown rope_type "dynamic" (known: default, linear, llama3, yarn)', nn.rotary,
    { dim = 8, rope_type = "dynamic" })
  t.raises('rope_type "llama3" needs the number "low_freq_factor", got nil', nn.rotary,
    { dim = 8, rope_type = "llama3", factor = 8 })
  t.raises("dim must be an even number of at least 2, got 7", nn.rotary, { dim = 7 })
  t.raises('unknown option "theta"', nn.rotary, { dim = 8, theta = 1 })
end)
