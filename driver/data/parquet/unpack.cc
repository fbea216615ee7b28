#include "driver/data/parquet/unpack.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <exception>
#include <memory>
#include <utility>

#include "arrow/api.h"
#include "arrow/io/file.h"
#include "arrow/util/float16.h"
#include "driver/data/parquet/row.h"
#include "parquet/arrow/reader.h"
#include "parquet/arrow/schema.h"
#include "parquet/exception.h"
#include "parquet/file_reader.h"
#include "parquet/metadata.h"

namespace lockstep::data {
namespace {

using ::arrow::Type;

// As many rows are decoded at a time as fill these bytes, judged by the sizes that the file states.
constexpr int64_t kBytesAtATime = int64_t{16} << 20;
constexpr int64_t kMaxRowsAtATime = 1024;
constexpr int kMaxDepth = 100;
constexpr char kLeaveOut[] = "; leave the column out: name those to read with columns =";

// An error that is complete but for the file's name.
class ReadError : public std::exception {
 public:
  explicit ReadError(std::string message) : message_(std::move(message)) {}
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  std::string message_;
};

// One that names the row and the column already.
class ValueError : public ReadError {
 public:
  using ReadError::ReadError;
};

void Check(const arrow::Status& status) {
  if (!status.ok()) throw ReadError(status.message());
}

template <typename T>
T Check(arrow::Result<T> result) {
  Check(result.status());
  return *std::move(result);
}

std::string Quote(const std::string& name) { return "\"" + name + "\""; }

// --- Types ---------------------------------------------------------------------------------------

bool IsText(const arrow::DataType& type) {
  return type.id() == Type::STRING || type.id() == Type::LARGE_STRING;
}

// Throws ReadError, with the column's path, unless AppendValue reads the type.
void CheckType(const arrow::DataType& type, const std::string& path, int depth) {
  const auto refuse = [&](const std::string& problem) {
    throw ReadError("column " + Quote(path) + ": " + problem + kLeaveOut);
  };
  if (depth > kMaxDepth) refuse("its type is nested more than 100 deep");
  switch (type.id()) {
    case Type::NA:
    case Type::BOOL:
    case Type::INT8:
    case Type::INT16:
    case Type::INT32:
    case Type::INT64:
    case Type::UINT8:
    case Type::UINT16:
    case Type::UINT32:
    case Type::UINT64:
    case Type::HALF_FLOAT:
    case Type::FLOAT:
    case Type::DOUBLE:
    case Type::STRING:
    case Type::BINARY:
    case Type::LARGE_STRING:
    case Type::LARGE_BINARY:
    case Type::FIXED_SIZE_BINARY:
    case Type::DATE32:
    case Type::DATE64:
    case Type::TIME32:
    case Type::TIME64:
    case Type::TIMESTAMP:
    case Type::DECIMAL32:
    case Type::DECIMAL64:
    case Type::DECIMAL128:
    case Type::DECIMAL256: return;
    case Type::LIST:
    case Type::LARGE_LIST: return CheckType(*type.field(0)->type(), path + "[]", depth + 1);
    case Type::STRUCT:
      for (const auto& field : type.fields())
        CheckType(*field->type(), path + "." + field->name(), depth + 1);
      return;
    case Type::MAP: {
      const auto& map = static_cast<const arrow::MapType&>(type);
      if (!IsText(*map.key_type())) {
        refuse("the keys of a map must be strings, not of the type " + map.key_type()->ToString());
      }
      return CheckType(*map.item_type(), path + "[]", depth + 1);
    }
    default: refuse("values of the type " + type.ToString() + " are not read");
  }
}

// --- Values --------------------------------------------------------------------------------------

// Appends values to a row. Array types follow from type ids, as in Arrow's own visitors.
class RowBuilder {
 public:
  explicit RowBuilder(std::string* row) : writer_(row) {}

