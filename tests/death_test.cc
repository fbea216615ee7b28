// A rank of a run dies or leaves: how the others end, and what is said then.

#include <signal.h>
#include <sys/types.h>

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/deadline.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/program.h"
#include "tests/support/rank_script.h"
#include "tests/support/ranks.h"

namespace lockstep::tests {
namespace {

using ::testing::ContainsRegex;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

Ended RunScript(const std::string& code, const std::vector<std::string>& options) {
  return RunOne(RankScript(Folder(), code, options));
}

// Runs a script in which `victim` kills itself, with its words replaced. Expects that the run ends
// within `limit`, which includes the programs' start, and names the rank.
void ExpectDeathOf(int victim, int num_ranks, const std::string& script,
                   std::vector<std::pair<absl::string_view, std::string>> words,
                   absl::Duration limit = kSoon + absl::Seconds(10)) {
  const Folder folder;
  words.emplace_back("VICTIM", absl::StrCat(victim));
  const Deadline soon(limit);
  Child run(RankScript(folder, absl::StrCat(kSayPid, absl::StrReplaceAll(script, words)),
                       {"--nproc", absl::StrCat(num_ranks)}));
  const std::vector<pid_t> pids = PidsOf(run, num_ranks);
  const Ended ended = run.Wait();

  ExpectGone(pids);
  EXPECT_FALSE(soon.has_passed());
  EXPECT_EQ(ended.exit_code, 128 + SIGKILL);
  EXPECT_THAT(ended.err, StartsWith(absl::StrCat("lockstep: rank ", victim, " (process ")));
  ExpectOneComplaint(ended, "was killed by SIGKILL");
}

// The same, for a random rank of some that dies at its random MOMENT.
void ExpectDeathAtAMoment(std::mt19937& random, int num_ranks, const std::string& script,
                          std::vector<std::pair<absl::string_view, std::string>> words = {}) {
  const auto victim = static_cast<int>(random() % static_cast<unsigned>(num_ranks));
  const std::string moment = absl::StrCat(1 + random() % 30);
  SCOPED_TRACE(absl::StrCat("rank ", victim, " of ", num_ranks, " at moment ", moment));
  words.emplace_back("MOMENT", moment);
  ExpectDeathOf(victim, num_ranks, script, std::move(words));
}

// --- A rank dies ---------------------------------------------------------------------------------

TEST(Death, OfAKilledRankEndsTheRunAndNamesTheRank) {
  const Folder folder;
  Child run(RankScript(folder,
                       absl::StrCat(kSayPid, "if rank == 1 then forever() end dist.barrier()"),
                       {"--nproc", "3"}));
  const std::vector<pid_t> pids = PidsOf(run, 3);

  const Deadline soon(kSoon);
  kill(pids[1], SIGKILL);
  const Ended ended = run.Wait();

  EXPECT_FALSE(soon.has_passed());
  EXPECT_EQ(ended.exit_code, 128 + SIGKILL);
  ExpectOneComplaint(
      ended, absl::StrCat("lockstep: rank 1 (process ", pids[1], ") was killed by SIGKILL"));
  ExpectGone(pids);
}

// Within a tile that a checkpointed region's recomputation runs in a backward pass under data
// parallel.
TEST(Death, InMidBackwardEndsTheRunAndNamesTheRank) {
  constexpr char kTrain[] = R"(
    local checkpoint, nn = require "lockstep.checkpoint", require "lockstep.nn"
    local sharding, tiled_mlp = require "lockstep.sharding", require "lockstep.tiled_mlp"
    local ckpt, tiled = checkpoint.new { offload = "host", min_bytes = 1 }, tiled_mlp.new { tiles = 4 }
    local Net = nn.Module:subclass("Net")
    function Net:init() self.inner = nn.Linear(8, 8) end
    function Net:forward(x)
      return ckpt(function(h)
        return torch.tanh(h + tiled(function(tile, weight)
          if weight.requires_grad and rank == 1 then C.kill(C.getpid(), 9) end
          return torch.tanh(torch.linear(tile, weight))
        end, h * 2, { self.inner.weight }))
      end, x)
    end
    local net = sharding.data_parallel(Net(), { find_unused = true })
    while true do net(torch.randn { 16, 8 }):sum():backward() end
  )";

  const Deadline soon(kSoon + absl::Seconds(10));
  const Ended ended = RunScript(kTrain, {"--nproc", "3"});

