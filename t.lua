local torch=require"lockstep.torch"; local nn=require"lockstep.nn"; local optim=require "lockstep.optim"; local lockstep=require"lockstep"
 prnt(2)
