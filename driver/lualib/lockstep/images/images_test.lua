--- Tests files to tensors. driver/images/decode_test.cc tests the pixels of each format.

local images = require "lockstep.images"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local folder = "driver/images/testdata/"

local function bytes_of(name) return t.read_file(folder .. name) end

t.test("AFileAndItsBytesGiveTheSamePicture", function()
  for _, name in ipairs { "jpeg_420.jpg", "png_rgba.png", "webp_lossy.webp" } do
    local image = images.read(folder .. name)

    t.equal(image.dtype, torch.uint8)
    t.equal(image:size(0), 3)
    t.equal(images.read(bytes_of(name)), image, name)
  end
  t.equal(tostring(images.read(folder .. "jpeg_420.jpg").shape), "{3, 29, 37}")
end)

t.test("ChannelsAreRedGreenBlueAndRowsGoDown", function()
  -- A PNG of 1 x 2 pixels, red above blue.
  local png = ("89504e470d0a1a0a0000000d494844520000000100000002080200000016e321700000000d4944415478da63f8cf0002"
    .. "ff01080001ff06cea9250000000049454e44ae426082"):gsub("..", function(h) return string.char(tonumber(h, 16)) end)
  local image = images.read(png)

  t.equal(image:totable(), { { { 255 }, { 0 } }, { { 0 }, { 0 } }, { { 0 }, { 255 } } })
end)

t.test("APictureIsTurnedUpright", function()
  t.equal(tostring(images.read(folder .. "webp_turned6.webp").shape), "{3, 7, 5}")
end)

t.test("AlphaIsBlendedOverWhiteOrDropped", function()
  local dropped = images.read(folder .. "png_rgba.png", { alpha = "drop" })
  local white = images.read(folder .. "png_rgba.png")

  t.equal(white, images.read(folder .. "png_rgba.png", { alpha = "white" }))
  t.truthy(white:ge(dropped):all():item())
  t.truthy(white:gt(dropped):any():item())
end)

t.test("ThePixelsOutliveTheFileAndTheGarbage", function()
  local image = images.read(bytes_of "jpeg_420.jpg")
  local sum = image:sum():item()
  for _ = 1, 50 do images.read(folder .. "jpeg_422.jpg") end
  collectgarbage()

  t.equal(image:sum():item(), sum)
end)

t.test("WhatCannotBeReadIsSaid", function()
  t.raises("images.read: no/such.jpg: cannot be read: No such file or directory", images.read, "no/such.jpg")
  t.raises("decoded.txt: not a JPEG, PNG or WebP image", images.read, folder .. "decoded.txt")
  t.raises("images.read: JPEG: the data ends too early", images.read, bytes_of("jpeg_420.jpg"):sub(1, 900))
  t.raises("begin with 00 d8 ff", images.read, "\0" .. bytes_of("jpeg_420.jpg"):sub(2))
  t.raises("images.read: JPEG: ", images.read, "\255\216\255")
  t.raises("expected a path or the bytes of a picture, got an empty string", images.read, "")
  t.raises("got a number", images.read, 3)
  t.raises('alpha must be "drop" or "white", not "black"', images.read, folder .. "png_rgba.png", { alpha = "black" })
  for expected, value in pairs { ["-1"] = -1, ["0.5"] = 0.5, ["nan"] = 0 / 0 } do
    t.raises("images.read: max_pixels must be a whole number of at least 1, not " .. expected, images.read,
      folder .. "png_rgba.png", { max_pixels = value })
  end
  t.raises("more than max_pixels = 10", images.read, folder .. "png_rgba.png", { max_pixels = 10 })
  -- The height and width of a frame follow its marker, its length and its depth.
  local huge = bytes_of("jpeg_420.jpg"):gsub("(\255\192...)....", "%1\128\0\128\0", 1)
  t.raises("has 32768 x 32768 pixels, more than max_pixels = 178956970", images.read, huge)
  t.raises('did you mean "alpha"', images.read, folder .. "png_rgba.png", { alhpa = "drop" })
end)