  EXPECT_FALSE(soon.has_passed());  // with the programs' start
  EXPECT_EQ(ended.exit_code, 128 + SIGKILL);
  EXPECT_THAT(ended.err, StartsWith("lockstep: rank 1 (process "));
  ExpectOneComplaint(ended, "was killed by SIGKILL");
}

// At any moment of a forward or a backward, in which the others wait for its part of a unit.
TEST(Death, InAShardedStepEndsTheRunAndNamesTheRank) {
  constexpr char kTrain[] = R"(
    local nn, sharding = require "lockstep.nn", require "lockstep.sharding"
    local moments = 0
    local function moment()
      moments = moments + 1
      if rank == VICTIM and moments == MOMENT then C.kill(C.getpid(), 9) end
    end
    local Layer = nn.Module:subclass("Layer")
    function Layer:init() self.inner = nn.Linear(8, 8) end
    function Layer:forward(x)
      moment()
      local y = torch.tanh(self.inner(x))
      y:register_hook(moment)
      return y
    end
    local Net = nn.Module:subclass("Net")
    function Net:init() self.layers = nn.ModuleList { Layer(), Layer(), Layer() } end
    function Net:forward(x)
      for _, layer in ipairs(self.layers) do x = layer(x) end
      return x
    end
    local model = sharding.fully_shard(Net())
    while true do model(torch.randn { 4, 8 }):sum():backward() end
  )";
  std::mt19937 random(20261122);
  for (int trial = 0; trial < 20; ++trial) {
    ExpectDeathAtAMoment(random, 2 + trial % 3, kTrain);
  }
}

// At any forward or backward of a stage, in which the others wait for its messages.
TEST(Death, InAPipelineEndsTheRunAndNamesTheRank) {
  constexpr char kTrain[] = R"(
    local models, sharding = require "lockstep.models", require "lockstep.sharding"
    local moments = 0
    local function moment()
      moments = moments + 1
      if rank == VICTIM and moments == MOMENT then C.kill(C.getpid(), 9) end
    end
    local net = models.build { model_type = "llama", architectures = { "LlamaForCausalLM" }, vocab_size = 17,
      hidden_size = 8, intermediate_size = 8, num_hidden_layers = 6, num_attention_heads = 2 }
    for _, layer in ipairs(net.model.layers) do
      layer:register_forward_hook(function(_, _, y)
        moment()
        y:register_hook(moment)
      end)
    end
    local model = sharding.parallelize(net, sharding.grid { pp = dist.world_size() }, { order = "ORDER",
      chunks = "ORDER" == "interleaved" and 2 or 1 })
    local batches = {}
    for i = 1, 4 do batches[i] = { input_ids = torch.arange(3 + i) } end
    while true do
      sharding.accumulate(model, batches, 18, function(b) return model(b, "loss") end)
    end
  )";
  std::mt19937 random(20261128);
  const std::vector<std::string> orders = {"1f1b", "interleaved", "all_forwards_first"};
  for (int trial = 0; trial < 9; ++trial) {
    const std::string& order = orders[static_cast<size_t>(trial) % orders.size()];
    ExpectDeathAtAMoment(random, 2 + trial % 2, kTrain, {{"ORDER", order}});
  }
}

// Each phase of a step of 1F1B with 4 micro-batches on 2 stages x 2 rows of dp. Rank 0 is of the
// first stage, which warms up with two forwards and drains with two backwards; rank 2 is of the
// last.
TEST(Death, InEachPhaseOfAPipelineEndsTheRunAndNamesTheRank) {
  constexpr char kTrain[] = R"(
    local models, sharding = require "lockstep.models", require "lockstep.sharding"
    local optim = require "lockstep.optim"
    local step, index = 0, 0
    local function die_if(phase)
      if rank == VICTIM and step == 2 and phase == "PHASE" then C.kill(C.getpid(), 9) end
    end
    local net = models.build { model_type = "llama", architectures = { "LlamaForCausalLM" }, vocab_size = 17,
      hidden_size = 8, intermediate_size = 8, num_hidden_layers = 2, num_attention_heads = 2 }
    for _, layer in ipairs(net.model.layers) do
      layer:register_forward_hook(function(_, _, y)
        local at = index
        die_if("forward " .. at)
        y:register_hook(function() die_if("backward " .. at) end)
      end)
    end
    local model = sharding.parallelize(net, sharding.grid { pp = 2 }, { order = "1f1b", fully_shard = false })
    local all_reduce = dist.all_reduce
    function dist.all_reduce(...)
      die_if(index == 4 and "reduction" or "norm")
      return all_reduce(...)
    end
    local batches = {}
    for i = 1, 4 do batches[i] = { input_ids = torch.arange(3 + i) } end
    while true do
      step, index = step + 1, 0
      sharding.accumulate(model, batches, 36, function(b)
        index = index + 1
        return model(b, "loss")
      end)
      index = 5
      optim.clip_grad_norm(model:parameters(), 1)
    end
  )";
  struct Case {
    const char* phase;
    int victim;
  };
  for (const Case& one : {Case{"forward 2", 0}, Case{"forward 3", 0}, Case{"backward 2", 2},
                          Case{"backward 4", 0}, Case{"reduction", 3}, Case{"norm", 1}}) {
    SCOPED_TRACE(absl::StrCat("rank ", one.victim, " at ", one.phase));
    ExpectDeathOf(one.victim, 4, kTrain, {{"PHASE", one.phase}});
  }
}

