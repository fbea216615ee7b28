--- losses.unpaired: answers that are labelled good or bad, each on its own, as samples for batching.

local checks = require "lockstep.losses.checks"
local log = require "lockstep.log"
local options = require "lockstep.options"
local pictures = require "lockstep.losses.pictures"
local read = require "lockstep.losses.reading"
local survey = require "lockstep.batching.survey"
local text = require "lockstep.text"
local torch = require "lockstep.torch"

local NAME = "losses.unpaired"
local I64 = { dtype = torch.int64 }

local M = {}

--- KTO's authors advise that all wanted answers together weigh at most this many times the others.
local MOST = 4 / 3

--- Returns the number of tokens before the answer. A sample has an answer.
local function prompt_length(sample) return sample.loss_mask:int():argmax(0):item() end

--- Returns whether an answer is wanted.
local function read_label(row)
  if type(row.label) == "boolean" then return row.label end
  if row.label == 0 or row.label == 1 then return row.label == 1 end
  local got = type(row.label) == "string" and '"' .. row.label .. '"' or tostring(row.label)
  error(('%s: "label" must be true or false, got %s'):format(NAME, row.label == nil
    and "none; answers without labels are for finetune.lua" or got), 0)
end

--- Returns the labelled conversations of a row: {messages, label, options of chat:encode}. A pair has two.
local function conversations_of(row)
  if row.chosen then
    local more = { loss_from = row.first }
    return { { row.chosen, true, more }, { row.rejected, false, more } }
  end
  if not row.messages then error(NAME .. ': "text" is no conversation: it has no prompt', 0) end
  return { { row.messages, read_label(row), { loss = row.lockstep_is_completed and "all" or "last" } } }
end

--- Raises an error for a picture behind the prompt: an answer is also scored behind other prompts.
local function check_answer(sample, types)
  for i = prompt_length(sample) + 1, sample.loss_mask:any():item() and #types or 0 do
    if types[i] == 1 then error(NAME .. ": the answer has a picture; only prompts may have some", 0) end
  end
end

--- Prints a warning if the weights do not make up for the numbers of the labels.
local function check_weights(wanted, others, desirable, undesirable)
  for label, one in pairs { ["true"] = { wanted, desirable }, ["false"] = { others, undesirable } } do
    if one[1] == 0 or one[2] == 0 then
      return log.print(("warning: %s; KTO learns from both"):format((one[1] == 0 and "no answer is labelled %s"
        or "answers labelled %s have the weight 0"):format(label)))
    end
  end
  local ratio = wanted * desirable / (others * undesirable)
  -- The tolerance lets the warning's own numbers, which are rounded, pass.
  if ratio >= 0.99 and ratio <= MOST * 1.01 then return end
  local for_wanted, for_others = others * undesirable / wanted, wanted * desirable / others
  log.print(("warning: wanted answers weigh %.3g times the others (%d x %g to %d x %g), and KTO's authors advise 1 to "
    .. "%.2f times: desirable_weight from %.3g to %.3g, or undesirable_weight from %.3g to %.3g"):format(ratio, wanted,
    desirable, others, undesirable, MOST, for_wanted, for_wanted * MOST, for_others / MOST, for_others))
end

