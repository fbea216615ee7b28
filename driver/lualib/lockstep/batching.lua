--- Micro-batches of one kind at every step on every rank: the library `batching` for scripts.
---
---     local batches, report = batching.prepare {
---       samples = samples, seq_len = 4096, ranks = dist.world_size(), rank = dist.rank(),
---     }
---     for _, batch in ipairs(batches[dist.rank() + 1]) do ... end

local core = require "lockstep.core"
local core_batching = require "lockstep.core.batching"
local core_sharding = require "lockstep.core.sharding"
local cutting = require "lockstep.batching.cutting"
local dist = require "lockstep.distributed"
local members_of = require "lockstep.sharding.members"
local options = require "lockstep.options"
local plain = require "lockstep.plain"
local survey = require "lockstep.batching.survey"

local M = { cost = {}, survey = survey.survey, samples_kept = survey.samples_kept,
  timing = require("lockstep.batching.timing").timing }

---@class batching.Sample
---@field input_ids torch.Tensor|integer[]
---@field loss_mask torch.Tensor|boolean[]|integer[] 1 or true for tokens that are trained on, else 0 or false; the
--- first token is never trained on, because no token before it predicts it
---@field position_ids torch.Tensor|integer[]? default: 0, 1, 2, ...; or [3, tokens], as models.position_ids returns
--- them for a sample with pictures
---@field kind string? default: by the tensors that the cut leaves, as "text", "image" or "image+video"
---@field [string] torch.Tensor|number[]|number streams ([tokens, ...]; a number holds for all), tensors

