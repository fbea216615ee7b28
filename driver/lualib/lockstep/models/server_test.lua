-- models.server against a stand-in for vLLM and SGLang: what it sends, and what it makes of the answers.

local models = require "lockstep.models"
local with_server = require "lockstep.models.server_fixture"
local run = require "lockstep.run"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local PROMPTS = { { input_ids = torch.tensor({ 1, 2 }, { dtype = torch.int64 }) },
  { input_ids = torch.tensor({ 7 }, { dtype = torch.int64 }) } }

for _, kind in ipairs { "vllm", "sglang" } do
  t.test("AnswersHaveTheIdsAndLogProbabilitiesOf_" .. kind, function()
    with_server(kind, function(url, seen)
      local server = models.server(url .. "/", { parallel = 2 })
      t.equal({ server.kind, server.model }, { kind, "base" })

      local ids, log_probs = server:generate(PROMPTS, { max_new_tokens = { 3, 1 }, temperature = 0.7, seed = 5,
        stop = { 9 }, suppress = { 3, 8 } })

      t.equal(ids, { { 3, 4, 5 }, { 7 } })
      t.equal(log_probs, { { -0.5, -1.5, -2.5 }, { -0.5 } })
      local bodies = {}
      for i = 2, 3 do
        local body = seen()[i].body
        bodies[#(body.prompt or body.input_ids) == 2 and 1 or 2] = body
      end
      if kind == "vllm" then
        t.equal(bodies[1], { model = "base", prompt = { 1, 2 }, max_tokens = 3, temperature = 0.7, seed = 5 * 65537 + 1,
          stop_token_ids = { 9 }, logprobs = 0, return_token_ids = true, top_p = 1, top_k = -1, min_p = 0,
          repetition_penalty = 1, logit_bias = { ["3"] = -100, ["8"] = -100 } })
        t.equal(bodies[2].seed, 5 * 65537 + 2)
        server:generate(PROMPTS, { max_new_tokens = { 1, 1 }, seed = 8e15 + 1 }) -- more digits than a product has
        local one, other = seen()[4].body.seed, seen()[5].body.seed
        t.equal({ math.abs(one - other), one >= 0 and one < 2 ^ 31 and one % 1 == 0 }, { 1, true })
      else
        t.equal(bodies[1], { input_ids = { 1, 2 }, return_logprob = true,
          sampling_params = { max_new_tokens = 3, temperature = 0.7, stop_token_ids = { 9 }, top_p = 1, top_k = -1,
            min_p = 0, repetition_penalty = 1, logit_bias = { ["3"] = -100, ["8"] = -100 } } })
      end
      t.equal({ server:generate({}, { max_new_tokens = {} }) }, { {}, {} })
      t.raises("prompt 1 has pictures", server.generate, server, { { pixel_values = 1 } }, { max_new_tokens = { 1 } })
    end)
  end)
end

t.test("WeightsAndAdaptersAreLoadedFromAFolder", function()
  for kind, paths in pairs { vllm = { "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/collective_rpc" },
    sglang = { "/load_lora_adapter", "/unload_lora_adapter", "/update_weights_from_disk" } } do
    os.execute(("rm -rf '%s/%s'"):format(run.dir, kind))
    with_server(kind, function(url, seen)
      local server = models.server(url)
      server.tag = 7
      server:load("/w/step-000001", true)
      server:load("/w/step-000002", true)
      server:generate({ PROMPTS[2] }, { max_new_tokens = { 1 } })
      local second = seen()
      server:load("/w/step-000003")
      local requests = seen()

      t.equal({ requests[2].path, requests[2].body }, { paths[1],
        { lora_name = "step-000001-7", lora_path = "/w/step-000001" } })
      t.equal({ requests[4].path, requests[4].body }, { paths[2], { lora_name = "step-000001-7" } })
      t.equal(requests[5].body.model or requests[5].body.lora_path, "step-000002-7")
      t.equal(requests[6].path, paths[3])
      t.equal(requests[6].body.model_path or requests[6].body.kwargs.weights_path, "/w/step-000003")
      t.equal({ #second, requests[7] and requests[7].path }, { 5, kind == "vllm" and "/reset_prefix_cache" or nil })
      t.raises(kind == "vllm" and "/collective_rpc answered rank 0 with status 404: {\"error\": \"none\"}"
        or "/update_weights_from_disk did not succeed: {\"success\": false, \"message\": \"no such folder\"}",
        server.load, server, "/w/broken")
    end)
  end
end)

t.test("BrokenAndLateAnswersNameTheServerAndTheRank", function()
  for _, kind in ipairs { "vllm", "sglang" } do
    os.execute(("rm -rf '%s/%s'"):format(run.dir, kind))
    with_server(kind, function(url)
      local server = models.server(url, { timeout_s = 5 })
      local function raises(number, expected)
        local prompt = { input_ids = torch.tensor({ number }, { dtype = torch.int64 }) }
        t.raises(expected, server.generate, server, { prompt }, { max_new_tokens = { 1 } })
      end
      raises(1000, 'answered rank 0 with status 500: {"error": "out of memory"}')
      raises(1001, url .. ' gave rank 0 0 ids and 0 log-probabilities (vLLM needs return_token_ids, 0.10.2 and newer) '
        .. 'for prompt 1. Its answer: "login"')
      raises(1002, "Its answer: true")
      raises(1003, "gave rank 0 0 ids and 0 log-probabilities")
      if kind == "vllm" then raises(1004, "gave rank 0 2 ids and 1 log-probabilities") end
      raises(1005, kind == "vllm" and "gave rank 0 the log-probability userdata" or "the log-probability userdata")
      raises(1006, "gave rank 0 the id a for prompt 1")
      raises(1007, "gave rank 0 2 ids, more than max_new_tokens = 1, for prompt 1")

      server.wait_s, server.timeout_s = 0.01, 1
      local _, heard = t.listening(raises, 1999, "rank 0 got no answer of " .. url)
      t.truthy(heard:find("models.server: rank 0 has waited %d s for 1 answers of http"), heard)
      server.timeout_s = 0.1
      raises(1999, "; longer answers need a larger timeout_s")
    end)
  end
end)

t.test("WhatIsNoServerIsNamed", function()
  t.raises('the address must be like "http://127.0.0.1:8000", not localhost', models.server, "localhost")
  t.raises("parallel must be a whole number from 1 to 300", models.server, "http://a", { parallel = 0 })
  t.raises("timeout_s must be a number above 0, not 0", models.server, "http://a", { timeout_s = 0 })
  t.raises("rank 0 got no answer of http://127.0.0.1:1/v1/models: ", models.server, "http://127.0.0.1:1")
  with_server("other", function(url)
    t.raises("is a server of other, not of vllm or sglang", models.server, url)
  end)
end)
