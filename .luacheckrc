-- luacheck . : see tests/lint.
std = "luajit"
read_globals = { "lockstep" }
max_line_length = 120
ignore = {
  "581",  -- not (x <= y) is not x > y: they differ for NaN
}
exclude_files = {
  "bazel-*",
  "runs",
  -- Written by driver/lualib/types/generate.lua.
  "driver/lualib/types/core.lua",
  "driver/lualib/types/core_*.lua",
  "driver/lualib/types/torch.lua",
  "driver/lualib/types/torch_internal.lua",
}

-- Stubs declare what C++ defines: functions without a body, whose arguments nothing reads.
files["driver/lualib/types"] = { globals = { "lockstep" }, ignore = { "212", "241" } }
