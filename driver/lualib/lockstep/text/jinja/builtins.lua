--- The functions that every template has: namespace, range, dict, joiner, raise_exception, strftime_now.

local limits = require "lockstep.text.jinja.limits"
local values = require "lockstep.text.jinja.values"

jit.off(true, true) -- compiling traces of a template takes longer than it saves

local M = {}

local fail = values.fail

local LARGEST_RANGE = 100000
local MAX_FORMAT = 1000 -- of strftime_now

local function add(name, fn) M[name] = { kind = "function", name = name, fn = fn } end

local function check_no_names(name, kwargs)
  if #kwargs > 0 then fail(("%s() takes no argument by name, got %s"):format(name, kwargs[1][1])) end
end

--- Fills a dict from dict(other, a = 1), or from pairs.
local function fill_dict(dict, name, args, n, kwargs)
  if n > 1 then fail(("%s() takes one argument by place, got %d"):format(name, n)) end
  local first = args[1]
  if n == 1 and type(first) == "table" and first.kind == "dict" then
    for i = 1, first.n do values.set_item(dict, first[i], first.map[values.key_of(first[i])]) end
  elseif n == 1 then
    local pairs_, size = values.to_array(first)
    for i = 1, size do
      local pair, length = values.to_array(pairs_[i])
      if length ~= 2 then fail(("%s() needs pairs of key and value"):format(name)) end
      values.set_item(dict, pair[1], pair[2])
    end
  end
  for _, pair in ipairs(kwargs) do values.set_item(dict, pair[1], pair[2]) end
  return dict
end

add("dict", function(args, n, kwargs) return fill_dict(values.dict(), "dict", args, n, kwargs) end)

--- Checks the name of an item of a namespace.
---@param name string
---@param line integer? of the statement; default: the line that runs
function M.check_namespace_item(name, line)
  if type(name) == "string" and name:sub(1, 1) == "_" then
    values.fail_at(line or values.position.line,
      ("a namespace cannot hold %s: names that begin with _ are refused"):format(name))
  end
end

add("namespace", function(args, n, kwargs)
  local held = fill_dict(values.dict(), "namespace", args, n, kwargs)
  for i = 1, held.n do M.check_namespace_item(held[i]) end
  held.kind = "namespace"
  return held
end)

add("range", function(args, n, kwargs)
  check_no_names("range", kwargs)
  if n < 1 or n > 3 then fail(("range() takes 1 to 3 arguments, got %d"):format(n)) end
  local numbers = {}
  for i = 1, n do
    local number, is_float = values.number_of(args[i])
    if not number or is_float then fail("range() needs integers, got a " .. values.type_name(args[i])) end
    numbers[i] = number
  end
  local start, stop, step = 0, numbers[1], numbers[3] or 1
  if n > 1 then start, stop = numbers[1], numbers[2] end
  if step == 0 then fail("the step of range() cannot be 0") end
  local size = math.max(0, math.ceil((stop - start) / step))
  if size > LARGEST_RANGE then fail(("range() of %d numbers is too large; at most %d"):format(size, LARGEST_RANGE)) end
  local text = ("range(%d, %d%s)"):format(start, stop, step ~= 1 and (", %d"):format(step) or "")
  limits.reserve_array(size)
  local range = { kind = "range", n = size, text = text }
  for i = 1, size do range[i] = start + (i - 1) * step end
  return range
end)

add("joiner", function(args, n, kwargs)
  check_no_names("joiner", kwargs)
  local separator, is_first = n > 0 and args[1] or ", ", true
  return { kind = "function", name = "joiner", fn = function()
    if not is_first then return separator end
    is_first = false
    return ""
  end }
end)

add("raise_exception", function(args)
  error({ refusal = args[1] == nil and "" or values.str(args[1]), line = values.position.line }, 0)
end)

add("strftime_now", function(args, n)
  if n ~= 1 or type(args[1]) ~= "string" then fail("strftime_now() takes one str, the format") end
  if #args[1] > MAX_FORMAT then fail(("strftime_now: the format has more than %d bytes"):format(MAX_FORMAT)) end
  local format = args[1]:gsub("%%[zZ]", "")
  if format:find("%%f") then fail("strftime_now: %f is not supported") end
  return os.date(format)
end)

return M
