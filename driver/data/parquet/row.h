// A row of a table as bytes, in the form in which it is kept in the cache.
//
//   std::string row;
//   RowWriter writer(&row);
//   writer.Begin('{'); writer.String("id"); writer.Number(5, /*is_integer=*/true); writer.End('}');
//   bool ok = ReadRow(row, handler);   // handler.StartObject(), handler.Key("id"), ...
//
// A file of rows is a run of them, each behind its size in eight bytes: see AppendSize and SizeAt.
// Numbers are in the byte order of the machine, because a cache never leaves it.

#ifndef LOCKSTEP_DRIVER_DATA_PARQUET_ROW_H_
#define LOCKSTEP_DRIVER_DATA_PARQUET_ROW_H_

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::data {

inline void AppendSize(uint64_t size, std::string* to) {
  to->append(reinterpret_cast<const char*>(&size), sizeof(size));
}

// Returns the size that the eight bytes at `bytes` are.
inline uint64_t SizeAt(const char* bytes) {
  uint64_t size = 0;
  std::memcpy(&size, bytes, sizeof(size));
  return size;
}

// Appends values to a string. In an object, each value follows its name, a String.
class RowWriter {
 public:
  explicit RowWriter(std::string* row) : row_(*row) {}

  void Null() { row_.push_back('n'); }
  void Bool(bool value) { row_.push_back(value ? 't' : 'f'); }
  void Number(double value, bool is_integer) {
    row_.push_back(is_integer ? 'i' : 'd');
    row_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  void String(std::string_view value) {
    row_.push_back('s');
    AppendSize(value.size(), &row_);
    row_.append(value);
  }
  void Begin(char bracket) { row_.push_back(bracket); }  // '{' or '['
  void End(char bracket) { row_.push_back(bracket); }    // '}' or ']'

 private:
  std::string& row_;
};

// Calls the handler, such as a JsonBuilder, for each part of the row. Returns false if the bytes
// are not one whole row, after the calls for what could be read.
template <typename Handler>
bool ReadRow(std::string_view row, Handler& handler) {
  std::vector<char> open;  // the brackets that are open
  bool expects_key = false;
  while (!row.empty()) {
    const char tag = row[0];
    row.remove_prefix(1);
    if (expects_key && tag != 's' && tag != '}') return false;
    if (tag == 'i' || tag == 'd') {
      double value = 0;
      if (row.size() < sizeof(value)) return false;
      std::memcpy(&value, row.data(), sizeof(value));
      row.remove_prefix(sizeof(value));
      handler.Number(value, tag == 'i');
    } else if (tag == 's') {
      if (row.size() < 8 || SizeAt(row.data()) > row.size() - 8) return false;
      const std::string_view text = row.substr(8, SizeAt(row.data()));
      row.remove_prefix(8 + text.size());
      if (expects_key) {
        handler.Key(std::string(text));
        expects_key = false;
        continue;
      }
      handler.String(std::string(text));
    } else if (tag == '{' || tag == '[') {
      open.push_back(tag);
      expects_key = tag == '{';
      if (expects_key) {
        handler.StartObject();
      } else {
        handler.StartArray();
      }
      continue;
    } else if (tag == '}' || tag == ']') {
      if (open.empty() || open.back() != (tag == '}' ? '{' : '[') || (tag == '}' && !expects_key))
        return false;
      open.pop_back();
      if (tag == '}') {
        handler.EndObject();
      } else {
        handler.EndArray();
      }
    } else if (tag == 't' || tag == 'f') {
      handler.Bool(tag == 't');
    } else if (tag == 'n') {
      handler.Null();
    } else {
      return false;
    }
    if (open.empty()) return row.empty();
    expects_key = open.back() == '{';
  }
  return false;
}

}  // namespace lockstep::data

#endif  // LOCKSTEP_DRIVER_DATA_PARQUET_ROW_H_
