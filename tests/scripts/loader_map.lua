-- The map of loader.lua: with options.skip every fiftieth sample is bad.

return function(sample, options)
  if options.skip and sample.id % 50 == 0 then error("bad") end
  return { id = sample.id }
end
