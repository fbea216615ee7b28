--- text.conversation, text.preference and text.last_answer: what they accept, and the errors for what would teach
--- nothing.

local core = require "lockstep.core"
local data = require "lockstep.data"
local t = require "lockstep.testing"
local text = require "lockstep.text"

local function user(content) return { role = "user", content = content } end
local function assistant(content) return { role = "assistant", content = content } end

t.test("AConversationHasMessagesAndToolsInAListOrAsText", function()
  local messages, tool = { user "2 + 2?", assistant "4" }, { type = "function", ["function"] = { name = "add" } }

  local found, tools = text.conversation { messages = messages, id = 7 }
  t.equal(found, messages)
  t.equal(tools, nil)
  for _, given in ipairs { { tool }, core.json_encode { tool } } do
    t.equal({ select(2, text.conversation { messages = messages, tools = given }) }, { { tool } })
  end
  for _, none in ipairs { data.null, "null", {}, "[]" } do
    t.equal(#(select(2, text.conversation { messages = messages, tools = none }) or {}), 0)
  end
end)

t.test("ARoleThatWouldTeachNothingIsAnError", function()
  local function with(role)
    return { messages = { { role = "system", content = "s" }, user "a", { role = role, content = "b" } } }
  end
  for role, meant in pairs { gpt = "assistant", model = "assistant", asistant = "assistant", Assistant = "assistant",
    human = "user", usr = "user" } do
    local message = t.raises(('message 3 of "messages" has the unknown role "%s"; did you mean "%s"? (its roles are '
      .. "system, user, %s; known are assistant, "):format(role, meant, role), text.conversation, with(role))
    t.truthy(message:find(('If the template knows the role, give roles = "%s"'):format(role), 1, true), message)
  end
  for _, role in ipairs { "assistant", "tool", "developer", "function", "ipython", "observation" } do
    text.conversation(with(role))
  end
  text.conversation(with "critic", { roles = "planner, critic" })
  t.raises('the unknown role "critics"', text.conversation, with "critics", { roles = "planner,critic" })
end)

t.test("WhatIsNotAConversationIsNamed", function()
  local function complains(message, sample) t.raises("text.conversation: " .. message, text.conversation, sample) end
  local example = ' must be a list of messages, as in [{"role": "user", "content": "Hello"}], not '
  complains("a sample must be a table, not a string", "a line")
  complains('"conversations"' .. example .. "a table without a message", { conversations = {} })
  complains("this is no known form of a conversation: its keys are id. Known are messages; ShareGPT",
    { messages = data.null, id = 1 })
  complains('"messages"' .. example .. "a string", { messages = "2 + 2?" })
  complains('"messages"' .. example .. "a table without a message", { messages = { role = "user", content = "a" } })
  complains('message 2 of "messages" has no role; expected a string like "user"',
    { messages = { user "a", { content = "b" } } })
  complains('message 1 of "messages" has no role', { messages = { { role = 5 } } })
  complains('"tools" must be a list, or JSON of a list, not a table with keys',
    { messages = { user "a" }, tools = { name = "add" } })
  complains('"tools" must be a list, or JSON of a list, not a number', { messages = { user "a" }, tools = 5 })
  t.raises('"tools"', text.conversation, { messages = { user "a" }, tools = "[{]" })
  t.raises("roles must be a string, not a table", text.conversation, { messages = { user "a" } }, { roles = {} })
end)

t.test("APreferenceIsTwoConversationsWithOnePrompt", function()
  local prompt = { user "a", assistant "b", user "c" }
  local chosen, rejected = { assistant "d", user "e", assistant "f" }, { assistant "g" }

  local pair = text.preference { prompt = prompt, chosen = chosen, rejected = rejected, tools = "[]" }
  t.equal(pair, { chosen = { prompt[1], prompt[2], prompt[3], chosen[1], chosen[2], chosen[3] },
    rejected = { prompt[1], prompt[2], prompt[3], rejected[1] }, first = 4, tools = {} })

  -- Without a prompt it is what both begin with; at least one message of each is its completion.
  for _, none in ipairs { data.null, false } do
    local implicit = text.preference { prompt = none or nil, chosen = pair.chosen, rejected = pair.rejected }
    t.equal({ implicit.chosen, implicit.rejected, implicit.first }, { pair.chosen, pair.rejected, 4 })
  end
  t.equal(text.preference({ chosen = pair.rejected, rejected = pair.rejected }).first, 4)
  t.equal(text.preference({ chosen = { assistant "a" }, rejected = { assistant "a" } }).first, 1)
  t.equal(text.preference({ chosen = { user "a", assistant "b" }, rejected = { user "A", assistant "b" } }).first, 1)
end)

t.test("WhatIsNotAPreferenceIsNamed", function()
  local function complains(message, fields)
    local sample = { prompt = { user "a" }, chosen = { assistant "b" }, rejected = { assistant "c" } }
    for name, value in pairs(fields) do sample[name] = value end
    t.raises("text.preference: " .. message, text.preference, sample)
  end
  complains('"prompt" must be a list of messages, as in [{"role": "user", "content": "Hello"}], not a number',
    { prompt = 5 })
  complains('"chosen" must be a list of messages, as in [{"role": "user", "content": "Hello"}], not a number',
    { chosen = 4 })
  complains("this is no known form of a preference: its keys are chosen, prompt. Known are chosen and rejected",
    { rejected = data.null })
  complains('"chosen" must end with a message of the assistant, not of "user"',
    { chosen = { assistant "b", user "c" } })
  complains('message 1 of "rejected" has the unknown role "gpt"', { rejected = { { role = "gpt", content = "c" } } })
end)

t.test("TheLastAnswerIsTheAssistantsLastMessageWithText", function()
  local messages = { user "a", assistant "b", user "c", assistant " d \n", user "e" }
  t.equal({ text.last_answer(messages) }, { { messages[1], messages[2], messages[3] }, "d" })
  t.equal({ text.last_answer { user "a", assistant { { type = "text", text = "x" }, { type = "text", text = "y" } } } },
    { { user "a" }, "xy" })
  for _, none in ipairs { { user "a" }, { assistant "a" }, { user "a", { role = "assistant", tool_calls = { {} } } },
    { user "a", assistant "  " } } do
    t.equal(text.last_answer(none), nil)
  end
end)
