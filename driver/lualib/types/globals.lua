---@meta _
--- Globals that every script has without `require`.

lockstep = require "lockstep"
