---@meta lockstep.core.terminal
--- Functions for the interactive session and for help. The program's side is driver/lua/bind/program/terminal.cc.

---@class lockstep.core.terminal
local terminal = {}

--- A line that somebody types, with editing, history and completion where there is a terminal; nil at the end of
--- input. `complete` gives what may stand in place of what is before the cursor. Ctrl-C voids the line.
---@param prompt string
---@param complete fun(word: string): string[]
---@return string? line
---@return boolean is_interrupted
function terminal.read_line(prompt, complete) end

--- As xpcall(fn, handler). At a terminal Ctrl-C raises an error in fn, where that is not compiled by the JIT.
---@param fn fun()
---@param handler fun(message: any): any
---@return boolean ok
---@return any message
function terminal.interruptibly(fn, handler) end

--- The text of a file of the Lua library, as "lockstep/nn.lua".
---@param file string
---@return string
function terminal.read_library(file) end

return terminal