// mimo.step with a tower that has a loss of its own on rank 0, and two stages of a script's own
// layers on ranks 1 and 2. Then with a tower on each rank of three stages.
TEST(Death, InAStageOfMimoStepEndsTheRunAndNamesTheRank) {
  constexpr char kTrain[] = R"(
    local mimo, nn = require "lockstep.mimo", require "lockstep.nn"
    local step, index = 0, 0
    local function die_if(phase)
      if rank == VICTIM and step == 2 and phase == "PHASE" then C.kill(C.getpid(), 9) end
    end
    local is_shared = SHARED
    local topology = mimo.topology { modules = { { name = "vision", dp = is_shared and 3 or 1 },
      { name = "language", pp = is_shared and 3 or 2, first_rank = is_shared and 0 or 1 } } }
    local bridge = mimo.bridge { topology = topology, from = "vision", to = "language" }
    local nets, functions, towers = {}, {}, 0
    local function watch(y, name, at)
      die_if(name .. " forward " .. at)
      y:register_hook(function() die_if(name .. " backward " .. at) end)
      return y
    end
    if is_shared or rank == 0 then
      nets.vision = nn.Linear(4, 4)
      function functions.vision(part)
        towers = towers + 1
        local y = watch(nets.vision(part.x), "tower", towers)
        return y, y:square():sum()
      end
    end
    if is_shared or rank > 0 then
      nets.language = nn.Linear(4, 4)
      function functions.language(_, x)
        index = index + 1
        local y = watch(nets.language(x), "stage", index)
        return rank == 2 and y:sum() or y
      end
    end
    local run_step = mimo.step { topology = topology, bridges = { bridge }, micro_batches = 4, modules = functions }
    local function source() return { x = torch.ones { 3, 4 } } end
    while true do
      step, index, towers = step + 1, 0, 0
      run_step(source)
      die_if "reduction"
      mimo.reduce_gradients { topology = topology, modules = nets, loss = "sum", tokens = 12 }
      die_if "losses"
      run_step:mean_losses()
      mimo.clip_grad_norm { topology = topology, modules = nets, max_norm = 1 }
    end
  )";
  const struct {
    const char* phase;
    int victim;
    bool is_shared;
  } cases[] = {{"tower forward 3", 0, false},  {"stage forward 2", 1, false},
               {"stage backward 4", 2, false}, {"reduction", 1, false},
               {"losses", 0, false},           {"tower forward 4", 2, true},
               {"tower backward 2", 1, true},  {"stage backward 1", 0, true}};
  for (const auto& [phase, victim, is_shared] : cases) {
    SCOPED_TRACE(absl::StrCat("rank ", victim, " at ", phase, is_shared ? ", together" : ""));
    const Folder folder;
    Child run(RankScript(
        folder,
        absl::StrCat(kSayPid,
                     absl::StrReplaceAll(kTrain, {{"VICTIM", absl::StrCat(victim)},
                                                  {"PHASE", phase},
                                                  {"SHARED", is_shared ? "true" : "false"}})),
        {"--nproc", "3"}));
    const std::vector<pid_t> pids = PidsOf(run, 3);
    const Ended ended = run.Wait();

    ExpectGone(pids);
    EXPECT_EQ(ended.exit_code, 128 + SIGKILL);
    EXPECT_THAT(ended.err, StartsWith(absl::StrCat("lockstep: rank ", victim, " (process ")));
    ExpectOneComplaint(ended, "was killed by SIGKILL");
  }
}

