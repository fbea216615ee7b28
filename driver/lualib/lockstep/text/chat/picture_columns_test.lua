-- Columns `images` and `image`, as TRL has them: their pictures take the places of the messages.

local data = require "lockstep.data"
local t = require "lockstep.testing"
local text = require "lockstep.text"
local torch = require "lockstep.torch"

local PLACE = { type = "image" }

local function words(value) return { type = "text", text = value } end
local function user(...) return { role = "user", content = select("#", ...) > 1 and { ... } or (...) } end
local function assistant(content) return { role = "assistant", content = content } end
local function picture(value) return { type = "image", image = value } end

t.test("PicturesTakeThePlacesInTheirOrder", function()
  local tensor = torch.zeros({ 3, 2, 2 }, { dtype = torch.uint8 })
  local own = { type = "image", path = "own.png" }
  local messages = { user(words "a", PLACE), assistant "b", user(own, { type = "image", path = data.null },
    { type = "text", text = "c", image = data.null }, PLACE), assistant "d" }
  local row = text.row { messages = messages, images = { "1.png", { bytes = "PNG", path = "x.png" }, tensor }, id = 7 }

  t.equal(row.messages, { user(words "a", picture "1.png"), assistant "b", user(own, picture "PNG", words "c",
    picture(tensor)), assistant "d" })
  t.equal(messages[1], user(words "a", PLACE)) -- the sample is as before
  t.equal(text.row(row).messages, row.messages)
  for _, one in ipairs { "1.png", { "1.png" }, { bytes = data.null, path = "1.png" } } do
    t.equal(text.row({ messages = { user(PLACE, words "a"), assistant "b" }, image = one }).messages[1],
      user(picture "1.png", words "a"))
  end
end)

t.test("WithoutPlacesPicturesComeBeforeTheFirstQuestion", function()
  local asked = user(picture "1.png", picture "2.png", words "a")
  local system = { role = "system", content = "s" }
  local images = { "1.png", "2.png" }
  t.equal(text.row({ messages = { system, user "a", assistant "b", user "c", assistant "d" }, images = images })
    .messages, { system, asked, assistant "b", user "c", assistant "d" })
  t.equal(text.row({ prompt = "a", completion = "b", images = images }).messages, { asked, assistant "b" })
  t.equal(text.prompt { prompt = "a", images = images }, { asked })
  for _, none in ipairs { data.null, {}, "" } do
    t.equal(text.row({ messages = { user "a", assistant "b" }, images = none }).messages[1], user "a")
    t.equal(text.row({ messages = { user "a", assistant "b" }, images = none, image = "1.png" }).messages[1],
      user(picture "1.png", words "a"))
  end
end)

t.test("BothAnswersOfAPairShareThePicturesOfThePrompt", function()
  local asked = user(picture "1.png", words "a")
  local places = user(PLACE, words "a")
  for _, sample in ipairs {
    { prompt = "a", chosen = "b", rejected = "c", image = "1.png" },
    { prompt = { places }, chosen = { assistant "b" }, rejected = { assistant "c" }, images = { "1.png" } },
    { chosen = { places, assistant "b" }, rejected = { user(PLACE, words "a"), assistant "c" }, images = { "1.png" } },
  } do
    local pair = text.preference(sample)
    t.equal(pair, { chosen = { asked, assistant "b" }, rejected = { asked, assistant "c" }, first = 2 })
    t.truthy(rawequal(pair.chosen[1], pair.rejected[1])) -- so that its pictures are read once
  end
end)

t.test("RowsOfASourceHavePicturesInTheirMessagesAlone", function()
  local source = data.conversations { { prompt = "a", chosen = "b", rejected = "c", images = { "1.png" }, id = 7 } }
  t.equal({ source[1].images, source[1].pictures, source[1].id }, { nil, nil, 7 })
  t.equal(source[1].chosen[1], user(picture "1.png", words "a"))
end)

t.test("NumbersThatDifferAndWhatIsNoPictureAreNamed", function()
  local function refuses(message, sample) t.raises(message, data.conversations, { sample }) end
  local question = { user(PLACE, words "a"), assistant "b" }

  refuses('sample 1: data.conversations: the messages have 1 places {"type": "image"} without a path, but "images" '
    .. "has 2 pictures", { messages = question, images = { "1.png", "2.png" } })
  refuses('have 2 places {"type": "image"} without a path, but "image" has 1 pictures',
    { prompt = { user(PLACE, PLACE) }, chosen = "b", rejected = "c", image = "1.png" })
  refuses('have 1 places {"type": "image"} without a path, but "images" has 0 pictures',
    { messages = question, images = {} })
  refuses('have 0 places {"type": "image"} without a path, but "images" has 1 pictures',
    { prompt = { user(words "a", words "b") }, completion = "c", images = { "1.png" } })
  refuses('have 0 places {"type": "image"} without a path, but "image" has 1 pictures',
    { messages = { user(words "a", words "b"), assistant "c", user "d", assistant "e" }, image = "1.png" })
  local path = { path = "1.png" }
  for got, images in pairs { ["a number"] = { 5 }, absent = { data.null }, ["an empty string"] = { "" },
    ["a table without these keys"] = { url = "1.png" }, ["a table without these keys "] = { { path } } } do
    refuses('picture 1 of "images" must be a path, the bytes of a file, {"bytes", "path"} or a tensor, not '
      .. got:gsub(" $", ""), { messages = question, images = images })
  end
  refuses('"image" is not read in this form', { instruction = "a", output = "b", image = "1.png" })
end)