--- Returns the answers of a source as samples with `desirable`, int64 [1], and what it found. A row has a column
--- `label`, true or false, and a prompt with a completion; of other conversations the last message of the assistant is
--- the answer. A preference pair is two answers; the chosen one is wanted.
---
---     local samples, found = losses.unpaired.read(source, chat, { tokenizer = tokenizer, seq_len = 1024 })
---
--- Skips answers without a token, and those that are longer than seq_len with their prompt. The latter are an error
--- unless on_cut is "drop". Prints the form of the data with its first answer, the counts of both labels, and how many
--- messages each role has. Warns if the weights of the labels do not make up for their numbers: the wanted answers
--- should weigh 1 to 4/3 times the others. All skipped answers are in skipped.txt of the run's folder. With `processor`
--- prompts may have pictures: see losses.pairs.read.
---@param source data.Conversations
---@param chat table of text.chat
---@param opts {tokenizer: text.Tokenizer, seq_len: integer, renderer: string?, on_cut: ("error"|"drop")?,
--- desirable_weight: number?, undesirable_weight: number?, processor: images.Processor?}
---@return batching.Sample[]
---@return losses.Found found with `desirable` and `undesirable`, the numbers of answers; `rows` are the groups of
--- data.split, so that both answers of a pair are held out, or none
function M.read(source, chat, opts)
  local o = options.read(NAME .. ".read", opts, { tokenizer = options.required, seq_len = options.required,
    renderer = options.optional, on_cut = "error", desirable_weight = 1, undesirable_weight = 1,
    processor = options.optional })
  for _, name in ipairs { "desirable_weight", "undesirable_weight" } do
    local weight = o[name]
    checks.number("unpaired.read", name, weight, type(weight) == "number" and weight >= 0 and weight < math.huge,
      "at least 0")
  end
  local function encode(encoder, messages, label, row, more)
    more.renderer = o.renderer
    local sample = encoder(messages, text.options(row, more))
    sample.loss_mask[1] = 0 -- no token before it predicts it
    local made = { kind = "answer", input_ids = torch.tensor(sample.input_ids, I64),
      loss_mask = torch.tensor(sample.loss_mask):bool(), desirable = torch.tensor({ label and 1 or 0 }, I64) }
    if sample.pixel_values then
      made.kind, made.pixel_values, made.image_grid_thw = "answer+image", sample.pixel_values, sample.image_grid_thw
      check_answer(made, sample.mm_token_type_ids)
    end
    local length = #sample.input_ids
    return { made, length > o.seq_len and length .. " tokens" or not made.loss_mask:any():item()
      and "the answer has no token" or nil }
  end
  local num_wanted, num_all = 0, 0
  local samples, found = read(source, {
    name = "answers", caller = "unpaired.read", reads = { "label" },
    encode = function(row)
      local encoded, encoder = {}, pictures.encoder(chat, { processor = o.processor, folder = source.folder })
      for i, one in ipairs(conversations_of(row)) do encoded[i] = encode(encoder, one[1], one[2], row, one[3]) end
      if #encoded == 2 and pictures.are_same(encoded[1][1], encoded[2][1]) then
        for _, one in ipairs(encoded) do one[2] = "chosen and rejected are the same" end
      end
      return encoded
    end,
    count_roles = function(roles, row)
      survey.count_roles(roles, row.chosen or row.messages)
      if row.chosen then survey.count_roles(roles, { unpack(row.rejected, row.first) }) end
    end,
    fields = function(samples)
      for _, sample in ipairs(samples) do num_wanted = num_wanted + sample.desirable:item() end
      num_all = #samples
      return { desirable = num_wanted, undesirable = num_all - num_wanted }
    end,
  }, o)
  found.desirable, found.undesirable = num_wanted, num_all - num_wanted
  if num_all > 0 then check_weights(num_wanted, found.undesirable, o.desirable_weight, o.undesirable_weight) end
  return samples, found
end

--- Returns the samples' prompts, each with the answer to another one, for the divergence in losses.kto: the answer of
--- the next sample that has another prompt and fits into seq_len. A prompt without such a sample is left out.
---
---     local others = losses.unpaired.mismatched(drawn, { seq_len = 1024 })
---@param samples batching.Sample[] of losses.unpaired.read
---@param opts {seq_len: integer}
---@return batching.Sample[]
function M.mismatched(samples, opts)
  local o = options.read(NAME .. ".mismatched", opts, { seq_len = options.required })
  local prompts, keys, others = {}, {}, {}
  for i, sample in ipairs(samples) do
    prompts[i] = sample.input_ids:narrow(0, 0, prompt_length(sample))
    keys[i] = table.concat(prompts[i]:totable(), " ") .. (sample.pictures and " " .. sample.pictures.checksum or "")
  end
  for i, prompt in ipairs(prompts) do
    for k = i, i + #samples - 2 do
      local j = k % #samples + 1
      local from, length = #prompts[j], #samples[j].input_ids - #prompts[j]
      if keys[i] ~= keys[j] and #prompt + length <= o.seq_len then
        others[#others + 1] = { kind = samples[i].kind, input_ids = torch.cat { prompt,
          samples[j].input_ids:narrow(0, from, length) }, loss_mask = torch.cat { torch.zeros { #prompt }:bool(),
          samples[j].loss_mask:narrow(0, from, length) }, pixel_values = samples[i].pixel_values,
          image_grid_thw = samples[i].image_grid_thw, pictures = samples[i].pictures }
        break
      end
    end
  end
  return others
end

return M
