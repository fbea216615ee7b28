#include "driver/files/value_bytes.h"

#include <climits>
#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/raw_bytes.h"

namespace lockstep::driver {
namespace {

absl::Status Wrong(absl::string_view problem) {
  return absl::InvalidArgumentError(absl::StrCat("the bytes received ", problem));
}

void AppendRaw(std::string& bytes, double value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

bool IsContainer(ValueTag tag) { return tag == ValueTag::kTable || tag == ValueTag::kArray; }

}  // namespace

// --- Writing -------------------------------------------------------------------------------------

void ValueWriter::PutCount(uint64_t count) {
  bytes_.append(reinterpret_cast<const char*>(&count), sizeof(count));
}

void ValueWriter::Number(double value) {
  Put(ValueTag::kNumber);
  AppendRaw(bytes_, value);
}

void ValueWriter::String(absl::string_view text) {
  Put(ValueTag::kString);
  PutCount(text.size());
  absl::StrAppend(&bytes_, text);
}

void ValueWriter::Tensor(uint64_t index) {
  Put(ValueTag::kTensor);
  PutCount(index);
}

void ValueWriter::Key(const ValueKey& key) {
  if (const auto* boolean = std::get_if<bool>(&key)) return Bool(*boolean);
  if (const auto* number = std::get_if<double>(&key)) return Number(*number);
  String(std::get<std::string>(key));
}

void ValueWriter::StartArray(uint64_t count) {
  Put(ValueTag::kArray);
  PutCount(count);
}

void ValueWriter::StartNumbers(uint64_t count) {
  Put(ValueTag::kNumbers);
  PutCount(count);
}

void ValueWriter::NextNumber(double value) { AppendRaw(bytes_, value); }

// --- Reading -------------------------------------------------------------------------------------

double ValueToken::NumberAt(uint64_t i) const {
  return base::FromBytes<double>(text.data() + i * sizeof(double));
}

absl::StatusOr<ValueToken> ValueReader::Next() {
  ValueToken token;
  absl::Status status = Read(token);
  if (!status.ok()) return status;
  return token;
}

absl::Status ValueReader::Read(ValueToken& token) {
  absl::Status status = ReadContent(token);
  if (status.ok()) status = CheckPosition(token);
  if (!status.ok()) return status;
  if (token.tag == ValueTag::kEnd) open_.pop_back();
  if (IsContainer(token.tag)) {
    if (open_.size() >= kMaxValueDepth) return Wrong("nest tables more than 64 deep");
    open_.push_back({token.tag == ValueTag::kArray, token.count});
    if (token.tag == ValueTag::kTable || token.count > 0) return absl::OkStatus();
    open_.pop_back();
  }
  FinishValue();
  if (is_done_ && !bytes_.empty()) return Wrong("go on after the value");
  return absl::OkStatus();
}

absl::Status ValueReader::ReadContent(ValueToken& token) {
  absl::string_view taken;
  if (!Take(1, taken)) return Wrong("are cut short");
  token.tag = static_cast<ValueTag>(taken[0]);
  switch (token.tag) {
    case ValueTag::kNil:
    case ValueTag::kNull:
    case ValueTag::kFalse:
    case ValueTag::kTrue:
    case ValueTag::kTable:
    case ValueTag::kEnd: return absl::OkStatus();
    case ValueTag::kNumber:
    case ValueTag::kString:
    case ValueTag::kTensor:
    case ValueTag::kArray:
    case ValueTag::kNumbers: break;
    default: return Wrong("are not a value");
  }
  if (!Take(sizeof(uint64_t), taken)) return Wrong("are cut short");
  if (token.tag == ValueTag::kNumber) {
    token.number = base::FromBytes<double>(taken.data());
    return absl::OkStatus();
  }
  token.count = base::FromBytes<uint64_t>(taken.data());
  if (token.tag == ValueTag::kTensor) {
    return token.count < num_tensors_ ? absl::OkStatus()
                                      : Wrong("refer to a tensor that is missing");
  }
  // Every element takes a byte at least: a count beyond the bytes is a lie.
  const uint64_t element_bytes = token.tag == ValueTag::kNumbers ? sizeof(double) : 1;
  const bool is_list = token.tag != ValueTag::kString;
  if (token.count > bytes_.size() / element_bytes || (is_list && token.count > INT_MAX))
    return Wrong("are cut short");
  if (token.tag != ValueTag::kArray) Take(token.count * element_bytes, token.text);
  return absl::OkStatus();
}

// Checks that such a token may come here.
absl::Status ValueReader::CheckPosition(const ValueToken& token) const {
  const bool in_table = !open_.empty() && !open_.back().is_array;
  if (token.tag == ValueTag::kEnd) {
    if (!in_table) return Wrong("are not a value");
    return open_.back().has_key ? Wrong("contain an invalid table") : absl::OkStatus();
  }
  if (in_table && !open_.back().has_key) {
    const bool is_key = token.tag == ValueTag::kFalse || token.tag == ValueTag::kTrue ||
                        token.tag == ValueTag::kString ||
                        (token.tag == ValueTag::kNumber && !std::isnan(token.number));
    return is_key ? absl::OkStatus() : Wrong("contain an invalid table");
  }
  if (!open_.empty() && open_.back().is_array && token.tag == ValueTag::kNil)
    return Wrong("hold an array with a nil");
  return absl::OkStatus();
}

// Counts the value that is complete, and the arrays that it completes.
void ValueReader::FinishValue() {
  while (!open_.empty()) {
    Open& open = open_.back();
    if (!open.is_array) {
      open.has_key = !open.has_key;
      return;
    }
    if (--open.left > 0) return;
    open_.pop_back();
  }
  is_done_ = true;
}

bool ValueReader::Take(uint64_t size, absl::string_view& taken) {
  if (size > bytes_.size()) return false;
  taken = bytes_.substr(0, size);
  bytes_.remove_prefix(size);
  return true;
}

}  // namespace lockstep::driver
