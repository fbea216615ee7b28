#include "sharding/fully_shard/flat_unit.h"

#include <algorithm>
#include <utility>

#include "ATen/core/grad_mode.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/zeros.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/torch/element_bytes.h"
#include "base/torch/versions/collectives.h"
#include "base/torch/weight_copies.h"
#include "c10/core/StorageImpl.h"
#include "c10/core/StreamGuard.h"
#include "c10/util/Exception.h"
#include "sharding/fully_shard/flat_memory.h"
#include "torch/csrc/autograd/variable.h"

namespace lockstep::sharding {
namespace {

// Added to the version of a parameter while it is sharded. A version has 32 bits.
constexpr int64_t kShardedVersion = int64_t{1} << 31;

}  // namespace

FlatUnit::FlatUnit(std::string name, const std::vector<NamedTensor>& parameters,
                   const ShardGroups& groups, const UnitOptions& options, SlotPool* pool)
    : name_(std::move(name)), groups_(groups), options_(options), pool_(pool) {
  if (groups.gather != nullptr) {
    rank_ = groups.gather->getRank();
    ranks_ = groups.gather->getSize();
  }
  if (groups.all != nullptr) world_ = groups.all->getSize();
  if (!parameters.empty()) device_ = parameters[0].tensor.device();
  const at::NoGradGuard no_grad;
  AddToSegments(parameters);
  for (Segment& segment : segments_) ShardSegment(segment);
}

FlatUnit::~FlatUnit() {
  for (Segment& segment : segments_) {
    // A collective may still write there.
    try {
      WaitFor(segment.work);
      WaitFor(segment.reduce_work);
    } catch (const std::exception&) {
      // The collective has failed, and so does not write any more.
      segment.work = nullptr;
    }
  }
}

void FlatUnit::AddToSegments(const std::vector<NamedTensor>& parameters) {
  for (const NamedTensor& named : parameters) {
    const at::Tensor& tensor = named.tensor;
    TORCH_CHECK_VALUE(tensor.is_leaf() && tensor.layout() == at::kStrided, "fully_shard: \"",
                      named.name, "\" must be a dense tensor of its own");
    TORCH_CHECK_VALUE(tensor.device() == device_, "fully_shard: \"", named.name, "\" is on ",
                      tensor.device(), ", but \"", parameters[0].name, "\" on ", device_,
                      "; move the whole model to one device first");
    TORCH_CHECK_VALUE(!tensor.is_meta(), "fully_shard: \"", named.name,
                      "\" is on the device meta and has no values; load them first, or load the "
                      "model in parts, as models.load(dir, {shard = {...}}) does");
    const at::ScalarType own = tensor.scalar_type();
    const bool casts = at::isFloatingType(own) && options_.param_dtype.has_value();
    const at::ScalarType gathered = casts ? *options_.param_dtype : own;
    // Alone, a rank has nothing to gather.
    const bool is_float8 = ranks_ > 1 && options_.float8_weights.count(named.name) > 0;
    TORCH_CHECK_VALUE(
        !is_float8 ||
            (tensor.dim() == 2 && !options_.offload &&
             (gathered == at::kFloat || gathered == at::kBFloat16 || gathered == at::kHalf)),
        "fully_shard: \"", named.name,
        "\" cannot be gathered in float8: it must be a matrix of float32, bfloat16 or "
        "float16, without offload");
    auto segment = std::find_if(segments_.begin(), segments_.end(), [&](const Segment& one) {
      return one.master_dtype == own && one.gathered_dtype == gathered &&
             one.is_float8 == is_float8 &&
             parameters_[one.members[0]].tensor.requires_grad() == tensor.requires_grad();
    });
    if (segment == segments_.end()) {
      segment = segments_.emplace(segments_.end());
      segment->master_dtype = own;
      segment->gathered_dtype = gathered;
      segment->is_float8 = is_float8;
      segment->reduce_dtype = options_.reduce_dtype.value_or(own);
    }
    Parameter& parameter = parameters_.emplace_back();
    parameter.name = named.name;
    parameter.tensor = tensor;
    parameter.segment = static_cast<size_t>(segment - segments_.begin());
    parameter.is_trained = tensor.requires_grad();
    segment->members.push_back(parameters_.size() - 1);
    num_trained_ += parameter.is_trained ? 1 : 0;
  }
}

void FlatUnit::ShardSegment(Segment& segment) {
  std::vector<int64_t> sizes;
  for (const size_t i : segment.members) sizes.push_back(parameters_[i].tensor.numel());
  segment.layout = LayOut(sizes, ranks_);
  const NoAutogradGuard quiet;
  const auto options = at::TensorOptions().dtype(segment.master_dtype);
  if (options_.offload && (options_.engine != nullptr || !device_.is_cpu())) {
    segment.copies = std::make_unique<HostCopies>(
        options_.engine != nullptr ? options_.engine : base::AcceleratorCopies(), device_);
    segment.master = segment.copies->Allocate(segment.layout.span, segment.master_dtype);
  } else {
    segment.master = at::zeros({segment.layout.span}, options.device(device_));
  }
  if (options_.has_values) {
    at::Tensor flat = at::zeros({segment.layout.total}, options.device(device_));
    for (size_t k = 0; k < segment.members.size(); ++k) {
      const at::Tensor& tensor = parameters_[segment.members[k]].tensor;
      flat.narrow(0, segment.layout.offsets[k], sizes[k]).view(tensor.sizes()).copy_(tensor);
    }
    if (groups_.all != nullptr) {
      std::vector<at::Tensor> bytes = {base::ElementBytes(flat)};
      groups_.all->broadcast(bytes)->wait();
    }
    segment.master.copy_(flat.narrow(0, rank_ * segment.layout.span, segment.layout.span));
  }
  segment.written = c10::VariableVersion(0);
  const int64_t bytes = BytesOf(segment.layout.total, segment.gathered_dtype);
  segment.storage = EmptyStorage(bytes, device_);
  for (size_t k = 0; k < segment.members.size(); ++k) {
    Parameter& parameter = parameters_[segment.members[k]];
    parameter.offset = segment.layout.offsets[k];
    parameter.piece = segment.layout.PieceOf(k, rank_);
    BecomeSharded(parameter, segment);
  }
}

void FlatUnit::BecomeSharded(Parameter& parameter, const Segment& segment) {
  const bool trained = parameter.tensor.requires_grad();
  parameter.shard =
      LeafOver(segment.master.storage(), segment.master_dtype, segment.master.device(),
               parameter.piece.in_span, {parameter.piece.size});
  parameter.shard.unsafeGetTensorImpl()->set_version_counter(segment.written);
  // Alone, a rank's masters are the gathered weights. Kept casts must see writes to shards.
  if (ranks_ == 1) base::CountWritesThrough(parameter.shard, segment.storage);
  parameter.shard.requires_grad_(trained);

  parameter.tensor.mutable_grad().reset();
  parameter.tensor.set_data(LeafOver(segment.storage, segment.gathered_dtype, device_,
                                     parameter.offset, parameter.tensor.sizes()));
  c10::TensorImpl* const impl = parameter.tensor.unsafeGetTensorImpl();
  impl->set_allow_tensor_metadata_change(true);
  const auto stub = [&](const char* reason) {
    c10::Storage storage =
        EmptyStorage(BytesOf(segment.layout.total, segment.gathered_dtype), device_);
    storage.unsafeGetStorageImpl()->release_data_and_set_meta_custom_data_ptr_error_msg_(
        absl::StrCat("fully_shard: \"", parameter.name, "\" ", reason));
    return storage;
  };
  parameter.stub = stub(
      "is sharded now, and its values are not here: call the module that it belongs to, or read "
      "it in model:full(fn)");
  if (segment.is_float8) {
    parameter.float8_stub = stub(
        "is gathered in float8 now, for its layer alone: read it in model:full(fn), or shard the "
        "model without float8_gather");
  }
  parameter.version = VersionOf(parameter.tensor);
  // Parameters that were views of one tensor share a counter so far.
  impl->set_version_counter(c10::VariableVersion(static_cast<uint32_t>(parameter.version)));
  Hide(parameter);
}

void FlatUnit::Hide(Parameter& parameter) {
  parameter.tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(parameter.stub);
  SetVersion(parameter.tensor, parameter.version + kShardedVersion);
}

int64_t FlatUnit::gradient_bytes() const {
  int64_t bytes = 0;
  for (const Segment& segment : segments_) {
    if (IsTrained(segment))
      bytes = std::max(bytes, BytesOf(segment.layout.total, segment.reduce_dtype));
  }
  return bytes;
}

int64_t FlatUnit::shard_bytes() const {
  int64_t bytes = 0;
  for (const Segment& segment : segments_) bytes += static_cast<int64_t>(segment.master.nbytes());
  return bytes;
}

// --- Gathering -----------------------------------------------------------------------------------

int64_t FlatUnit::gathered_bytes() const {
  int64_t bytes = 0;
  for (const Segment& segment : segments_) bytes += WholeBytes(segment);
  return bytes;
}

bool FlatUnit::TravelsInFloat8(const Segment& segment) const {
  return segment.is_float8 && !gathers_whole_;
}

at::ScalarType FlatUnit::WireDtype(const Segment& segment) const {
  return TravelsInFloat8(segment) ? at::kFloat8_e4m3fn : segment.gathered_dtype;
}

int64_t FlatUnit::SpanBytes(const Segment& segment) const {
  return BytesOf(segment.layout.span, WireDtype(segment));
}

int64_t FlatUnit::WholeBytes(const Segment& segment) const {
  return BytesOf(segment.layout.total, WireDtype(segment));
}

int64_t FlatUnit::InSlot(const Segment& segment) const {
  int64_t bytes = 0;
  for (const Segment* one = segments_.data(); one != &segment; ++one) bytes += WholeBytes(*one);
  return bytes;
}

at::Tensor FlatUnit::InputOf(Segment& segment) const {
  if (TravelsInFloat8(segment)) return Float8InputOf(segment);
  if (segment.copies == nullptr) return segment.master.to(segment.gathered_dtype);
  return segment.copies->StartUpload(segment.master, segment.gathered_dtype);
}

// Makes the current stream wait for what StartGatherOf began.
void FlatUnit::WaitForGather(Segment& segment) {
  WaitFor(segment.work);
  if (segment.copies != nullptr) segment.copies->MakeCurrentWait();
}

void FlatUnit::MastersMayHaveChanged() {
  for (Segment& segment : segments_) {
    if (segment.copies != nullptr) segment.copies->ForgetCast();
  }
}

void FlatUnit::LeaveMasters() {
  for (Segment& segment : segments_) {
    if (segment.copies != nullptr) segment.copies->LeaveMasters();
  }
}

// Nothing travels where there is one rank: the masters are the parameters, unless they are cast.
void FlatUnit::StartGatherOf(Segment& segment, const at::Tensor& slot) {
  const NoAutogradGuard quiet;
  segment.input = InputOf(segment);
  if (ranks_ == 1) return;
  at::Tensor output = slot.narrow(0, InSlot(segment), WholeBytes(segment));
  at::Tensor input = base::ElementBytes(segment.input);
  // Behind the upload, and beside what the current stream computes.
  const c10::OptionalStreamGuard behind(
      segment.copies != nullptr ? std::optional(segment.copies->stream()) : std::nullopt);
  segment.work = base::AllGatherSingle(*groups_.gather, output, input);
}

void FlatUnit::StartGather() {
  TORCH_INTERNAL_ASSERT(state_ == State::kSharded);
  if (ranks_ > 1) slot_ = pool_->Acquire(gathered_bytes());
  for (Segment& segment : segments_) StartGatherOf(segment, slot_);
  state_ = State::kInFlight;
}

void FlatUnit::FinishGather() {
  TORCH_INTERNAL_ASSERT(state_ == State::kInFlight);
  const at::NoGradGuard no_grad;
  for (Segment& segment : segments_) {
    WaitForGather(segment);
    void* const data = ranks_ == 1 ? segment.input.data_ptr()
                                   : static_cast<char*>(slot_.data_ptr()) + InSlot(segment);
    // The masters are aliased, and a cast copy is kept as long as it is used.
    if (ranks_ > 1) segment.input.reset();
    // Bytes of float8 numbers are no values of the parameters.
    if (!TravelsInFloat8(segment))
      segment.storage.unsafeGetStorageImpl()->set_data_ptr_noswap(c10::DataPtr(data, device_));
    const int64_t version = segment.written.current_version();
    // As after a change in place: graphs of before it must fail.
    const bool changed = version != segment.gathered_version;
    segment.gathered_version = version;
    for (const size_t i : segment.members) {
      Parameter& parameter = parameters_[i];
      parameter.version += changed ? 1 : 0;
      parameter.tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(
          TravelsInFloat8(segment) ? parameter.float8_stub : segment.storage);
      SetVersion(parameter.tensor, parameter.version);
      FollowFreezing(parameter);
    }
    if (TravelsInFloat8(segment)) GiveFloat8(segment);
  }
  state_ = State::kGathered;
}

// A script may freeze a parameter or its shard: the other one follows.
bool FlatUnit::is_trained(size_t i) const {
  const Parameter& parameter = parameters_[i];
  const bool by_module = parameter.tensor.requires_grad() != parameter.is_trained;
  const bool by_shard = parameter.shard.requires_grad() != parameter.is_trained;
  return parameter.is_trained != (by_module || by_shard);
}

void FlatUnit::FollowFreezing(Parameter& parameter) {
  if (is_trained(static_cast<size_t>(&parameter - parameters_.data())) == parameter.is_trained)
    return;
  parameter.is_trained = !parameter.is_trained;
  parameter.tensor.requires_grad_(parameter.is_trained);
  parameter.shard.requires_grad_(parameter.is_trained);
  num_trained_ += parameter.is_trained ? 1 : -1;
}

void FlatUnit::Reshard() {
  if (state_ == State::kSharded) return;
  for (Segment& segment : segments_) {
    WaitForGather(segment);
    // A cast of a whole weight would outlive it here.
    base::ForgetCopiesOf(segment.storage);
    for (const size_t i : segment.members) {
      if (segment.is_float8) base::ForgetCopiesOf(parameters_[i].float8_stub);
    }
    segment.storage.unsafeGetStorageImpl()->set_data_ptr_noswap(c10::DataPtr(nullptr, device_));
    if (segment.is_float8 && gathers_whole_) LeaveWholeValues(segment);
    segment.input.reset();
    if (state_ != State::kGathered) continue;
    for (const size_t i : segment.members) {
      Parameter& parameter = parameters_[i];
      NoteChange(parameter);
      Hide(parameter);
    }
  }
  if (slot_.defined()) pool_->Release(std::exchange(slot_, at::Tensor()));
  state_ = State::kSharded;
}

// Tensors that a script keeps from model:full(fn) have the storage of the whole values. The next
// gathering brings none, so reading them is an error from here on.
void FlatUnit::LeaveWholeValues(Segment& segment) {
  segment.storage.unsafeGetStorageImpl()->release_data_and_set_meta_custom_data_ptr_error_msg_(
      absl::StrCat("fully_shard: this tensor shares the memory of a weight of ",
                   name_.empty() ? "the root" : absl::StrCat("\"", name_, "\""),
                   " in model:full(fn), which is over, and the weight is gathered in float8 now; "
                   "clone what you keep"));
  segment.storage = EmptyStorage(BytesOf(segment.layout.total, segment.gathered_dtype), device_);
}

void FlatUnit::JoinGather(bool whole) {
  const bool own = std::exchange(gathers_whole_, whole);
  at::Tensor slot;
  if (ranks_ > 1) slot = pool_->Acquire(gathered_bytes());
  for (Segment& segment : segments_) {
    const c10::intrusive_ptr<c10d::Work> earlier = std::exchange(segment.work, nullptr);
    const at::Tensor input = segment.input;
    StartGatherOf(segment, slot);
    WaitForGather(segment);
    segment.work = earlier;
    segment.input = input;
  }
  if (slot.defined()) pool_->Release(std::move(slot));
  gathers_whole_ = own;
}

void FlatUnit::WriteBack() {
  TORCH_INTERNAL_ASSERT(state_ == State::kGathered);
  for (Parameter& parameter : parameters_) {
    const int64_t version = VersionOf(parameter.tensor);
    if (version == parameter.version) continue;
    const at::NoGradGuard no_grad;
    const Piece& piece = parameter.piece;
    parameter.shard.copy_(
        parameter.tensor.detach().view({-1}).narrow(0, piece.in_parameter, piece.size));
    parameter.version = version;
  }
}

void FlatUnit::NoteChange(Parameter& parameter) {
  const int64_t version = VersionOf(parameter.tensor);
  if (std::exchange(parameter.version, version) != version) changed_ = parameter.name;
}

// Where there is one rank the change is in the masters. It is an error all the same: a script that
// is tried on one rank would go wrong on two.
void FlatUnit::CheckUnchanged() {
  if (state_ == State::kGathered) {
    for (Parameter& parameter : parameters_) NoteChange(parameter);
  }
  const std::string changed = std::exchange(changed_, "");
  TORCH_CHECK(changed.empty(), "fully_shard: \"", changed,
              "\" was changed in place in or after its forward; the change would be lost: change "
              "it inside model:full(fn)");
}

// --- Whole values --------------------------------------------------------------------------------

std::vector<at::Tensor> FlatUnit::GatherWhole(const std::vector<at::Tensor>& pieces) {
  const at::NoGradGuard no_grad;
  const NoAutogradGuard quiet;
  std::vector<at::Tensor> whole(parameters_.size());
  for (Segment& segment : segments_) {
    const at::ScalarType dtype =
        pieces.empty() ? segment.master_dtype : pieces[segment.members[0]].scalar_type();
    at::Tensor span = segment.master.to(device_);
    if (!pieces.empty()) {
      span = at::zeros({segment.layout.span}, at::TensorOptions().dtype(dtype).device(device_));
      for (const size_t i : segment.members) {
        const Piece& piece = parameters_[i].piece;
        TORCH_CHECK_VALUE(pieces[i].dim() == 1 && pieces[i].numel() == piece.size &&
                              pieces[i].scalar_type() == dtype,
                          "fully_shard: this rank keeps ", piece.size, " elements of \"",
                          parameters_[i].name, "\", but the piece is ",
                          c10::toString(pieces[i].scalar_type()), " [",
                          absl::StrJoin(pieces[i].sizes(), ", "), "]");
        span.narrow(0, piece.in_span, piece.size).copy_(pieces[i]);
      }
    }
    at::Tensor flat = at::empty({segment.layout.total}, span.options());
    if (ranks_ > 1) {
      at::Tensor output = base::ElementBytes(flat), input = base::ElementBytes(span);
      base::AllGatherSingle(*groups_.gather, output, input)->wait();
    } else {
      flat.copy_(span);
    }
    for (const size_t i : segment.members) {
      whole[i] = LeafOver(flat.storage(), dtype, flat.device(), parameters_[i].offset,
                          parameters_[i].tensor.sizes());
    }
  }
  return whole;
}

void FlatUnit::Load(size_t i, const at::Tensor& whole, const at::Tensor& into) {
  const Parameter& parameter = parameters_[i];
  TORCH_CHECK_VALUE(whole.sizes() == parameter.tensor.sizes(), "fully_shard: \"", parameter.name,
                    "\" has shape [", absl::StrJoin(parameter.tensor.sizes(), ", "),
                    "], but the value has [", absl::StrJoin(whole.sizes(), ", "), "]");
  const Piece& piece = parameter.piece;
  const at::Tensor& target = into.defined() ? into : parameter.shard;
  TORCH_CHECK_VALUE(target.dim() == 1 && target.numel() == piece.size,
                    "fully_shard: this rank keeps ", piece.size, " elements of \"", parameter.name,
                    "\", not ", target.numel());
  const at::NoGradGuard no_grad;
  target.copy_(whole.detach().reshape({-1}).narrow(0, piece.in_parameter, piece.size));
}

}  // namespace lockstep::sharding