// A tower on rank 0 feeds the first of two stages, ranks 1 and 2, in 1F1B order.
TEST(Death, InATowerOrAStageBesideItEndsTheRunAndNamesTheRank) {
  constexpr char kTrain[] = R"(
    local mimo, models = require "lockstep.mimo", require "lockstep.models"
    local optim, sharding = require "lockstep.optim", require "lockstep.sharding"
    local step, index = 0, 0
    local function die_if(phase)
      if rank == VICTIM and step == 2 and phase == "PHASE" then C.kill(C.getpid(), 9) end
    end
    local net = models.build { model_type = "qwen3_vl", architectures = { "Qwen3VLForConditionalGeneration" },
      image_token_id = 15, video_token_id = 16, text_config = { vocab_size = 17, hidden_size = 8, head_dim = 8,
        intermediate_size = 8, num_hidden_layers = 2, num_attention_heads = 1, num_key_value_heads = 1,
        rope_parameters = { rope_type = "default", rope_theta = 5000, mrope_section = { 2, 1, 1 } } },
      vision_config = { depth = 1, hidden_size = 8, intermediate_size = 8, num_heads = 1, patch_size = 2,
        out_hidden_size = 8, num_position_embeddings = 16, deepstack_visual_indexes = {} } }
    local function watch(module)
      module:register_forward_hook(function(_, _, y)
        local at = index
        die_if("forward " .. at)
        y:register_hook(function() die_if("backward " .. at) end)
      end)
    end
    for _, layer in ipairs(net:decoder().layers) do watch(layer) end
    watch(net.model.visual.merger)
    local model = mimo.separate(net, { vision_ranks = 1, parallel = { pp = 2 } })
    local micro_batches = {}
    for i = 1, 4 do
      local ids = torch.arange(3 + i)
      ids[1]:fill_(15)
      micro_batches[i] = { { input_ids = ids, pixel_values = torch.ones { 4, 24 },
        image_grid_thw = torch.tensor({ { 1, 2, 2 } }, { dtype = torch.int64 }) } }
    end
    while true do
      step, index = step + 1, 0
      sharding.accumulate(model, micro_batches, 18, function(b)
        index = index + 1
        return model(b, "loss")
      end)
      optim.clip_grad_norm(model:parameters(), 1)
    end
  )";
  const struct {
    const char* phase;
    int victim;
  } cases[] = {{"forward 3", 0}, {"backward 2", 0}, {"backward 2", 1}, {"forward 3", 2}};
  for (const auto& [phase, victim] : cases) {
    SCOPED_TRACE(absl::StrCat("rank ", victim, " at ", phase));
    ExpectDeathOf(victim, 3, kTrain, {{"PHASE", phase}}, /*limit=*/absl::Minutes(5));
  }
}

// At any forward or backward of a layer while a group of ranks shares a sample, and another rank
// holds its own.
TEST(Death, InASharedSampleEndsTheRunAndNamesTheRank) {
  constexpr char kTrain[] = R"(
    local batching, models = require "lockstep.batching", require "lockstep.models"
    local sharding = require "lockstep.sharding"
    local moments = 0
    local function moment()
      moments = moments + 1
      if rank == VICTIM and moments == MOMENT then C.kill(C.getpid(), 9) end
    end
    local net = models.build { model_type = "llama", architectures = { "LlamaForCausalLM" }, vocab_size = 17,
      hidden_size = 8, intermediate_size = 8, num_hidden_layers = 3, num_attention_heads = 2 }
    for _, layer in ipairs(net.model.layers) do
      layer.self_attn:register_forward_hook(function(_, _, y)
        moment()
        y:register_hook(moment)
      end)
    end
    local function sample(n) return { input_ids = torch.arange(n):remainder(17), loss_mask = torch.ones { n } } end
    local samples = { sample(40) }
    for i = 1, 8 do samples[1 + i] = sample(4) end
    local model = sharding.SHARD(net)
    local batches, report = batching.prepare { samples = samples, seq_len = 40, rank = rank,
      split = { max_group = 2 } }
    assert(report.split_samples == 1)
    while true do
      sharding.accumulate(model, batches[rank + 1], report.loss_tokens, function(b) return model(b, "loss") end)
    end
  )";
  std::mt19937 random(20261129);
  for (int trial = 0; trial < 8; ++trial) {
    const std::string shard = trial < 4 ? "data_parallel" : "fully_shard";
    ExpectDeathAtAMoment(random, 2 + trial % 2, kTrain, {{"SHARD", shard}});
  }
}