---@class batching.MicroBatch
---@field input_ids torch.Tensor int64 [length]
---@field loss_mask torch.Tensor bool [length]; false for the first token of each sample
---@field position_ids torch.Tensor int64 [length], starting anew at each sample; [3, length] if one of them has that
---@field seq_lens integer[] tokens of each sample; they sum to the length
---@field cu_seqlens torch.Tensor int32 [#seq_lens + 1]: 0 and the running sums
---@field kind string
---@field padding boolean copies with no loss token, which only keep the ranks aligned
---@field padding_tokens integer the last ones are padding; in a padding micro-batch all
---@field padding_values table<string, number|boolean> the value of each stream for padding; without token_types
---@field samples integer[] indices into `samples`; none for padding
---@field cost number
---@field shares nn.Shares? in micro-steps with split samples: the first of seq_lens are this rank's parts of them
---@field [string] torch.Tensor the streams, and the other tensors concatenated on dimension 0

---@class batching.Report
---@field micro_steps integer
---@field samples integer that the micro-batches have
---@field tokens integer of the samples, after the cut
---@field loss_tokens integer of these, those with a loss: as many as the micro-batches' loss_mask marks
---@field padding_tokens integer
---@field padding_micro_batches integer
---@field split_samples integer that groups of ranks share: see the option `split`
---@field truncated_samples integer samples that were cut and still have tokens
---@field truncated_tokens integer tokens that these and the dropped samples lost
---@field truncated_loss_tokens integer of these, those with a loss
---@field dropped_samples integer samples of which the cut left nothing, or that on_cut = "drop" left out
---@field samples_without_loss integer samples with no token that has a loss, or none that the cut left
---@field makespan number the sum over micro-steps of the most expensive rank's cost
---@field ideal number total cost / ranks
---@field fingerprint string a hash of all ranks' micro-batches; ranks with the same plan have the same
---@field lower_bound number no plan has a smaller makespan; 0 where the cost is a function, or samples were held

--- An entry of an index, as batching.describe returns it: plain values, which JSON can hold.
---@class batching.Entry
---@field tokens integer
---@field loss integer[] {begin, end, begin, end, ...}: the runs of tokens with a loss, from 0, without `end`
---@field kind string?
---@field tensors table<string, {dtype: string, shape: integer[]}>
---@field streams table<string, string|{dtype: string, shape: integer[]}> dtypes; with the shape where a token has
---    more than one number
---@field items table<"image"|"video"|"audio", integer[][]> {begin, end, rows} of each; {rows} where the sample does not
---    say where its placeholders are
---@field id any the script's own, for `load`

--- Options of both prepare and stream; see prepare.
local PREPARE = plain.copy(core_batching.defaults, {
  seq_len = options.required, ranks = options.optional, rank = options.optional, balance = "makespan",
  cost = options.optional, streams = {}, image_token_id = options.optional, video_token_id = options.optional,
  audio_token_id = options.optional, own_rows = {}, check = true, split = options.optional,
  together = false,
})

--- Takes the group of ranks out of the option `split`, and sets it beside the others.
local function read_split(name, o)
  if o.split == nil then return end
  local split = options.read(name .. ": split", o.split, { max_group = options.required, overhead = 0.05,
    group = options.optional })
  o.group = members_of(name, "split.group", split.group).group
  plain.check(not o.group or o.group:size() == o.ranks, "%s: split.group has %d ranks, but the plan is for %d", name,
    o.group and o.group:size(), o.ranks)
  split.group = nil
  o.split = split
end

--- Returns the options; whether these are the micro-batches that this rank trains on, as all others of the run do:
--- then ranks check that they agree; and whether each is given those of all ranks.
local function read(name, opts, more, default_rank)
  local o = options.read(name, opts, plain.copy(PREPARE, more))
  if o.balance == "round_robin" then
    options.note_unused(name, opts, { "mix_kinds", "worth_a_step" },
      'with balance = "round_robin", which keeps kinds apart and weighs no costs')
  end
  local together = o.together
  o.together = nil
  if together then
    plain.check(o.split == nil, "%s: together = true excludes split", name)
    plain.check(o.rank == nil or o.rank == dist.rank(), "%s: with together = true a rank is given the micro-batches of "
      .. "all ranks; leave rank out, got %s", name, tostring(o.rank))
    local check = o.check and dist.world_size() > 1
    o.rank, o.check, o.ranks = nil, nil, o.ranks or dist.world_size()
    return o, check, true
  end
  if o.rank == nil then o.rank = default_rank end
  local is_own = o.rank == dist.rank() or o.rank == nil and o.ranks == nil
  if o.ranks == nil then o.ranks = dist.world_size() end
  local check = o.check and is_own and o.ranks == dist.world_size() and dist.world_size() > 1
  o.check = nil
  read_split(name, o)
  return o, check
end

--- Returns the micro-batches of a rank from those of all ranks. With `together`: arrays, each with all ranks' of one
--- micro-step.
local function own_of(batches, rank, together)
  if not together then return batches[rank + 1] end
  local own = {}
  for i = 1, #batches[1] do
    own[i] = { kind = batches[1][i].kind }
    for row, micro_batches in ipairs(batches) do own[i][row] = micro_batches[i] end
  end
  return own
end

-- Agreement -----------------------------------------------------------------------------------------

--- "2 x image, 3 x text", in the order of the micro-steps.
local function kinds_of(micro_batches)
  local runs = {}
  for _, batch in ipairs(micro_batches) do
    local last = runs[#runs]
    if last and last.kind == batch.kind then
      last.count = last.count + 1
    else
      runs[#runs + 1] = { kind = batch.kind, count = 1 }
    end
  end
  for i, run in ipairs(runs) do runs[i] = run.count .. " x " .. tostring(run.kind) end
  return table.concat(runs, ", ")
end

--- Returns the values that all ranks must have alike. `report` covers all ranks: it is the same if they prepared the
--- same samples.
local function fingerprint_of(micro_batches, report)
  local fingerprint = ("%d micro-step%s"):format(#micro_batches, #micro_batches == 1 and "" or "s")
  if #micro_batches > 0 then fingerprint = fingerprint .. ": " .. kinds_of(micro_batches) end
  if not report then return fingerprint end
  return ("%s; %d tokens over all ranks, plan %s"):format(fingerprint, report.tokens, report.fingerprint)
end

local guard

--- One guard of all ranks serves every check. It waits as long as any collective of the run does: a rank may
--- come late.
local function check_agreement(label, fingerprint)
  guard = guard or core_sharding.guard({})
  guard:check(label, fingerprint)
end

--- Raises an error on every rank, before anything can hang, unless this rank's micro-batches have the same kinds in the
--- same order as those of all others. The error shows each rank's kinds. prepare and stream check this themselves; use
--- it for micro-batches from other sources. It uses the CPU: no device waits.
---
---     batching.agree(micro_batches)
---
--- Collective: every rank calls this.
---@param micro_batches {kind: string}[] of this rank
function M.agree(micro_batches)
  plain.check(type(micro_batches) == "table",
    "batching.agree: expected this rank's list of micro-batches, not a %s", type(micro_batches))
  for i, batch in ipairs(micro_batches) do
    plain.check(type(batch) == "table" and type(batch.kind) == "string", "batching.agree: element %d of the list is no "
      .. "micro-batch: it has no kind. Give one rank's list, batches[rank + 1]", i)
  end
  check_agreement("batching.agree", fingerprint_of(micro_batches))
end

-- Indexes -------------------------------------------------------------------------------------------

--- Returns the sizes of a sample, without its values: an entry of an index, from which prepare and stream plan. Make
--- one for each sample in a pass over the data, and keep them with data.save_json. Give the entry an `id` by which
--- `load` finds the sample.
---
---     local entry = batching.describe(sample)
---     entry.id = number
---
--- Options, as prepare's: streams, token_types, image_token_id, video_token_id, audio_token_id.
---@param sample batching.Sample
---@param opts table?
---@return batching.Entry
function M.describe(sample, opts)
  local o = options.read("batching.describe", opts, { streams = {}, token_types = PREPARE.token_types,
    image_token_id = options.optional, video_token_id = options.optional, audio_token_id = options.optional })
  return core_batching.describe(sample, o)
end

-- Preparation ---------------------------------------------------------------------------------------

--- Sets padding_values of each micro-batch of a rank, and whose shares they are. The stream of token types is no
--- weight: copies keep it.
local function complete(micro_batches, rank, o, group)
  local values = {}
  for name, fill in pairs(o.streams) do
    if type(fill) == "table" then fill = fill.padding == nil and 0 or fill.padding end
    if name ~= o.token_types then values[name] = fill end
  end
  for _, batch in ipairs(micro_batches) do
    batch.padding_values = values
    local shares = batch.shares
    if shares then shares.group, shares.rank, shares.num_ranks = group, rank, o.ranks end
  end
end

--- Cuts samples to seq_len (never inside an image, video or audio clip), packs them, pads each kind separately and
--- deals the micro-batches out: `batches[rank + 1][micro_step + 1]`. Ranks that prepare the same samples get the
--- same plan, without asking each other.
---
--- Collective if it makes the micro-batches that the calling rank trains on: with the caller's own `rank`, or with
--- neither `rank` nor `ranks`. Then the ranks compare kinds, number of micro-steps and plan. If they differ, every rank
--- gets an error that shows each rank's. `check = false` skips the comparison. A call with only `ranks` plans, and one
--- rank may make it for all.
---
--- Required options: samples; seq_len. In place of samples, `index` and `load` plan before any sample is loaded.
--- `index` has batching.describe(sample) of each, and `load(entry, number)` returns a sample. With `rank` it is called
--- only for that rank's samples, and those that its padding copies. The batches are the same, bit for bit. A sample
--- that differs from its entry is an error.
---
--- Optional: ranks (default: the world's size). With `rank` it makes only this rank's micro-batches; the other lists
--- stay empty. Others are pad_to_multiple_of = 1 (tokens), pad_token_id = 0, check = true, balance = "makespan"
--- (formerly "lockstep") or "round_robin". `cost` is batching.cost.tokens(), batching.cost.transformer{...} or a
--- function of seq_lens.
---
--- `streams` declares the values per token: {name = value}, or {name = {absent = 1, padding = 0}}. `absent` is the
--- value in samples without the stream. `padding` is the value in padding tokens and in whole padding micro-batches. A
--- value alone is both. In a table `padding` is 0 unless given: a loss with this weight learns nothing from padding.
---
--- `mix_kinds` = true lets samples ride in micro-batches of a kind that has their tensors and more, as text beside
--- images, if the plan gets better: makespan and micro-steps never grow. Only balance = "makespan" does it. With
--- "round_robin" this option and worth_a_step have no effect, and a line says so.
---
--- `own_rows` = {"name", ...} are tensors with any number of rows. Other tensors have one row for each sample, or the
--- rows of its images, videos or audio clips. Another call's samples may have a name that these lack.
---
--- `token_types` = "mm_token_type_ids" is the stream that marks the placeholders of images (1), videos (2) and audio
--- clips (3). Without it give image_token_id, video_token_id and audio_token_id, the placeholders' ids in input_ids.
--- Only samples that are longer than seq_len need either.
---
--- `split` = {max_group = 8} lets groups of 2, 4 or 8 consecutive ranks share a long sample in a micro-step, if the
--- plan gets better. The other ranks hold their own samples meanwhile, and so do these next to their shares. Only
--- samples without images, videos, audio clips or other tensors are split. `overhead` = 0.05 is what splitting adds to
--- the cost of a sample. `group`: the ranks of the plan, if they are not all ranks of the run, as grid:group "dp". Not
--- with a cost that is a function, and not with "round_robin". Give models the whole micro-batch: its field `shares`
--- says which of its sequences are parts of samples.
---
--- `worth_a_step` = 0.005 is the share of the makespan that one more micro-step must save.
---
--- `together` = true gives each rank the micro-batches of all `ranks`, for mimo.separate. batches[rank + 1] of the
--- calling rank then has an array for each micro-step: {rank 0's, rank 1's, ...}. `ranks` may differ from the world's
--- size.
---@param opts {samples: batching.Sample[]?, seq_len: integer, ranks: integer?, rank: integer?, [string]: any}
---@return batching.MicroBatch[][] batches
---@return batching.Report report
function M.prepare(opts)
  local o, check, together = read("batching.prepare", opts,
    { samples = options.optional, index = options.optional, load = options.optional })
  local has_index = o.index ~= nil and o.load ~= nil
  if o.samples == nil and not has_index then
    core.raise('batching.prepare: the option "samples" is missing; give it, or both index and load')
  elseif o.samples ~= nil and (o.index ~= nil or o.load ~= nil) then
    core.raise("batching.prepare: samples excludes index and load; give either")
  end
  local group = o.group
  o.group = nil
  local batches, report = core_batching.prepare(o)
  report.samples = #(o.samples or o.index) - report.dropped_samples
  for i, micro_batches in ipairs(batches) do complete(micro_batches, i - 1, o, group) end
  if together then batches = { [dist.rank() + 1] = own_of(batches, dist.rank(), true) } end
  if check then
    check_agreement("batching.prepare: by every rank, with the same samples and options; else check = false",
      fingerprint_of(batches[dist.rank() + 1], report))
  end
  return batches, report
end

--- Returns what a report lost to seq_len and to masks, for `counts` of log.step.
---
---     log.step { loss = loss, counts = batching.lost(report) }
---@param report batching.Report
---@return table<string, integer>
function M.lost(report)
  return { truncated_samples = report.truncated_samples, truncated_tokens = report.truncated_tokens,
    truncated_loss_tokens = report.truncated_loss_tokens, dropped_samples = report.dropped_samples,
    samples_without_loss = report.samples_without_loss }
end

-- Streaming -----------------------------------------------------------------------------------------

---@class batching.Stream
---@field drawn integer samples taken from the source so far
---@field windows integer windows handed out
---@field tokens integer tokens of samples handed out
---@field padding_tokens integer tokens of padding handed out
---@field held integer samples that wait at present
---@operator call: batching.MicroBatch[]?, batching.Report?
local Stream = {}
Stream.__index = Stream

-- The fields of a state.
local STATE = { "drawn", "windows", "tokens", "padding_tokens", "held", "samples", "ages", "ended", "stuck", "lost" }

local function copy(value) return type(value) == "table" and plain.copy(value) or value end

--- Plans over a window of a source that may have no end, and yields this rank's micro-batches of one window
--- after another:
---
---     local stream = batching.stream { source = next_sample, buffer = 512, seq_len = 4096, rank = dist.rank() }
---     for micro_batches, report in stream do
---       for _, batch in ipairs(micro_batches) do ... end
---     end
---
--- Samples of a micro-step that would need padding wait for the next window instead, for max_wait = 4 windows
--- at most; so padding is bounded, and `stream.padding_tokens` counts it. While one window trains, a thread
--- prepares the next, unless the cost is a Lua function.
---
--- Every rank reads the same samples from its own source. If rank is the caller's own, the ranks compare each window as
--- prepare does, and must call their streams equally often.
---
--- `on_cut` says what happens to samples that are longer than seq_len: "cut" (default); "drop" leaves them out, and
--- draws others in their place; "error" ends the run. The report counts what is lost.
---
--- Options: source, a function that returns the next sample or nil; buffer, samples of a window; max_wait; on_cut; rank
--- (default: this one); the options of prepare; and state, the result of `stream:state()`. With a state the source must
--- continue after `state.drawn` samples.
---
--- With `load`, the source returns entries of an index in place of samples, and `load(entry)` returns a sample. Each
--- rank then loads only its own samples, when the window's turn comes and not in the background.
---@param opts {source: (fun(): batching.Sample?), buffer: integer, seq_len: integer, [string]: any}
---@return batching.Stream
function M.stream(opts)
  local o, check, together = read("batching.stream", opts,
    { source = options.required, buffer = options.required, max_wait = 4, on_cut = "cut",
      state = options.optional, load = options.optional }, dist.rank())
  plain.check(plain.is_callable(o.source),
    "batching.stream: the source must be a function that returns the next sample, not a %s", type(o.source))
  plain.check(plain.is_whole(o.buffer, 1),
    "batching.stream: buffer must be a whole number of samples from 1 on, not %s", o.buffer)
  plain.check(o.max_wait >= 0, "batching.stream: max_wait must be a number of windows from 0 on, not %s", o.max_wait)
  plain.check(o.state == nil or type(o.state) == "table",
    "batching.stream: state must be what stream:state() returned, not a %s", type(o.state))
  cutting.check("batching.stream", o.on_cut)
  plain.check(o.on_cut ~= "drop" or not o.load, 'batching.stream: on_cut = "drop" needs samples; of an index leave the '
    .. "long entries out yourself")
  local stream = setmetatable({
    check = check, together = together, source = o.source, buffer = o.buffer, max_wait = o.max_wait,
    on_cut = o.on_cut, drawn = 0, windows = 0, tokens = 0, padding_tokens = 0, lost = cutting.none(), held = 0,
    samples = {}, ages = {}, ended = false, stuck = false,
  }, Stream)
  local state = o.state
  stream.group = o.group
  o.source, o.buffer, o.max_wait, o.state, o.on_cut, o.group = nil, nil, nil, nil, nil, nil
  stream.options = o
  if state then stream:restore("batching.stream", state) end
  return stream
end

--- Goes on from a state.
---@private
---@param caller string
---@param state table
function Stream:restore(caller, state)
  for _, key in ipairs(STATE) do
    local value = state[key]
    if value == nil and key == "lost" then value = cutting.none() end -- states of earlier versions
    if value == nil then core.raise(caller .. ": this is not a state of a stream: it lacks " .. key) end
    self[key] = copy(value)
  end
  self.resumes = self.drawn > 0
end

--- Draws samples until the window is full; nothing where the state holds the window already.
---@private
function Stream:fill()
  if self.resumes then
    self.resumes = nil
    return
  end
  local before = #self.samples
  while #self.samples < self.buffer and not self.ended do
    local sample, drawn = cutting.draw(self.source, self.on_cut, self.options.seq_len, self.lost)
    if sample == nil then
      self.ended = true
    else
      self.drawn = self.drawn + drawn
      self.samples[#self.samples + 1], self.ages[#self.ages + 1] = sample, 0
    end
  end
  -- Nothing came: waiting now would last forever.
  self.stuck = #self.samples == before
end

--- Starts on the next window.
---@private
function Stream:plan_ahead()
  self:fill()
  if #self.samples == 0 then return end
  local may_wait = {}
  for i, age in ipairs(self.ages) do may_wait[i] = age < self.max_wait and not self.stuck and not self.ended end
  local o = plain.copy(self.options)
  o[o.load and "index" or "samples"], o.may_wait = self.samples, may_wait
  if o.load or type(o.cost) == "function" then
    self.ahead = function() return core_batching.prepare(o) end
  else
    local preparation = core_batching.start(o)
    self.ahead = function() return preparation:wait() end
  end
end

--- Raises an error unless all ranks have come to the same window. Collective, where the stream is checked.
---@private
---@param window integer
---@param fingerprint string
function Stream:check_window(window, fingerprint)
  if not self.check then return end
  local label = ("batching.stream, window %d: by every rank, with the same source and options; else check = false")
    :format(window)
  check_agreement(label, fingerprint)
end

--- The next window's micro-batches of this rank, and the report over all ranks; nil at the end of the source.
---@return batching.MicroBatch[]? micro_batches
---@return batching.Report? report
function Stream:__call()
  while true do
    if not self.ahead then self:plan_ahead() end
    if not self.ahead then
      self:check_window(self.windows + 1, "the end of the source")
      self.check = false
      return nil
    end
    local batches, report, held = self.ahead()
    self.ahead = nil
    report.samples = #self.samples - #held - report.dropped_samples
    local samples, ages = {}, {}
    for i, index in ipairs(held) do samples[i], ages[i] = self.samples[index], self.ages[index] + 1 end
    self.samples, self.ages, self.held = samples, ages, #samples
    if report.micro_steps > 0 then
      self.windows, self.tokens = self.windows + 1, self.tokens + report.tokens
      self.padding_tokens = self.padding_tokens + report.padding_tokens
      cutting.refuse("batching.stream", self.on_cut, report, report.samples, self.options.seq_len)
      cutting.add(report, self.lost)
      self.lost = cutting.none()
      self:plan_ahead()
      for i, micro_batches in ipairs(batches) do complete(micro_batches, i - 1, self.options, self.group) end
      local own = own_of(batches, self.options.rank, self.together)
      self:check_window(self.windows, fingerprint_of(own, report))
      return own, report
    end
  end
end

--- All that is needed to go on after the window handed out last: give it to batching.stream with a source that
--- goes on after `state.drawn` samples. It holds the samples of the window that is prepared at present.
---@return table
function Stream:state()
  local state = {}
  for _, key in ipairs(STATE) do state[key] = copy(self[key]) end
  return state
end

--- As state, with the state of the source, which must have one (a data.loader has). For run:state.
---@return table
function Stream:state_dict()
  local of_source = type(self.source) == "table" and self.source.state_dict
  plain.check(of_source, "stream:state_dict: the source is a %s without state_dict; give batching.stream a "
    .. "data.loader, or keep stream:state() and what your source needs to go on", type(self.source))
  local state = self:state()
  state.source = of_source(self.source)
  return state
end

--- Goes on from what state_dict returned, before the first window is drawn.
---@param state table
function Stream:load_state_dict(state)
  if self.ahead or self.drawn > 0 then
    core.raise "stream:load_state_dict: the stream has begun; load before its first window"
  end
  plain.check(type(state) == "table",
    "stream:load_state_dict: expected what state_dict returned, got a %s", type(state))
  self:restore("stream:load_state_dict", state)
  self.source:load_state_dict(state.source)
end

-- Checking and drawing --------------------------------------------------------------------------------

--- Raises an error if a plan would hang the ranks or train on padding, with rank and micro-step. It detects unequal
--- counts, two kinds at one micro-step, tensors that only some ranks have, and padding with a loss or with other values
--- than `padding_values`. `batches` is the result of prepare, with the lists of all ranks.
---@param batches batching.MicroBatch[][]
function M.verify(batches) require("lockstep.batching.verify").verify(batches) end

--- Draws a plan as text: a row for each rank, a column for each micro-step, as wide as its most expensive rank. A
--- micro-batch is drawn with its kind's first letter, padding in small letters, waiting as dots. `batches` is the
--- result of prepare, with the lists of all ranks. With `svg` it is also drawn into that file.
---@param batches batching.MicroBatch[][]
---@param opts {width: integer?, svg: string?}? width: characters of a line, 100 unless given
---@return string
function M.draw(batches, opts)
  local o = options.read("batching.draw", opts, { width = 100, svg = options.optional })
  require("lockstep.batching.verify").check_batches("batching.draw", batches)
  plain.check(o.width >= 1 and o.width <= 10000,
    "batching.draw: width must be from 1 to 10000 characters, not %s", o.width)
  return require("lockstep.batching.plan_drawing").draw(batches, o.width, o.svg)
end

-- Costs ---------------------------------------------------------------------------------------------

--- Returns a cost: a micro-batch costs as much as it has tokens.
---@return {linear: number, quadratic: number}
function M.cost.tokens()
  return { linear = 1, quadratic = 0 }
end

--- A micro-batch costs the floating-point operations of a decoder, by the fields of its Hugging Face configuration:
--- hidden_size, num_hidden_layers, num_attention_heads, num_key_value_heads, head_dim, intermediate_size, vocab_size.
---
--- For latent attention it reads q_lora_rank, kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim, v_head_dim. For experts
--- it reads num_experts (or n_routed_experts, num_local_experts), num_experts_per_tok, moe_intermediate_size,
--- n_shared_experts or shared_expert_intermediate_size, first_k_dense_replace. For a vision tower it reads
--- vision_config = {hidden_size, depth, intermediate_size}.
---
--- A whole config.json (it has model_type or architectures) may hold other keys, too, and text_config. In another table
--- an unknown key is an error.
---@param config table<string, any>
---@return {linear: number, quadratic: number, image_linear: number, image_quadratic: number}
function M.cost.transformer(config)
  return require("lockstep.batching.transformer_cost").of(config)
end

return M
