--- help and completion, as a user at a terminal sees them.

local completion = require "lockstep.help.completion"
local help = require "lockstep.help"
local nn = require "lockstep.nn"
local reference = require "lockstep.help.reference"
local repl = require "lockstep.repl"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local function contains(text, part) t.truthy(text:find(part, 1, true), ("%q is not in: %s"):format(part, text)) end

-- Help -----------------------------------------------------------------------------------------------

t.test("AnOperatorShowsItsSchemasAndACall", function()
  for _, text in ipairs { help.text(torch.matmul), help.text("torch.matmul"), help.text("matmul") } do
    contains(text, "torch.matmul(Tensor self, Tensor other) -> Tensor")
    contains(text, "local y = x:matmul(other)")
    t.equal(text:find("out", 1, true), nil) -- the overload that writes into a result says nothing new
  end
end)

t.test("ExamplesOfCommonOperatorsRun", function()
  local environment = { torch = torch, x = torch.ones { 2, 2 }, other = torch.ones { 2, 2 } }
  for _, name in ipairs { "relu", "matmul", "add", "sum", "mean", "softmax", "cumsum", "permute", "unsqueeze", "cat",
    "transpose", "gelu", "neg", "where", "exp", "flatten", "squeeze", "sort", "argmax", "zeros_like" } do
    local count = 0
    for example in help.text("torch." .. name):gmatch("\n    ([^\n]+)") do
      if not example:find("permute", 1, true) then -- its example names one dimension
        local chunk = assert(loadstring(example), example)
        local ok, message = pcall(setfenv(chunk, environment))
        t.truthy(ok, ("%s: %s"):format(example, tostring(message)))
      end
      count = count + 1
    end
    t.truthy(count > 0, name)
  end
end)

t.test("FunctionsAndClassesOfTheLibraryShowTheirComments", function()
  contains(help.text(nn.cross_entropy), "labels equal to `ignore_index` do not count")
  contains(help.text(nn.Linear), "uniform in +-1/sqrt(in)")
  contains(help.text(nn.Linear(2, 2)), "nn.Linear(")
  contains(help.text("optim.AdamW"), "optim.AdamW(params, opts)")
  contains(help.text("lockstep.optim.Optimizer.step"), "optim.Optimizer:step(factor, opts)")
  contains(help.text(require "lockstep.sharding"), "sharding.lockstep(iterator, opts)")
  contains(help.text(torch.ones { 2 }), "torch.Tensor:totable()")
  contains(help.text(), "batching ")
end)

--- Calls visit(name, value) for what a table of the library holds, and for what the groups in it do.
local function each_member(prefix, members, visit)
  for key, value in pairs(members) do
    if type(key) == "string" and key:sub(1, 1) ~= "_" then
      visit(prefix .. "." .. key, value)
      if type(value) == "table" and not rawget(value, "class_name") and not reference.find(prefix .. "." .. key) then
        each_member(prefix .. "." .. key, value, visit)
      end
    end
  end
end

