-- models.server on two ranks: rank 0 alone asks for new weights, and what fails there fails on both.

local dist = require "lockstep.distributed"
local models = require "lockstep.models"
local t = require "lockstep.testing"
local with_server = require "lockstep.models.server_fixture"

--- Rank 0 has the server, and both use it.
local function with_one(kind, fn)
  local function use(url) fn(models.server(dist.all_gather_object(url or false)[1])) end
  if dist.rank() == 0 then with_server(kind, use) else use() end
end

t.test("AFolderThatTheServerRefusesIsAnErrorOnBothRanks", function()
  with_one("vllm", function(server)
    t.raises('models.server: http://', server.load, server, "/w/broken")
    t.raises("/collective_rpc answered rank 0 with status 404", server.load, server, "/w/broken")
    server:load("/w/step-000001", true)
    t.truthy(server.model:find "^step%-000001%-")
    t.equal(dist.all_gather_object(server.model), { server.model, server.model })
  end)
end)

t.test("AServerThatOneRankCannotReachIsAnErrorOnBoth", function()
  with_one("sglang", function(server)
    t.raises("models.server: rank 1 got no answer of http://127.0.0.1:1/v1/models", models.server,
      dist.rank() == 0 and server.url or "http://127.0.0.1:1")
  end)
end)