  // Throws ReadError for an integer that a double would round.
  void AppendValue(const arrow::Array& array, int64_t i) {
    if (array.IsNull(i)) return writer_.Null();
    switch (array.type_id()) {
      case Type::BOOL: return writer_.Bool(static_cast<const arrow::BooleanArray&>(array).Value(i));
      case Type::INT8: return AppendInteger<arrow::Int8Array>(array, i);
      case Type::INT16: return AppendInteger<arrow::Int16Array>(array, i);
      case Type::INT32: return AppendInteger<arrow::Int32Array>(array, i);
      case Type::INT64: return AppendInteger<arrow::Int64Array>(array, i);
      case Type::UINT8: return AppendInteger<arrow::UInt8Array>(array, i);
      case Type::UINT16: return AppendInteger<arrow::UInt16Array>(array, i);
      case Type::UINT32: return AppendInteger<arrow::UInt32Array>(array, i);
      case Type::UINT64: return AppendInteger<arrow::UInt64Array>(array, i);
      case Type::HALF_FLOAT:
        return writer_.Number(arrow::util::Float16::FromBits(
                                  static_cast<const arrow::HalfFloatArray&>(array).Value(i))
                                  .ToDouble(),
                              false);
      case Type::FLOAT:
        return writer_.Number(static_cast<const arrow::FloatArray&>(array).Value(i), false);
      case Type::DOUBLE:
        return writer_.Number(static_cast<const arrow::DoubleArray&>(array).Value(i), false);
      case Type::STRING:
      case Type::BINARY:
        return writer_.String(static_cast<const arrow::BinaryArray&>(array).GetView(i));
      case Type::LARGE_STRING:
      case Type::LARGE_BINARY:
        return writer_.String(static_cast<const arrow::LargeBinaryArray&>(array).GetView(i));
      case Type::FIXED_SIZE_BINARY:
        return writer_.String(static_cast<const arrow::FixedSizeBinaryArray&>(array).GetView(i));
      case Type::LIST: return AppendList(static_cast<const arrow::ListArray&>(array), i);
      case Type::LARGE_LIST: return AppendList(static_cast<const arrow::LargeListArray&>(array), i);
      case Type::STRUCT: return AppendStruct(static_cast<const arrow::StructArray&>(array), i);
      case Type::MAP: return AppendMap(static_cast<const arrow::MapArray&>(array), i);
      default:  // dates, times and decimals: CheckType lets no other type pass
        return writer_.String(Check(array.GetScalar(i))->ToString());
    }
  }

  void AppendStruct(const arrow::StructArray& array, int64_t i) {
    writer_.Begin('{');
    for (int field = 0; field < array.num_fields(); ++field) {
      writer_.String(array.struct_type()->field(field)->name());
      AppendValue(*array.field(field), i);
    }
    writer_.End('}');
  }

 private:
  template <typename Array>
  void AppendInteger(const arrow::Array& array, int64_t i) {
    const auto value = static_cast<const Array&>(array).Value(i);
    const auto number = static_cast<double>(value);
    // 2^64 and 2^63 themselves are out of the integers' range, and casting them back is undefined.
    const bool is_exact =
        std::abs(number) < 9.2e18 && static_cast<decltype(value)>(number) == value;
    if (!is_exact) {
      throw ReadError("the integer " + std::to_string(value) +
                      " is beyond 2^53: a Lua number cannot hold it exactly" + kLeaveOut);
    }
    writer_.Number(number, true);
  }

  template <typename List>
  void AppendList(const List& list, int64_t i) {
    writer_.Begin('[');
    for (int64_t at = list.value_offset(i); at < list.value_offset(i + 1); ++at)
      AppendValue(*list.values(), at);
    writer_.End(']');
  }

  void AppendMap(const arrow::MapArray& map, int64_t i) {
    writer_.Begin('{');
    for (int64_t at = map.value_offset(i); at < map.value_offset(i + 1); ++at) {
      AppendValue(*map.keys(), at);
      AppendValue(*map.items(), at);
    }
    writer_.End('}');
  }

