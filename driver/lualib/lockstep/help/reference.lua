--- Reads descriptions of the library's functions from the comments above them: for help, and for docs/reference.md.
---
---     local entry = reference.find("optim.AdamW")
---     print(entry.signature, table.concat(entry.text, "\n"))

local terminal = require "lockstep.core.terminal"

local M = {}

--- The modules in the order that a reader should meet them: the name that pages and help use, and the files that
--- say what is in it. Functions of the program have their comments in stubs, under types/.
local MODULES = {
  { "torch", "types/torch_functions.lua", "types/tensor.lua" },
  { "nn", "lockstep/nn.lua", "lockstep/nn/cross_entropy.lua", "lockstep/nn/activation.lua",
    "lockstep/nn/convolution.lua", "lockstep/nn/batch_norm.lua", "lockstep/nn/pooling.lua",
    "lockstep/nn/sequences/recurrent.lua", "lockstep/nn/sequences/multihead_attention.lua",
    "lockstep/nn/sequences/transformer.lua", "lockstep/nn/attention.lua", "lockstep/nn/rotary.lua",
    "lockstep/nn/fused.lua", "lockstep/nn/neftune.lua", "lockstep/nn/copy.lua" },
  { "nn.init", "lockstep/nn/initializers.lua" },
  { "optim", "lockstep/optim.lua", "lockstep/optim/groups.lua", "lockstep/optim/optimizer.lua",
    "lockstep/optim/grad_scaler.lua" },
  { "optim.schedule", "lockstep/schedule.lua" },
  { "distributed", "types/distributed.lua" },
  { "batching", "lockstep/batching.lua", "lockstep/batching/timing.lua", "lockstep/batching/survey.lua" },
  { "sharding", "lockstep/sharding.lua", "lockstep/sharding/data_parallel.lua", "lockstep/sharding/dataset.lua",
    "lockstep/sharding/fully_shard.lua", "lockstep/sharding/loops/accumulate.lua",
    "lockstep/sharding/loops/evaluate.lua", "lockstep/sharding/loops/infer.lua", "lockstep/sharding/loops/means.lua",
    "lockstep/sharding/pack.lua", "lockstep/sharding/grid.lua", "lockstep/sharding/parallelize.lua",
    "lockstep/sharding/pipeline.lua", "lockstep/sharding/propose.lua", "lockstep/sharding/tensor_parallel.lua",
    "lockstep/sharding/context_parallel.lua" },
  { "checkpoint", "lockstep/checkpoint.lua" },
  { "tiled_mlp", "lockstep/tiled_mlp.lua" },
  { "losses", "lockstep/losses.lua", "lockstep/losses/preferences.lua", "lockstep/losses/rollouts.lua",
    "lockstep/losses/reward_functions.lua", "lockstep/losses/dealing.lua" },
  { "losses.pairs", "lockstep/losses/pairs.lua" },
  { "losses.unpaired", "lockstep/losses/unpaired.lua" },
  { "models", "lockstep/models.lua", "lockstep/models/exact_answers.lua", "lockstep/models/generate_turns.lua",
    "lockstep/models/server.lua", "lockstep/models/decoder.lua" },
  { "mimo", "lockstep/mimo.lua", "lockstep/mimo/topology.lua", "lockstep/mimo/ownership.lua",
    "types/mimo_ownership.lua", "lockstep/mimo/loader.lua", "lockstep/mimo/reorder.lua", "lockstep/mimo/step.lua",
    "lockstep/mimo/state.lua", "lockstep/mimo/separate.lua" },
  { "lora", "lockstep/lora.lua" },
  { "float8", "lockstep/float8.lua" },
  { "text", "lockstep/text.lua", "lockstep/text/train_tokenizer.lua", "lockstep/text/chat.lua",
    "lockstep/text/chat/samples.lua", "lockstep/text/chat/tools.lua" },
  { "images", "lockstep/images.lua", "lockstep/images/processor.lua" },
  { "data", "lockstep/data.lua" },
  { "files", "lockstep/files.lua" },
  { "log", "lockstep/log.lua" },
  { "run", "lockstep/run.lua", "lockstep/run/elastic.lua" },
  { "lockstep", "lockstep.lua", "lockstep/graph.lua", "lockstep/watching.lua" },
  { "testing", "lockstep/testing.lua" },
}

---@class reference.Entry
---@field name string "nn.cross_entropy", "optim.AdamW:step", "sharding.DataParallelOptions"
---@field kind "function"|"type"|"constant"
---@field signature string how it is called; of a type its name
---@field text string[] what it does, with its example
---@field parameters string[] "name type what it is"
---@field returns string[]
---@field is_private boolean? for the library's own files: tagged ---@private, or its comment says "Private to ..."
---@field is_field boolean? a field of the module's class: public

