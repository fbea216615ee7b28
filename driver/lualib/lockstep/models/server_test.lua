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
    end)
  end)
end

-- Pictures ------------------------------------------------------------------------------------------

local PICTURES = "driver/images/testdata"

--- Returns ids as a tensor.
local function ids_of(...) return torch.tensor({ ... }, { dtype = torch.int64 }) end

--- Returns what the stand-in notes of a picture.
local function noted(kind, name)
  local digits = t.read_file(PICTURES .. "/" .. name):gsub(".", function(c) return ("%02x"):format(c:byte()) end)
  return ("data:image/%s;base64 %s"):format(kind, digits)
end

--- A question with two pictures of files, and one whose picture is bytes. The stand-in reads three ids for each.
local function questions()
  local first = { { role = "system", content = "s" }, { role = "user", content = { { type = "text", text = "a" },
    { type = "image", path = "jpeg_420.jpg" }, { type = "text", text = "bc" },
    { type = "image", path = "png_bits.png" }, { type = "text", text = "d" } } } }
  local second = { { role = "user", content = { { type = "image",
    image = t.read_file(PICTURES .. "/webp_lossy.webp") } } } }
  return { { messages = first, options = { folder = PICTURES, enable_thinking = false } }, { messages = second } },
    { { input_ids = ids_of(115, 97, 7, 7, 7, 98, 99, 7, 7, 7, 100), pixel_values = 1 },
      { input_ids = ids_of(7, 7, 7), pixel_values = 1 } }
end

t.test("PicturesAreSentAsTheBytesOfTheirFilesBetweenTheTextParts", function()
  local jpeg, png = noted("jpeg", "jpeg_420.jpg"), noted("png", "png_bits.png")
  for _, kind in ipairs { "vllm", "sglang" } do
    os.execute(("rm -rf '%s/%s'"):format(run.dir, kind))
    with_server(kind, function(url, seen)
      local server = models.server(url)
      local problems, prompts = questions()

      local ids, log_probs = server:generate(prompts, { max_new_tokens = { 2, 1 }, seed = 5, temperature = 0.7,
        stop = { 9 }, suppress = { 3 }, problems = problems })

      t.equal({ #ids[1], log_probs }, { 2, { { -0.5, -1.5 }, { -0.5 } } })
      local first, second = seen()[2], seen()[3] -- in any order
      if kind == "vllm" and #first.body.messages == 1 or kind == "sglang" and #first.body.input_ids == 3 then
        first, second = second, first
      end
      if kind == "vllm" then
        t.equal(first.path, "/v1/chat/completions")
        local function url_of(picture) return { type = "image_url", image_url = { url = picture } } end
        t.equal(first.body, { model = "base", max_tokens = 2, temperature = 0.7, seed = 5 * 65537 + 1,
          stop_token_ids = { 9 }, logprobs = true, top_logprobs = 0, return_token_ids = true, top_p = 1, top_k = -1,
          min_p = 0, repetition_penalty = 1, logit_bias = { ["3"] = -100 },
          chat_template_kwargs = { enable_thinking = false }, messages = { { role = "system", content = "s" },
            { role = "user", content = { { type = "text", text = "a" }, url_of(jpeg), { type = "text", text = "bc" },
              url_of(png), { type = "text", text = "d" } } } } })
        t.equal(second.body.messages[1].content, { url_of(noted("webp", "webp_lossy.webp")) })
        t.equal(problems[1].messages[2].content[2], { type = "image", path = "jpeg_420.jpg" })
      else
        t.equal({ first.path, first.body.input_ids, first.body.image_data },
          { "/generate", prompts[1].input_ids:totable(), { jpeg, png } })
        t.equal(second.body.image_data, { noted("webp", "webp_lossy.webp") })
      end
    end)
  end
end)

t.test("Base64IsThatOfRfc4648", function()
  local urls = require "lockstep.models.picture_urls"
  for length, digits in pairs { [0] = "/9j/", "/9j/Zg==", "/9j/Zm8=", "/9j/Zm9v", "/9j/Zm9vYg==", "/9j/Zm9vYmE=",
    "/9j/Zm9vYmFy" } do
    local bytes = "\255\216\255" .. ("foobar"):sub(1, length) -- a JPEG begins so
    local _, found = urls.of({ { role = "user", content = { { type = "image", image = bytes } } } }, ".")
    t.equal(found, { "data:image/jpeg;base64," .. digits })
  end
end)

t.test("PromptsThatTheServerReadsDifferentlyAreAnError", function()
  for _, kind in ipairs { "vllm", "sglang" } do
    os.execute(("rm -rf '%s/%s'"):format(run.dir, kind))
    with_server(kind, function(url)
      local server, all, prompts = models.server(url), questions()
      local function raises(message, prompt, problem)
        t.raises("models.server: " .. message, server.generate, server, { prompt },
          { max_new_tokens = { 1 }, problems = { problem } })
      end
      if kind == "vllm" then
        raises(url .. " read prompt 1 as 3 tokens, and it has 4 here; its chat template or its processor of pictures",
          { input_ids = ids_of(7, 7, 7, 7), pixel_values = 1 }, all[2])
        all[1].messages[1].content = "broken"
        raises(url .. " read token 1 of prompt 1 as 99, and it is 98 here; its chat template",
          { input_ids = ids_of(98, 114, 111, 107, 101, 110, 97, 7, 7, 7, 98, 99, 7, 7, 7, 100), pixel_values = 1 },
          all[1])
      else
        raises(url .. " read prompt 1 as 4 tokens, and it has 3 here",
          { input_ids = ids_of(999, 7, 7), pixel_values = 1 }, all[2])
      end
      raises("prompt 1 has pictures, but its problem has no messages", prompts[2])
      raises("prompt 1 has pictures, but the messages of its problem have none", prompts[2],
        { messages = { { role = "user", content = "a" } } })
      raises("prompt 1 has pictures and tools; a server answers a single turn", prompts[2], false)
      raises("prompt 1 has pictures and tools", prompts[2], { messages = all[2].messages, options = { tools = {} } })
      local function picture(part)
        return { messages = { { role = "user", content = { { type = "text", text = "a" }, part } } } }
      end
      raises("message 1, part 2: there is no file cat.png", prompts[2], picture { type = "image", path = "cat.png" })
      raises("message 1, part 2: driver/lualib/run_test.lua is no JPEG, PNG or WebP", prompts[2],
        picture { type = "image", path = "driver/lualib/run_test.lua" })
      raises("message 1, part 2 is a tensor", prompts[2], picture { type = "image", image = torch.zeros { 3, 4, 4 } })
      raises('message 1, part 2: "https://a/b.png" is on the network', prompts[2],
        picture { type = "image_url", image_url = { url = "https://a/b.png" } })
    end)
  end
end)

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
