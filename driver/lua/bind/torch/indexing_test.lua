--- x[key], read and written: numbers, ranges, masks and positions, one for each dimension.

local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local function integers(values) return torch.tensor(values, { dtype = torch.int64 }) end

--- 0 to 23 in two planes of three rows and four columns.
local function cube() return torch.arange(24, { dtype = torch.float32 }):view(2, 3, 4) end

--- 0 to 11 in three rows of four columns.
local function grid() return torch.arange(12, { dtype = torch.float32 }):view(3, 4) end

--- Each case is {key, the elements of grid() that it selects}.
local function check(cases)
  local x = grid()
  for k, case in ipairs(cases) do t.equal(x[case[1]]:totable(), case[2], "case " .. k) end
end

-- Reading ---------------------------------------------------------------------------------------------

t.test("ANumberTakesThatPositionAndDropsTheDimension", function()
  check {
    { 0, { 0, 1, 2, 3 } },
    { 2, { 8, 9, 10, 11 } },
    { { 1, 2 }, 6 },
    { { 1 }, { 4, 5, 6, 7 } },
  }
end)

t.test("NegativeNumbersCountFromTheEnd", function()
  check {
    { -1, { 8, 9, 10, 11 } },
    { { -1, -1 }, 11 },
    { { { -2, -1 }, 0 }, { 4 } },
    { { {}, { -2, 4 } }, { { 2, 3 }, { 6, 7 }, { 10, 11 } } },
  }
end)

t.test("ARangeTakesItsFirstToTheOneBeforeItsSecond", function()
  check {
    { { { 0, 2 }, 1 }, { 1, 5 } },
    { { { 0, 2 } }, { { 0, 1, 2, 3 }, { 4, 5, 6, 7 } } },
    { { 1, { 1, 3 } }, { 5, 6 } },
    { { { 1, 2 }, { 1, 2 } }, { { 5 } } },
  }
end)

t.test("AThirdNumberInARangeIsItsStep", function()
  check {
    { { 0, { 0, 4, 2 } }, { 0, 2 } },
    { { 0, { 1, 4, 2 } }, { 1, 3 } },
    { { { 0, 3, 2 }, 0 }, { 0, 8 } },
  }
end)

t.test("ARangeEndsAtTheTensorsEdge", function()
  check {
    { { { 1, 100 }, 0 }, { 4, 8 } },
    { { { -100, 1 }, 0 }, { 0 } },
    { { { 2, 1 }, 0 }, {} },
    { { { 5, 9 }, 0 }, {} },
  }
end)

t.test("EmptyBracesTakeAllOfADimension", function()
  check {
    { { {}, 1 }, { 1, 5, 9 } },
    { { {}, {} }, grid():totable() },
    { {}, grid():totable() },
  }
  t.equal(cube()[{ {}, 0, { 0, 2 } }]:totable(), { { 0, 1 }, { 12, 13 } })
end)

t.test("DotsTakeAllTheDimensionsThatAreLeft", function()
  local x = cube()

  t.equal(x[{ "...", 0 }]:totable(), { { 0, 4, 8 }, { 12, 16, 20 } })
  t.equal(x[{ 1, "...", 3 }]:totable(), { 15, 19, 23 })
  t.equal(x["..."], x)
end)

t.test("ATensorOfPositionsGathersThem", function()
  check {
    { integers { 2, 0, 2 }, { { 8, 9, 10, 11 }, { 0, 1, 2, 3 }, { 8, 9, 10, 11 } } },
    { { {}, integers { 3, 0 } }, { { 3, 0 }, { 7, 4 }, { 11, 8 } } },
    { { integers { 0, 2 }, integers { 1, 3 } }, { 1, 11 } },
    { { integers { 0, 2 }, 1 }, { 1, 9 } },
    { integers { { -1 }, { 0 } }, { { { 8, 9, 10, 11 } }, { { 0, 1, 2, 3 } } } },
    { torch.tensor({ 1 }, { dtype = torch.int32 }), { { 4, 5, 6, 7 } } },
    { integers {}, {} },
  }
end)

