-- Tests of what run:save removes: states that it wrote, and nothing of the user's.

local core = require "lockstep.core"
local files = require "lockstep.core.files"
local fixture = require "state_fixture"
local removal = require "lockstep.state.removal"
local run = require "lockstep.run"
local t = require "lockstep.testing"

local new_folder, write_file = fixture.new_folder, fixture.write_file

local function save(steps, opts)
  run:state({ best = {} }, opts)
  for _, step in ipairs(steps) do run:save { step = step } end
end

local function all() return true end

t.test("AFolderGoesIfAllOfItsFilesAreOurs", function()
  local path = new_folder()
  core.make_folder(path)
  for _, name in ipairs { "a", "b", "a.part-0123abcd" } do write_file(path .. "/" .. name, "x") end
  local function is_own(name) return name == "a" end

  t.equal(removal.remove(path, is_own), "b")
  t.equal(files.list(path), { "a", "a.part-0123abcd", "b" })
  t.raises(path .. " is a name that this program uses while it writes, and holds b, which it did not write; move it "
    .. "away", removal.make_room, path, is_own)
  files.remove(path .. "/b")
  t.equal(removal.remove(path, is_own), nil)
  t.equal(files.list(run.dir), {})
  t.equal(removal.remove(path, is_own), nil) -- there is none
end)

t.test("OfALinkToAFolderTheLinkGoes", function()
  local path = new_folder()
  core.make_folder(path)
  write_file(path .. "/a", "x")
  assert(os.execute(("ln -s '%s' '%s/link'"):format(path, run.dir)) == 0)

  t.equal(removal.remove(run.dir .. "/link", all), nil)

  t.equal({ files.list(run.dir), files.list(path) }, { { "state" }, { "a" } })
end)

t.test("AFolderInAFolderIsNeverRemoved", function()
  local path = new_folder()
  core.make_folder(path .. "/data")
  write_file(path .. "/data/thesis.tex", "x")

  t.raises("cannot remove " .. path .. "/data: Directory not empty", removal.remove, path, all)
  t.raises("cannot remove " .. path, files.remove, path)

  t.equal(files.list(path .. "/data"), { "thesis.tex" })
end)

t.test("CopiesOfAUserStayWhateverIsSaved", function()
  local root = new_folder()
  local copies = {}
  for step = 1, 3 do
    save { step }
    for _, suffix in ipairs { ".old", ".part", ".bak", ".torn", "-mine" } do
      local state = ("%s/step-%08d"):format(root, step)
      copies[#copies + 1] = state:match "[^/]+$" .. suffix
      assert(os.execute(("cp -r '%s' '%s'"):format(state, state .. suffix)) == 0)
    end
  end

  save({ 3, 3, 4, 5 }, { keep = 1 })

  for _, copy in ipairs(copies) do
    t.equal(files.list(root .. "/" .. copy), files.list(root .. "/step-00000005"), copy)
  end
  t.equal(#files.list(root), #copies + 1)
end)

t.test("AStateWithAFileOfAUserStaysAndIsNotCounted", function()
  local root = new_folder()
  save { 1 }
  write_file(root .. "/step-00000001/NOTES.txt", "the one of the paper")

  save({ 2, 3, 4 }, { keep = 2 })

  t.equal(files.list(root), { "step-00000001", "step-00000003", "step-00000004" })
  t.equal(run:resume { from = root .. "/step-00000001" }, 4) -- its own are later
  t.equal(t.read_file(root .. "/step-00000001/NOTES.txt"), "the one of the paper")
end)

t.test("AFileOfAUserInTheWayOfASaveIsNamed", function()
  local root = new_folder()
  core.make_folder(root .. "/step-00000001.lockstep-part")
  write_file(root .. "/step-00000001.lockstep-part/thesis.tex", "x")

  t.raises("step-00000001.lockstep-part is a name that this program uses while it writes, and holds thesis.tex",
    save, { 1 })

  t.equal(files.list(root .. "/step-00000001.lockstep-part"), { "thesis.tex" })
end)
