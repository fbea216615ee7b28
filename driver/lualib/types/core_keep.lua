---@meta lockstep.core.keep
--- Snapshots in shared memory, and the process that keeps them, as run:state { memory_every = n } uses them. The
--- program's side is driver/lua/bind/program/keep.cc.

---@class lockstep.core.keep
local keep = {}

--- Tensors in the form of a safetensors file, which is not written yet.
---@class lockstep.core.keep.Packed
local Packed = {}

---@return integer
function Packed:bytes() end

--- Fills a slab of as many bytes. Returns their checksum.
---@param slab lockstep.core.keep.Slab
---@return string crc32
function Packed:write(slab) end

--- Shared memory without a name: it is gone when no process has it open.
---@class lockstep.core.keep.Slab
local Slab = {}

---@return integer
function Slab:bytes() end

--- The path under which files.checksum and safetensors.read of this process find it.
---@return string
function Slab:path() end

--- Its bytes, as a tensor of uint8 that shares the memory.
---@return torch.Tensor
function Slab:tensor() end

--- One rank's share of a state.
---@class lockstep.core.keep.Snapshot
---@field owner integer the rank
---@field step integer
---@field world integer the number of ranks of the run
---@field bytes integer
---@field crc32 string
---@field start integer of the run: shares of two starts are not one state

--- A connection to a keeper. Each method raises an error if the keeper is gone.
---@class lockstep.core.keep.Keeper
local Keeper = {}

--- The keeper's own number, by which ranks know that they share it.
---@return integer
function Keeper:number() end

--- The newest start of the run that the keeper knew at keep.connect; 0: none.
---@return integer
function Keeper:newest_start() end

--- Says to which start of the run this process belongs. From then on the keeper refuses what processes of earlier
--- starts put or drop. Raises an error if the keeper knows a newer start.
---@param start integer
function Keeper:begin(start) end

--- Hands over a slab. It replaces what the owner has of this step and later ones.
---@param slab lockstep.core.keep.Slab
---@param owner integer
---@param step integer
---@param world integer
---@param crc32 string
---@param start integer of the run, which took the snapshot
function Keeper:put(slab, owner, step, world, crc32, start) end

---@param owner integer
---@param step integer
function Keeper:drop(owner, step) end

---@return lockstep.core.keep.Snapshot[]
function Keeper:list() end

--- Raises an error if the keeper has no such snapshot.
---@param owner integer
---@param step integer
---@return lockstep.core.keep.Slab
function Keeper:get(owner, step) end

---@param caller string what errors begin with
---@param tensors table<string, torch.Tensor>
---@param metadata table<string, string>
---@return lockstep.core.keep.Packed
function keep.pack(caller, tensors, metadata) end

---@param bytes integer
---@return lockstep.core.keep.Slab
function keep.slab(bytes) end

--- The name of the keepers of the run in a folder: from its file keep.id, which is made if it is not there. nil if it
--- cannot be written.
---@param folder string
---@return string?
function keep.name(folder) end

--- The keeper of that name on this machine; nil and the reason if there is none.
---@param name string
---@param starts boolean start it if it is not there
---@return lockstep.core.keep.Keeper?
---@return string? reason
function keep.connect(name, starts) end

return keep