t.test("AMaskSelectsWhereItIsTrue", function()
  check {
    { grid():gt(8), { 9, 10, 11 } },
    { torch.tensor { true, false, true }, { { 0, 1, 2, 3 }, { 8, 9, 10, 11 } } },
    { { {}, torch.tensor { false, true, false, true } }, { { 1, 3 }, { 5, 7 }, { 9, 11 } } },
    { grid():gt(100), {} },
  }
end)

t.test("NumbersAndRangesGiveViews", function()
  local x = grid()

  x[1]:zero_()
  x[{ {}, { 3, 4 } }]:fill_(-1)

  t.equal(x:totable(), { { 0, 1, 2, -1 }, { 0, 0, 0, -1 }, { 8, 9, 10, -1 } })
end)

t.test("PositionsAndMasksGiveCopies", function()
  local x = grid()

  x[integers { 0 }]:zero_()
  x[x:ge(0)]:zero_()

  t.equal(x, grid())
end)

t.test("AGradientFlowsThroughWhatWasSelected", function()
  local x = grid():requires_grad_(true)

  local sum = x[{ 0, { 1, 3 } }]:sum() + x[integers { 2, 2 }]:sum()
  sum:backward()

  t.equal(x.grad:totable(), { { 0, 1, 1, 0 }, { 0, 0, 0, 0 }, { 2, 2, 2, 2 } })
end)

-- Writing ---------------------------------------------------------------------------------------------

--- Each case is {key, value, what zeros of three rows and two columns are afterwards}.
local function check_writes(cases)
  for k, case in ipairs(cases) do
    local x = torch.zeros { 3, 2 }
    x[case[1]] = case[2]
    t.equal(x:totable(), case[3], "case " .. k)
  end
end

t.test("ANumberFillsWhatIsSelected", function()
  check_writes {
    { 0, 7, { { 7, 7 }, { 0, 0 }, { 0, 0 } } },
    { -1, 7, { { 0, 0 }, { 0, 0 }, { 7, 7 } } },
    { { 1, 0 }, 0.5, { { 0, 0 }, { 0.5, 0 }, { 0, 0 } } },
    { { {}, 1 }, 7, { { 0, 7 }, { 0, 7 }, { 0, 7 } } },
    { { { 0, 2 }, 0 }, 7, { { 7, 0 }, { 7, 0 }, { 0, 0 } } },
    { { { 0, 3, 2 } }, 7, { { 7, 7 }, { 0, 0 }, { 7, 7 } } },
    { {}, 7, { { 7, 7 }, { 7, 7 }, { 7, 7 } } },
    { "...", 7, { { 7, 7 }, { 7, 7 }, { 7, 7 } } },
    { integers { 2, 0 }, 7, { { 7, 7 }, { 0, 0 }, { 7, 7 } } },
    { torch.tensor { false, true, false }, 7, { { 0, 0 }, { 7, 7 }, { 0, 0 } } },
  }
end)

t.test("ATensorIsWrittenAndBroadcast", function()
  check_writes {
    { 1, torch.tensor { 3, 4 }, { { 0, 0 }, { 3, 4 }, { 0, 0 } } },
    { { {}, 0 }, torch.tensor { 1, 2, 3 }, { { 1, 0 }, { 2, 0 }, { 3, 0 } } },
    { { { 0, 2 } }, torch.tensor { 3, 4 }, { { 3, 4 }, { 3, 4 }, { 0, 0 } } },
    { { 0, 0 }, torch.tensor(9), { { 9, 0 }, { 0, 0 }, { 0, 0 } } },
    { integers { 2, 1 }, torch.tensor { { 1, 2 }, { 3, 4 } }, { { 0, 0 }, { 3, 4 }, { 1, 2 } } },
    { { 2, {} }, integers { 5, 6 }, { { 0, 0 }, { 0, 0 }, { 5, 6 } } },
  }
end)