TEST(Death, ByACrashNamesTheRankAndTheSignal) {
  const Ended ended = RunScript("if rank == 2 then ffi.cast('int*', 0)[0] = 1 end dist.barrier()",
                                {"--nproc", "3"});

  EXPECT_EQ(ended.exit_code, 128 + SIGSEGV);
  ExpectOneComplaint(ended, "was killed by SIGSEGV");
  EXPECT_THAT(ended.err, StartsWith("lockstep: rank 2 (process "));
}

// Gloo writes to sockets without MSG_NOSIGNAL, and a peer may have left.
TEST(Death, OfAPipesReaderDoesNotKillARank) {
  const Ended ended = RunScript(
      "local pipe = io.popen('true', 'w')\n"
      "print('goes on', pipe:write(('x'):rep(1000000)))",
      {"--nproc", "2"});

  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_THAT(ended.out, HasSubstr("[rank 1] goes on\tnil\tBroken pipe"));
}

// The others report lost connections, which are not causes.
TEST(Death, WithoutAWordIsTheCauseAndGivesTheCode) {
  const Ended ended =
      RunScript("if rank == 1 then C._exit(5) end dist.barrier()", {"--nproc", "2"});

  EXPECT_EQ(ended.exit_code, 5);
  ExpectOneComplaint(ended, "lockstep: rank 1 ended with exit code 5 and gave no reason");
}

TEST(Death, ByAnErrorEndsRanksThatWaitAndRanksThatCompute) {
  const Folder folder;
  Child run(RankScript(folder,
                       absl::StrCat(kSayPid,
                                    "dist.barrier()\n"
                                    "if rank == 3 then dist.barrier() end\n"
                                    "if rank == 1 then while true do end end\n"
                                    "if rank == 0 then forever() end\n"
                                    "error('only on rank 2')"),
                       {"--nproc", "4"}));
  const std::vector<pid_t> pids = PidsOf(run, 4);

  const Deadline soon(kSoon);
  const Ended ended = run.Wait();

  EXPECT_FALSE(soon.has_passed());
  EXPECT_EQ(ended.exit_code, 1);
  ExpectOneComplaint(ended, "only on rank 2");
  EXPECT_THAT(ended.err, ContainsRegex("^lockstep: rank 2: train.lua:[0-9]+: only on rank 2"));
  ExpectGone(pids);
}

TEST(Death, ByAnErrorEndsARankThatIsStoppedAndNamesIt) {
  const Folder folder;
  Child run(RankScript(folder,
                       absl::StrCat(kSayPid,
                                    "if rank == 1 then forever() end\n"
                                    "repeat until io.open('go')\n"
                                    "error('only here')"),
                       {"--nproc", "2"}));
  const std::vector<pid_t> pids = PidsOf(run, 2);
  kill(pids[1], SIGSTOP);

  const Deadline soon(kSoon);
  folder.Write("go", "");
  const Ended ended = run.Wait();

  EXPECT_FALSE(soon.has_passed());
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_THAT(ended.err, HasSubstr("lockstep: rank 0: train.lua:"));
  EXPECT_THAT(ended.err, EndsWith("lockstep: ended the ranks that were still running: 1\n"));
  ExpectGone(pids);
}

// --- A rank leaves -------------------------------------------------------------------------------

TEST(EarlyEnd, OfOneRanksScriptIsNamedIfAnotherRankWaitsForIt) {
  const Ended ended = RunScript("if rank == 1 then return end\ndist.barrier()", {"--nproc", "2"});

  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_THAT(ended.err, ContainsRegex("^lockstep: rank 0: train.lua:[0-9]+: "));
  ExpectOneComplaint(ended, "note: by then the script had ended on rank 1\n");
}

TEST(EarlyEnd, ByOsExitIsNamedWithItsLine) {
  const Ended ended =
      RunScript("if rank == 1 then os.exit(0) end\ndist.barrier()", {"--nproc", "2"});

  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_THAT(ended.err,
              ContainsRegex("had ended on rank 1 \\(by os.exit\\(0\\) at train.lua:[0-9]+\\)"));
}

TEST(EarlyEnd, LeavesTheOthersTheirWork) {
  const Ended ended = RunScript(
      "if rank == 1 then os.exit(0) end\n"
      "if rank == 2 then return end\n"
      "wait_for_end(1) wait_for_end(2)\n"
      "print('done')",
      {"--nproc", "3"});

  EXPECT_EQ(ended.exit_code, 0);
  EXPECT_EQ(ended.out, "done\n");
  EXPECT_EQ(ended.err, "");
}