t.test("EveryExportHasHelpByNameAndByValue", function()
  local count = 0
  for _, module in ipairs(reference.modules()) do
    if not module.name:find(".", 1, true) then
      local loaded = require(module.name == "lockstep" and "lockstep" or "lockstep." .. module.name)
      t.truthy(#help.text(loaded) > 0, module.name)
      each_member(module.name, loaded, function(name, value)
        count = count + 1
        local ok, text = pcall(help.text, name)
        t.truthy(ok and text:find("\n", 1, true), name .. ": " .. tostring(text))
        if type(value) == "function" or type(value) == "table" then
          ok, text = pcall(help.text, value)
          t.truthy(ok and not text:find("not Lockstep's", 1, true), name .. " by value: " .. tostring(text))
        end
      end)
    end
  end
  t.truthy(count > 150, count)
end)

t.test("AGroupListsItsFunctionsAndADataTypeSaysItsSize", function()
  contains(help.text(torch.cuda), "torch.cuda.synchronize")
  contains(help.text("batching.cost"), "batching.cost.transformer")
  contains(help.text("schedule.warmup_cosine"), "optim.schedule.warmup_cosine(")
  contains(help.text("torch.bfloat16"), "2 bytes")
  contains(help.text("torch.int64"), "8 bytes")
end)

t.test("AWrongNameIsAnErrorThatNamesTheNearest", function()
  local ok, message = pcall(help.text, "optim.AdmW")

  t.equal(ok, false)
  contains(message, 'there is nothing called "optim.AdmW"; did you mean "optim.AdamW"?')
end)

t.test("APartOfANameFindsItInWhateverCase", function()
  contains(help.text("adam"), "optim.AdamW(params, opts)")
  contains(help.text("adam"), "see also: optim.AdamW8bit, optim.AdamWOptions")
end)

t.test("TheSessionShowsAFunctionByHowItIsCalled", function()
  contains(repl.show(torch.cuda.synchronize), "torch.cuda.synchronize(")
  contains(repl.show(torch.matmul), "torch.matmul(Tensor self, Tensor other) -> Tensor")
  contains(repl.show(print), "function: ")
end)

t.test("NilIsNoQuestionForTheListOfModules", function()
  t.raises('help: the argument is nil; a name in quotes works too', help.help, nn.LSTMCell)
end)

t.test("AForeignValueIsReportedAsForeign", function()
  t.equal(help.text(12), "a number that is not Lockstep's")
  t.equal(help.text(function() end), "a function that is not Lockstep's")
end)

t.test("EveryModuleOfTheReferenceHasACommentAndFunctions", function()
  for _, module in ipairs(reference.modules()) do
    t.truthy(reference.summary(module) ~= "", module.name)
    t.truthy(#module.entries > 0, module.name)
  end
end)

-- Completion -------------------------------------------------------------------------------------------

local function complete(word, environment) return completion.complete(word, environment) end

t.test("TheReferenceListsWhatRequireFinds", function()
  for _, name in ipairs { "sharding.place_of", "sharding.is_one", "sharding.from_meta", "models.Decoder", "text.open",
    "images.open", "lockstep.named_flops", "lockstep.peak_lines" } do
    t.equal({ name, reference.find(name) }, { name })
  end
  for _, name in ipairs { "sharding.pack", "models.load", "text.chat", "nn.init.normal_", "torch.cuda.synchronize",
    "optim.AdamW", "optim.schedule.warmup_cosine", "lockstep.graph", "images.read", "sharding.fully_shard" } do
    t.equal({ name, reference.find(name) ~= nil }, { name, true })
  end
end)

t.test("NamesOfModulesAndOperatorsAreCompleted", function()
  t.equal(complete("torch.logsumex", { torch = torch }), { "torch.logsumexp" })
  t.equal(complete("to", { torch = torch, x = 1 }), { "torch" })
  t.equal(complete("nn.Lin", { nn = nn }), { "nn.Linear" })
  t.equal(complete("whi", {}), { "while" })
end)

t.test("MethodsStandBehindAColonAndFieldsBehindADot", function()
  local environment = { x = torch.ones { 2 } }

  t.equal(complete("x:totab", environment), { "x:totable" })
  t.equal(complete("x:logsumex", environment), { "x:logsumexp" })
  t.equal(complete("x.sha", environment), { "x.shape" })
  t.equal(complete("x.totab", environment), {})
end)

t.test("AModulesFieldsAndMethodsAreCompleted", function()
  local Net = nn.Module:subclass("Net")
  function Net:init() self.layer_up, self.blocks = nn.Linear(2, 2), nn.ModuleList { nn.Linear(2, 2) } end
  function Net:forward(x) return self.layer_up(x) end
  local environment = { model = Net() }

  t.equal(complete("model.lay", environment), { "model.layer_up" })
  t.equal(complete("model.layer_up.we", environment), { "model.layer_up.weight" })
  t.equal(complete("model:named_p", environment), { "model:named_parameters" })
  t.equal(complete("model:forw", environment), { "model:forward" })
end)

t.test("NothingOfTheUsersIsCalled", function()
  local trap = setmetatable({}, { __index = function() error("called") end })

  t.equal(complete("trap.a.b", { trap = trap }), {})
  t.equal(complete("missing.a", {}), {})
  t.equal(complete(":", {}), {})
  t.equal(complete("..", {}), {})
end)

-- Output of the session -----------------------------------------------------------------------------------

t.test("TablesShowWhatTheyHold", function()
  t.equal(repl.show { 1, "two", a = { b = { c = 1 } }, [5] = true }, '{1, "two", [5] = true, a = {b = {...}}}')
  t.equal(repl.show {}, "{}")
  t.equal(repl.show("as it is"), "as it is")
  t.equal(repl.show(nn.Linear), "class Linear")
  local many = {}
  for i = 1, 30 do many[i] = i end
  contains(repl.show(many), "20, ... 10 more}")
  t.equal(repl.show { nil, nil, 3, [1.5] = 1 }, "{[1.5] = 1, [3] = 3}")
  local cyclic = {}
  cyclic[cyclic] = cyclic
  t.equal(repl.show(cyclic), "{[{[{...}] = {...}}] = {[{...}] = {...}}}")
  t.equal(repl.show(setmetatable({ 1 }, { __metatable = 5, __index = function() error("called") end })), "{1}")
end)