t.test("BooleansAndIntegersTakeValuesOfTheirKind", function()
  local mask, counts = torch.tensor { false, true }, integers { 1, 2 }

  mask[0], mask[1] = true, false
  counts[1] = 2 ^ 53

  t.equal(mask, torch.tensor { true, false })
  t.equal(counts, integers { 1, 2 ^ 53 })
end)

t.test("AWriteThroughASelectionReachesItsBase", function()
  local x = cube()

  x[1][{ 0, 0 }] = -1

  t.equal(x[{ 1, 0, 0 }]:item(), -1)
end)

t.test("AWriteIsPartOfTheGraph", function()
  local w = torch.ones({ 2 }, { requires_grad = true })
  local x = torch.zeros { 3 }

  x[{ { 0, 2 } }] = w * 3
  x:sum():backward()

  t.equal(w.grad, torch.tensor { 3, 3 })
end)

-- Mistakes --------------------------------------------------------------------------------------------

t.test("PositionsOutOfRangeAreErrors", function()
  local x = grid()
  for _, case in ipairs {
    { 3, "index 3 out of range for tensor of size [3, 4] at dimension 0" },
    { -4, "index -4 out of range for tensor of size [3, 4] at dimension 0" },
    { { 0, 4 }, "index 4 is out of bounds for dimension 1 with size 4" },
    { { 0, 0, 0 }, "too many indices for tensor of dimension 2" },
    { integers { 3 }, "index 3 is out of bounds for dimension 0 with size 3" },
    { torch.tensor { true }, "The shape of the mask [1] at index 0 does not match the shape of the indexed tensor" },
  } do
    t.raises("tensor index: ", function() return x[case[1]] end)
    t.raises(case[2], function() return x[case[1]] end)
  end
  t.raises("tensor assignment: index 3 is out of bounds for dimension 0 with size 3", function() x[3] = 1 end)
  t.raises("tensor index: select() cannot be applied to a 0-dim tensor", function() return torch.tensor(1)[0] end)
end)

t.test("AnInvalidIndexIsAnErrorWithTheValidForms", function()
  local x = grid()
  for _, case in ipairs {
    { 1.5, "tensor index must be a whole number, not the number 1.5" },
    { { 0, "a" }, 'must be a number, a range {from, to}, {}, a tensor or "...", not the string "a"' },
    { { 0, print }, 'a tensor or "...", not a function' },
    { { { 1 } }, "a range is {}, {from, to} or {from, to, step}, not 1 numbers" },
    { { { 1, 2, 3, 4 } }, "not 4 numbers" },
    { { { 0, "b" } }, 'a range {from, to}[2] must be a number, not the string "b"' },
    { { { 0, 2, -1 } }, "step must be greater than zero" },
    { torch.tensor { 0, 1 }, "a tensor must hold positions (int64) or be a mask (bool), not be float32 {2}" },
  } do
    t.raises(case[2], function() return x[case[1]] end)
    t.raises(case[2], function() x[case[1]] = 0 end)
  end
  t.raises("not nil", function() return x[nil] end)
end)

t.test("AnImpossibleAssignmentIsAnError", function()
  local x = grid()

  t.raises("tensor assignment: the value must be a tensor, a number or a boolean, not the string", function()
    x[0] = "1"
  end)
  t.raises("tensor assignment: the value must be a tensor, a number or a boolean, not nil", function() x[0] = nil end)
  t.raises("tensor assignment: The expanded size of the tensor (4) must match", function() x[0] = torch.ones(3) end)
  t.equal(x, grid())
end)

t.test("AWriteToALeafThatRequiresGradIsAnError", function()
  local w = torch.ones({ 2 }, { requires_grad = true })

  t.raises("a view of a leaf Variable that requires grad is being used in an in-place", function() w[0] = 2 end)
  torch.no_grad(function() w[0] = 2 end)

  t.equal(w:totable(), { 2, 1 })
end)
