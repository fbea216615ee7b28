--- losses.reward_functions: several reward functions with weights as one.

local core = require "lockstep.core"
local options = require "lockstep.options"
local torch = require "lockstep.torch"

local NAME = "losses.reward_functions"

---@class losses.RewardFunction
---@field name string of its mean and its deviation in the step line: "rewards/NAME/mean"
---@field fn fun(problem: table, ids: integer[], answer: losses.Answer): number? nil leaves the answer out
---@field weight number? default 1

local function fail(message, ...) core.raise(NAME .. ": " .. message:format(...)) end

local function is_finite(x) return type(x) == "number" and x - x == 0 end

--- Returns the weights of an option: an array, or "1,0.5".
local function read_weights(given, names)
  if given == nil or given == "" then return nil end
  local weights = given
  if type(given) == "string" then
    weights = {}
    for part in (given .. ","):gmatch "(.-)," do
      weights[#weights + 1] = tonumber(part) or fail('weights: "%s" is not a number, in "%s"', part, given)
    end
  elseif type(given) ~= "table" then
    fail('weights must be an array of numbers, or a text like "1,0.5", not a %s', type(given))
  end
  if #weights ~= #names then
    fail("%d weights for %d functions (%s); give one for each", #weights, #names, table.concat(names, ", "))
  end
  return weights
end

local function read_functions(list, given)
  if type(list) == "function" then list = { { name = "reward", fn = list } } end
  if type(list) ~= "table" or list[1] == nil then
    fail("expected a function, or an array like { { name = \"correct\", fn = f, weight = 1 } }, got %s",
      type(list) == "table" and "a table without a first element" or "a " .. type(list))
  end
  local functions, names, seen = {}, {}, {}
  for i, entry in ipairs(list) do
    local o = options.read(NAME, entry, { name = options.required, fn = options.required, weight = 1 })
    if type(o.name) ~= "string" or not o.name:find "^[%w_.-]+$" then
      fail("name of function %d must be a word, got %s", i, tostring(o.name))
    elseif seen[o.name] then
      fail('two functions have the name "%s"', o.name)
    elseif type(o.fn) ~= "function" then
      fail('"%s": fn must be a function, not a %s', o.name, type(o.fn))
    end
    functions[i], names[i], seen[o.name] = o, o.name, true
  end
  local weights = read_weights(given, names)
  for i, one in ipairs(functions) do
    one.weight = weights and weights[i] or one.weight
    if not is_finite(one.weight) then
      fail('"%s": the weight must be a number, got %s', one.name, tostring(one.weight))
    end
  end
  return functions
end

--- Returns a function that scores an answer by several functions. It sets `reward`, the weighted sum, and `rewards`,
--- the value of each function by its name. If a function returns nil for an answer, the answer's sum and the function's
--- mean leave it out, as in TRL. An answer for which all return nil has the reward 0; losses.rollouts counts it. A
--- single function, given without a name, sets `reward` alone.
---
---     local score = losses.reward_functions({ { name = "correct", fn = is_correct },
---       { name = "short", fn = is_short, weight = 0.2 } }, { weights = config.reward_weights })
---     score(answer, problem, "answer 2 to problem 7")
---
--- A function takes the problem, the ids of the answer and the answer. Anything but a finite number or nil is an error
--- that names the function and the answer.
---@param list losses.RewardFunction[]|fun(problem: table, ids: integer[], answer: losses.Answer): number?
---@param opts {weights: (number[]|string)?}? in place of the functions' own: an array, or "1,0.5"
---@return fun(answer: losses.Answer, problem: table, place: string)
local function reward_functions(list, opts)
  local functions = read_functions(list, options.read(NAME, opts, { weights = options.optional }).weights)
  local is_single = type(list) == "function"
  return function(answer, problem, place)
    local sum, values = 0, {}
    for _, one in ipairs(functions) do
      local value = one.fn(problem, answer.ids, answer)
      if value ~= nil and not is_finite(value) then
        local got = type(value) == "number" and tostring(value)
          or torch.is_tensor(value) and "a tensor; end it with :item()" or "a " .. type(value)
        fail('"%s" must return a finite number or nil; of %s it returned %s', one.name, place, got)
      end
      values[one.name], sum = value, sum + one.weight * (value or 0)
    end
    answer.reward = sum
    if not is_single or next(values) == nil then answer.rewards = values end -- an empty one counts as left out
  end
end

return reward_functions