// --- The last rank is stopped --------------------------------------------------------------------

// No rank waits for it in a collective.
constexpr char kLastRank[] = "if rank == 1 then forever() end";
constexpr int kHang = 3;

TEST(LastRank, ThatIsStoppedEndsTheRunByTheTimeoutAndIsNamed) {
  const Folder folder;
  Child run(
      RankScript(folder, absl::StrCat(kSayPid, kLastRank), {"--nproc", "3", "--timeout", "2"}));
  const std::vector<pid_t> pids = PidsOf(run, 3);

  const Deadline soon(kSoon);
  kill(pids[1], SIGSTOP);
  const Ended ended = run.Wait();

  EXPECT_FALSE(soon.has_passed());
  EXPECT_EQ(ended.exit_code, kHang);
  EXPECT_THAT(ended.err, ContainsRegex(absl::StrCat("^lockstep: rank 1 \\(process ", pids[1],
                                                    " on [^)]+\\) did not end and gave no sign ",
                                                    "of life for 2\\.[0-9] s: stopped, dead, ")));
  EXPECT_THAT(ended.err, EndsWith("lockstep: ended the ranks that were still running: 1\n"));
  ExpectGone(pids);
}

// Rank 0 hosts the store. It finds out whether it waits at its end, computes or prints to a reader
// that has stopped.
TEST(LastRank, ThatIsStoppedOrDeadWithoutALauncherOfOursIsNamedByRank0) {
  const struct {
    int signal;
    const char* script;
    int exit_code;  // of rank 2
  } kCases[] = {{SIGSTOP, kLastRank, 0}, {SIGKILL, kLastRank, 0}, {SIGKILL, "forever()", kHang}};
  for (const auto& c : kCases) {
    SCOPED_TRACE(absl::StrCat(sigabbrev_np(c.signal), ": ", c.script));
    const Folder folder;
    const ReservedPort port;
    std::vector<Child> ranks = StartRanks(
        3, RankScript(folder, absl::StrCat(kSayPid, c.script), {"--timeout", "2"}), port);
    const pid_t pid = PidOf(ranks[1], 1);

    kill(pid, c.signal);
    const Ended zero = ranks[0].Wait();

    EXPECT_EQ(zero.exit_code, kHang);
    ExpectOneComplaint(zero, absl::StrCat("lockstep: rank 1 (process ", pid, " on "));
    EXPECT_THAT(zero.err, HasSubstr(") did not end and gave no sign of life for "));
    EXPECT_THAT(zero.err, HasSubstr("\n  rank 1: no answer: "));
    EXPECT_EQ(ranks[2].Wait().exit_code, c.exit_code);
  }
}

// --- Many ranks ----------------------------------------------------------------------------------

constexpr char kSumOfRanks[] =
    "local sum = dist.all_reduce(torch.tensor({rank})):item()\n"
    "print(('rank %d of %d: %d'):format(rank, dist.world_size(), sum))\n";

TEST(Ranks, EightReduceTogether) {
  const Ended ended = RunScript(kSumOfRanks, {"--nproc", "8"});

  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  for (int rank = 0; rank < 8; ++rank) {
    const std::string prefix = rank == 0 ? "" : absl::StrCat("[rank ", rank, "] ");
    EXPECT_THAT(ended.out, HasSubstr(absl::StrCat(prefix, "rank ", rank, " of 8: 28\n")));
  }
}

TEST(Ranks, EightEndWithTheOneThatFails) {
  const Ended ended =
      RunScript("if rank == 5 then error('only here') end dist.barrier()", {"--nproc", "8"});

  EXPECT_EQ(ended.exit_code, 1);
  ExpectOneComplaint(ended, "only here");
  EXPECT_THAT(ended.err, StartsWith("lockstep: rank 5: "));
}

TEST(Ranks, ThatCannotConnectReportTheReasonOnce) {
  Command command = RankScript(Folder(), "", {"--nproc", "2"});
  command.environment["GLOO_SOCKET_IFNAME"] = "nosuch0";

  const Ended ended = RunOne(command);

  EXPECT_EQ(ended.exit_code, 1);
  ExpectOneComplaint(ended, "nosuch0");
}

}  // namespace
}  // namespace lockstep::tests
