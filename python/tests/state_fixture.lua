-- Trains `steps` steps and saves the state after each; goes on from the state that the run's folder has.
local nn = require "lockstep.nn"
local optim = require "lockstep.optim"
local run = require "lockstep.run"
local torch = require "lockstep.torch"

local config = run.config { steps = 2 }
torch.manual_seed(1)
local model = nn.Sequential { nn.Linear(4, 3), nn.Linear(3, 2) }
local optimizer = optim.AdamW(model:parameters(), { lr = 0.1 })
run:state({ model = model, optimizer = optimizer }, { every = 1 })
for step = (run:resume() or 0) + 1, config.steps do
  model(torch.ones { 2, 4 }):sum():backward()
  optimizer:step()
  optimizer:zero_grad()
  run:save { step = step }
end
for name, parameter in model:named_parameters() do print(("%s %.9g"):format(name, parameter:sum():item())) end