  RowWriter writer_;
};

// --- Files ---------------------------------------------------------------------------------------

struct File {
  std::unique_ptr<parquet::arrow::FileReader> reader;
  std::shared_ptr<arrow::Schema> schema;  // of all columns
  std::vector<int> fields;                // those to read
};

// Returns the numbers of the leaves of these fields: Arrow's readers take leaves, not fields.
std::vector<int> LeavesOf(const parquet::arrow::FileReader& reader,
                          const std::vector<int>& fields) {
  std::vector<int> leaves;
  std::vector<const parquet::arrow::SchemaField*> open;
  for (const int field : fields) open.push_back(&reader.manifest().schema_fields[field]);
  while (!open.empty()) {
    const parquet::arrow::SchemaField* field = open.back();
    open.pop_back();
    if (field->is_leaf()) leaves.push_back(field->column_index);
    for (const auto& child : field->children) open.push_back(&child);
  }
  std::sort(leaves.begin(), leaves.end());
  return leaves;
}

int64_t RowsAtATime(const parquet::FileMetaData& metadata) {
  int64_t rows = kMaxRowsAtATime;
  for (int group = 0; group < metadata.num_row_groups(); ++group) {
    const auto row_group = metadata.RowGroup(group);
    const int64_t bytes_of_row =
        row_group->total_byte_size() / std::max<int64_t>(row_group->num_rows(), 1);
    rows = std::min(rows, kBytesAtATime / std::max<int64_t>(bytes_of_row, 1));
  }
  return std::max<int64_t>(rows, 1);
}

File Open(const std::string& path, const std::vector<std::string>& columns) {
  parquet::ReaderProperties properties(arrow::system_memory_pool());
  properties.enable_buffered_stream();
  properties.set_page_checksum_verification(true);
  parquet::ArrowReaderProperties arrow_properties(/*use_threads=*/false);
  arrow_properties.set_pre_buffer(false);
  arrow_properties.set_binary_type(Type::LARGE_BINARY);
  arrow_properties.set_list_type(Type::LARGE_LIST);
  parquet::arrow::FileReaderBuilder builder;
  Check(builder.Open(Check(arrow::io::ReadableFile::Open(path)), properties));
  arrow_properties.set_batch_size(RowsAtATime(*builder.raw_reader()->metadata()));
  // The writer's own types (dictionaries, views, extensions) say how it held the columns in memory.
  // Without them the types of the columns are Parquet's, and few.
  const auto& metadata = builder.raw_reader()->metadata()->key_value_metadata();
  if (metadata != nullptr && metadata->Contains("ARROW:schema"))
    Check(std::const_pointer_cast<arrow::KeyValueMetadata>(metadata)->Delete("ARROW:schema"));
  builder.memory_pool(arrow::system_memory_pool());
  File file;
  file.reader = Check(builder.properties(arrow_properties)->Build());
  Check(file.reader->GetSchema(&file.schema));
  std::string known;
  for (const auto& field : file.schema->fields())
    known += (known.empty() ? "" : ", ") + Quote(field->name());
  for (const std::string& column : columns) {
    if (file.schema->GetAllFieldIndices(column).empty())
      throw ReadError("there is no column " + Quote(column) + "; the columns are " + known);
  }
  for (int i = 0; i < file.schema->num_fields(); ++i) {
    const std::string& name = file.schema->field(i)->name();
    if (!columns.empty() && std::find(columns.begin(), columns.end(), name) == columns.end())
      continue;
    if (file.schema->GetAllFieldIndices(name).size() != 1)
      throw ReadError("several columns have the name " + Quote(name) + kLeaveOut);
    CheckType(*file.schema->field(i)->type(), name, 0);
    file.fields.push_back(i);
  }
  if (file.fields.empty()) throw ReadError("the table has no columns");
  return file;
}

// Returns why `fields` of a row group cannot be decoded, or "".
std::string Problem(const File& file, int group, const std::vector<int>& fields) {
  const auto read = [&] {
    auto batches =
        Check(file.reader->GetRecordBatchReader({group}, LeavesOf(*file.reader, fields)));
    while (Check(batches->Next()) != nullptr) {
    }
  };
  try {
    read();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

// Appends one value of a column, and names the row and the column in errors.
void AppendColumn(const arrow::RecordBatch& batch, int column, int64_t i, int64_t row,
                  std::string* to) {
  try {
    RowBuilder(to).AppendValue(*batch.column(column), i);
  } catch (const ReadError& error) {
    throw ValueError("row " + std::to_string(row) + ", column " +
                     Quote(batch.schema()->field(column)->name()) + ": " + error.what());
  }
}

// Reads a row group, whose first row is `first` from 1. Returns what `write` returns.
std::string UnpackGroup(const File& file, int group, int64_t first,
                        const std::function<std::string(std::string_view row)>& write) {
  auto batches =
      Check(file.reader->GetRecordBatchReader({group}, LeavesOf(*file.reader, file.fields)));
  int64_t row = first;
  std::string bytes;
  while (const std::shared_ptr<arrow::RecordBatch> batch = Check(batches->Next())) {
    for (int64_t i = 0; i < batch->num_rows(); ++i, ++row) {
      bytes.clear();
      RowWriter writer(&bytes);
      writer.Begin('{');
      for (int column = 0; column < batch->num_columns(); ++column) {
        writer.String(batch->schema()->field(column)->name());
        AppendColumn(*batch, column, i, row, &bytes);
      }
      writer.End('}');
      std::string problem = write(bytes);
      if (!problem.empty()) return problem;
    }
  }
  const int64_t expected = file.reader->parquet_reader()->metadata()->RowGroup(group)->num_rows();
  if (row - first != expected) {
    throw ReadError("the row group has " + std::to_string(row - first) +
                    " rows, and the file says " + std::to_string(expected));
  }
  return "";
}

}  // namespace

std::string UnpackParquet(const std::string& path, const std::vector<std::string>& columns,
                          const std::function<std::string(std::string_view row)>& write) try {
  const File file = Open(path, columns);
  int64_t first = 1;
  for (int group = 0; group < file.reader->num_row_groups(); ++group) {
    const int64_t rows = file.reader->parquet_reader()->metadata()->RowGroup(group)->num_rows();
    try {
      std::string problem = UnpackGroup(file, group, first, write);
      if (!problem.empty()) return problem;
    } catch (const ValueError&) {
      throw;
    } catch (const std::exception& error) {
      std::string place = "row group " + std::to_string(group + 1) + " of " +
                          std::to_string(file.reader->num_row_groups()) + ", rows " +
                          std::to_string(first) + " to " + std::to_string(first + rows - 1);
      for (const int field : file.fields) {
        if (Problem(file, group, {field}).empty()) continue;
        place += ", column " + Quote(file.schema->field(field)->name());
        break;
      }
      return path + ": " + place + ": " + error.what();
    }
    first += rows;
  }
  return "";
} catch (const std::exception& error) {
  return path + ": " + error.what();
}

}  // namespace lockstep::data

const lockstep::data::UnpackParquetFunction lockstep_unpack_parquet =
    &lockstep::data::UnpackParquet;
