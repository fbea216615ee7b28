---@meta _
--- What every script finds without `require`.

lockstep = require "lockstep"
