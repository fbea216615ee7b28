// Plain values as bytes: nil, booleans, numbers, strings, tensors by index, tables of these. Ranks
// send them to each other, and saved states hold them. Nothing here knows Lua.
//
//   ValueWriter writer;                            //   ValueReader reader(writer.bytes(), 0);
//   writer.StartTable();                           //   reader.Next()->tag;   // kTable
//   writer.String("step");                         //   reader.Next()->text;  // "step"
//   writer.Number(7);                              //   reader.Next()->number;  // 7
//   writer.EndTable();                             //   reader.Next()->tag;   // kEnd
//
// The format: a tag of one byte says what follows. A number is a double of 8 bytes, a string its
// length in 8 bytes and its bytes, a tensor its index. A table is its keys and values in turn up to
// kEnd, an array its count and its values. An array of numbers has no tags between them. Integers
// and doubles are little-endian, as the machine has them. Old states hold these bytes: a tag may be
// added, none may change.
//
// Not thread-safe.

#ifndef LOCKSTEP_DRIVER_FILES_VALUE_BYTES_H_
#define LOCKSTEP_DRIVER_FILES_VALUE_BYTES_H_

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lockstep::driver {

enum class ValueTag : char {
  kNil = 'n',
  kNull = '0',  // of JSON
  kFalse = 'f',
  kTrue = 't',
  kNumber = 'd',
  kString = 's',
  kTensor = 'x',
  kTable = '{',
  kEnd = '}',
  kArray = '[',
  kNumbers = '#'
};

// Tables and arrays may be nested this deep.
constexpr int kMaxValueDepth = 64;

// A key of a table. Tables are written in the order of their keys, so that equal tables have equal
// bytes: booleans, then numbers, then strings.
using ValueKey = std::variant<bool, double, std::string>;

// Appends values in the order of the calls. The caller ends each table.
class ValueWriter {
 public:
  void Nil() { Put(ValueTag::kNil); }
  void Null() { Put(ValueTag::kNull); }
  void Bool(bool value) { Put(value ? ValueTag::kTrue : ValueTag::kFalse); }
  void Number(double value);
  void String(absl::string_view text);
  void Tensor(uint64_t index);
  void Key(const ValueKey& key);

  void StartTable() { Put(ValueTag::kTable); }  // followed by keys and values in turn
  void EndTable() { Put(ValueTag::kEnd); }
  void StartArray(uint64_t count);    // followed by `count` values, none of them nil
  void StartNumbers(uint64_t count);  // followed by `count` calls of NextNumber
  void NextNumber(double value);

  const std::string& bytes() const& { return bytes_; }
  std::string bytes() && { return std::move(bytes_); }

 private:
  void Put(ValueTag tag) { bytes_.push_back(static_cast<char>(tag)); }
  void PutCount(uint64_t count);

  std::string bytes_;
};

// The next part of a value. After kTable come keys and values up to kEnd; after kArray come `count`
// values.
struct ValueToken {
  ValueTag tag = ValueTag::kNil;
  double number = 0;       // of kNumber
  uint64_t count = 0;      // of kArray and kNumbers: the number of elements; of kTensor: its index
  absl::string_view text;  // of kString; of kNumbers: the doubles' bytes, for NumberAt

  double NumberAt(uint64_t i) const;  // of kNumbers; i is below count
};

// Reads bytes that may be damaged or hostile. It allocates nothing that they ask for.
class ValueReader {
 public:
  // `bytes` must outlive the reader. Indices of tensors are below `num_tensors`.
  ValueReader(absl::string_view bytes, uint64_t num_tensors)
      : bytes_(bytes), num_tensors_(num_tensors) {}

  // Returns InvalidArgument if the bytes are not one whole value, as soon as that shows: "the bytes
  // received are cut short". Keys are booleans, numbers other than NaN, and strings.
  absl::StatusOr<ValueToken> Next();

  // Whether a whole value was read. Next must not be called after that.
  bool done() const { return is_done_; }

 private:
  // A table or an array that is not complete.
  struct Open {
    bool is_array = false;
    uint64_t left = 0;     // the array's elements to come
    bool has_key = false;  // the table's next value is not a key
  };

  absl::Status Read(ValueToken& token);
  absl::Status ReadContent(ValueToken& token);
  absl::Status CheckPosition(const ValueToken& token) const;
  void FinishValue();
  bool Take(uint64_t size, absl::string_view& taken);

  absl::string_view bytes_;  // those not read yet
  uint64_t num_tensors_;
  std::vector<Open> open_;
  bool is_done_ = false;
};

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_FILES_VALUE_BYTES_H_
