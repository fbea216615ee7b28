-- Deals pictures to the ranks of a tower in random cases, and compares with the rules that the bridge has.

local t = require "lockstep.testing"
local torch = require "lockstep.torch"
local visual_deal = require "lockstep.mimo.visual_deal"

local random = 7
local function draw(n)
  random = (random * 16807) % 2147483647
  return math.floor(random / 1000) % n
end

--- Returns batches of `ranks` ranks with up to `most` pictures each. The pixels of a picture hold its number.
local function draw_batches(ranks, most)
  local batches, number = {}, 0
  for rank = 1, ranks do
    local grids, pixels = {}, {}
    for i = 1, draw(most + 1) do
      number = number + 1
      grids[i] = { 1, 2 * (1 + draw(3)), 2 * (1 + draw(3)) }
      pixels[i] = torch.full({ grids[i][2] * grids[i][3], 2 }, number)
    end
    batches[rank] = #grids > 0 and { pixel_values = torch.cat(pixels),
      image_grid_thw = torch.tensor(grids, { dtype = torch.int64 }) } or {}
  end
  return batches
end

t.test("EachPictureGoesToOneRankInTheOrderOfTheLineAndTheBridgeCutsAtTheSamePlaces", function()
  for _ = 1, 300 do
    local vision, language = 1 + draw(5), 1 + draw(5)
    local batches = draw_batches(language, 6)
    local deal = visual_deal.deal(batches, vision, 2)

    local line, seen, tokens_of_rank = {}, {}, {}
    for i, batch in ipairs(batches) do
      tokens_of_rank[i] = batch.pixel_values and batch.pixel_values:size(0) / 4 or 0
      if batch.pixel_values then line[#line + 1] = batch.pixel_values end
    end
    t.equal(#deal.rows % vision, 0)
    t.equal(#deal.rows % language, 0)
    local per_vision, per_language = #deal.rows / vision, #deal.rows / language
    for rank = 0, vision - 1 do
      local own, expected = visual_deal.batch_of(deal, rank, vision), 0
      for i = rank * per_vision + 1, (rank + 1) * per_vision do expected = expected + deal.rows[i] end
      t.equal(own and own.pixel_values:size(0) / 4 or 0, expected)
      t.equal(own and own.image_grid_thw:prod({ dim = 1 }):sum():item() or 0, 4 * expected)
      if own then seen[#seen + 1] = own.pixel_values end
    end
    for rank = 1, language do
      local expected = 0
      for i = (rank - 1) * per_language + 1, rank * per_language do expected = expected + deal.rows[i] end
      t.equal(tokens_of_rank[rank], expected)
    end
    t.equal(#seen > 0, #line > 0)
    if #line > 0 then t.equal(torch.cat(seen), torch.cat(line)) end
  end
end)

t.test("PicturesOfOneRankAreDealtByTheirTokens", function()
  local grids = { { 1, 8, 8 }, { 1, 2, 2 }, { 1, 2, 2 }, { 1, 4, 6 }, { 1, 4, 8 } } -- 16, 1, 1, 6 and 8 tokens
  local batch = { pixel_values = torch.zeros { 128, 1 }, image_grid_thw = torch.tensor(grids, { dtype = torch.int64 }) }

  local deal = visual_deal.deal({ batch }, 2, 2)

  t.equal(visual_deal.batch_of(deal, 0, 2).pixel_values:size(0), 64)
  t.equal(visual_deal.batch_of(deal, 1, 2).pixel_values:size(0), 64)
end)

t.test("ATowersRankWithoutAPictureTakesTheFirst", function()
  local batch = { pixel_values = torch.arange(8):view(4, 2), image_grid_thw = torch.tensor({ { 1, 2, 2 } },
    { dtype = torch.int64 }) }
  local deal = visual_deal.deal({ batch, {} }, 4, 2)

  local without = 0
  for rank = 0, 3 do without = without + (visual_deal.batch_of(deal, rank, 4) and 0 or 1) end
  t.equal(without, 3)
  t.equal(visual_deal.filler_of(deal).pixel_values, batch.pixel_values)
  t.equal(visual_deal.deal({ {}, {} }, 2, 2).first, nil)
end)

t.test("AnOrderOfPicturesIsRefused", function()
  local batch = draw_batches(1, 6)[1]
  batch.image_order = torch.zeros({ 1 }, { dtype = torch.int64 })
  t.raises("mimo.separate: image_order is not read with a separate tower", visual_deal.deal, { batch }, 1, 2)
end)