---@class reference.Module
---@field name string
---@field text string[] the comment at the top of its first file
---@field entries reference.Entry[]

--- Sorts the lines of a comment into an entry.
local function read_comment(comment, entry)
  local last -- the list that ends with what a tag has begun: lines below it go on with that
  for _, line in ipairs(comment) do
    local tag, rest = line:match("^%-%-%-@(%a+) ?(.*)")
    if tag == "private" or not tag and line:find("Private to ", 1, true) then entry.is_private = true end
    if tag == "field" and rest:find("^private ") then
      last = { "" } -- lines below it are left out, too
    elseif tag == "param" or tag == "field" then
      table.insert(entry.parameters, rest)
      last = entry.parameters
    elseif tag == "return" then
      table.insert(entry.returns, rest)
      last = entry.returns
    elseif tag == "type" then
      local list, result = rest:match("^fun%((.*)%):? ?(.*)$")
      entry.signature = entry.name .. "(" .. (list or "") .. ")"
      if result and result ~= "" then table.insert(entry.returns, result) end
    elseif not tag and last then
      last[#last] = last[#last] .. " " .. line:gsub("^%-%-%- *", "")
    elseif not tag then
      table.insert(entry.text, (line:gsub("^%-%-%- ?", "")))
    end
  end
  while entry.text[#entry.text] == "" do table.remove(entry.text) end
  return entry
end

local function new_entry(name, kind, signature)
  return { name = name, kind = kind, signature = signature or name, text = {}, parameters = {}, returns = {} }
end

--- Class names as users write them: "lockstep.torch.cuda" is torch.cuda.
local function short(class) return (class:gsub("^lockstep%.", "")) end

--- Returns the object that a name at the left of a dot stands for, in a file of `module`.
local function owner_of(object, module, classes)
  local head, rest = object:match("^([%w_]+)(.*)$")
  return (head == "M" and module or classes[head] and short(classes[head]) or nil), rest
end

--- Reads one line of code with the comment above it. Returns an entry, or nothing.
local function read_line(line, comment, module, classes, base)
  local joined = table.concat(comment, "\n")
  local class = joined:match("%-%-%-@class ([%w_.]+)")
  local variable = line:match("^local ([%w_]+) = ")
  if class and variable then classes[variable] = class end
  local object, separator, name, list = line:match("^function ([%w_.]+)([.:])([%w_]+)%((.-)%)")
  if object then
    local owner, rest = owner_of(object, module, classes)
    if not owner or name:sub(1, 1) == "_" or #comment == 0 then return end
    local full = owner .. rest .. separator .. name
    return read_comment(comment, new_entry(full, "function", full .. "(" .. list .. ")"))
  end
  -- A file that returns one function, called as the file is.
  name, list = line:match("^local function ([%w_]+)%((.-)%)")
  if name == base and #comment > 0 then
    local full = module .. "." .. base
    return read_comment(comment, new_entry(full, "function", full .. "(" .. list .. ")"))
  end
  local field, value = line:match("^M%.([%w_]+) = (%S+)")
  if field and joined:find("---@type fun", 1, true) then
    local entry = read_comment(comment, new_entry(module .. "." .. field, "function"))
    entry.class = value
    return entry
  end
  if field and #comment > 0 then return read_comment(comment, new_entry(module .. "." .. field, "constant")) end
  -- Classes whose constructor is an entry are described there.
  if class and not short(class):find("^[%w_]+$") then
    local entry = read_comment(comment, new_entry(short(class), "type"))
    return entry
  end
end

--- Adds what the comment above `local M = {}` says of the module's fields.
local function read_fields(comment, module, found)
  for _, line in ipairs(comment) do
    local name, kind, text = line:match("^%-%-%-@field ([%w_]+) (%S+) (.*)$")
    if name and not kind:find("^fun%(") then
      local entry = new_entry(module .. "." .. name, "constant")
      entry.text, entry.returns, entry.is_field = { text }, { kind }, true
      found[#found + 1] = entry
    end
  end
end

local function read_file(path, module, found)
  local comment, classes, of_class = {}, {}, {}
  local base = path:match("([%w_]+)%.lua$")
  local lines = {}
  for line in (terminal.read_library(path) .. "\n"):gmatch("(.-)\r?\n") do lines[#lines + 1] = line end
  local top = {}
  for number, line in ipairs(lines) do
    if line:find("^%-%-%-") then
      comment[#comment + 1] = line
    else
      local is_top = #comment == number - 1
      if is_top and line == "" then
        top = read_comment(comment, new_entry(module, "type")).text
      elseif line == "local M = {}" then
        read_fields(comment, module, found)
      elseif #comment > 0 then
        local entry = read_line(line, comment, module, classes, base)
        local variable = line:match("^local ([%w_]+) = ")
        if entry and entry.kind == "type" and variable then of_class[variable] = entry end
        if entry and entry.class and of_class[entry.class] then
          local described = of_class[entry.class]
          for i, text in ipairs(described.text) do table.insert(entry.text, i, text) end
          for i = #found, 1, -1 do
            if found[i] == described then table.remove(found, i) end
          end
        end
        if entry and (#entry.text > 0 or #entry.parameters > 0 or #entry.returns > 0) then found[#found + 1] = entry end
      end
      comment = {}
    end
  end
  return top
end

--- Returns whether `require` finds an entry. Files of a module also hold functions for other files of the library.
local function is_public(entry, module)
  -- A field is not read here: reading run.dir makes the run's folder.
  if entry.kind == "type" or entry.is_field then return true end
  if entry.name:find(":", 1, true) or entry.name:sub(1, #module + 1) ~= module .. "." then
    return true
  end
  -- optim.schedule is a field of optim; the other modules with a dot are, too.
  local root = module:match "^[^.]+"
  local value = require(root == "lockstep" and root or "lockstep." .. root)
  for part in entry.name:sub(#root + 2):gmatch "[^.]+" do
    local ok, found = pcall(function() return value[part] end)
    if not ok or found == nil then return false end
    value = found
  end
  return true
end

local modules ---@type reference.Module[]?

--- All modules with what is in them, in the order of their files.
---@return reference.Module[]
function M.modules()
  if modules then return modules end
  modules = {}
  for _, listed in ipairs(MODULES) do
    local module = { name = listed[1], text = {}, entries = {} }
    for i = 2, #listed do
      local top = read_file(listed[i], module.name, module.entries)
      if i == 2 then module.text = top end
    end
    for i = #module.entries, 1, -1 do
      if not is_public(module.entries[i], module.name) then table.remove(module.entries, i) end
    end
    modules[#modules + 1] = module
  end
  return modules
end

--- Returns the entry of this name, with or without "lockstep." before it, or nil. A schedule may have the name that
--- scripts with `local schedule = optim.schedule` use.
---@param name string
---@return reference.Entry?
function M.find(name)
  local full = name
  name = short(name):gsub("^schedule%.", "optim.schedule.")
  local found
  for _, module in ipairs(M.modules()) do
    for _, entry in ipairs(module.entries) do
      local is_it = entry.name == name or entry.name == full or entry.name:gsub(":", ".") == name
      -- A constructor has the name of its class, and says more.
      if is_it and (not found or found.kind == "type") then found = entry end
    end
  end
  return found
end

--- The methods of a class: "torch.Tensor".
---@param class string
---@return reference.Entry[]
function M.methods(class)
  local methods = {}
  for _, module in ipairs(M.modules()) do
    for _, entry in ipairs(module.entries) do
      if entry.name:sub(1, #class + 1) == class .. ":" then methods[#methods + 1] = entry end
    end
  end
  return methods
end

--- The module of this name, or nil.
---@param name string
---@return reference.Module?
function M.find_module(name)
  for _, module in ipairs(M.modules()) do
    if module.name == short(name) then return module end
  end
end

--- Adds the lines of an entry to the page.
local function add_entry(add, entry)
  add("", "### `" .. entry.signature .. "`", "")
  add(unpack(entry.text))
  if #entry.text > 0 and #entry.parameters + #entry.returns > 0 then add("") end
  for _, parameter in ipairs(entry.parameters) do
    local name, rest = parameter:match("^(%S+)%s*(.*)$")
    add("- `" .. name .. "` " .. (rest:find("[{|<*]") and "`" .. rest .. "`" or rest))
  end
  for _, result in ipairs(entry.returns) do add("- returns `" .. result .. "`") end
end

--- All modules as a page of Markdown: docs/reference.md. Private entries are not in it; M.find has them.
---@return string
function M.page()
  local lines = {
    "# Reference", "",
    "What `require` finds, by module. Written from the comments in the code by",
    "`bazel-bin/driver/lockstep --nproc 1 docs/generate.lua docs`; a test says when it is stale.",
    "`torch` also holds every ATen operator: `help(torch.matmul)` in an interactive session shows its schemas.",
  }
  local function add(...)
    for _, line in ipairs { ... } do lines[#lines + 1] = line end
  end
  for _, module in ipairs(M.modules()) do
    add("", "## " .. module.name, "")
    add(unpack(module.text))
    for _, entry in ipairs(module.entries) do
      if not entry.is_private then add_entry(add, entry) end
    end
  end
  return table.concat(lines, "\n") .. "\n"
end

--- The first sentence of an entry or a module, for lists.
---@param entry {text: string[]}
---@return string
function M.summary(entry)
  local paragraph = {}
  for _, line in ipairs(entry.text) do
    if line == "" then break end
    paragraph[#paragraph + 1] = line
  end
  local text = table.concat(paragraph, " ")
  return (text:match("^(.-%.)%s") or text)
end

return M
