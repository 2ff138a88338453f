#include "common/formats/safetensors.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <optional>
#include <tuple>
#include <utility>

#include "common/formats/git_lfs.h"
#include "common/hash.h"
#include "common/json.h"

namespace weft {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian");

struct TypeRow {
  std::string_view name;
  int bits;
};

constexpr std::array<TypeRow, 22> kTypes = {{
    {"BOOL", 8},        {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
    {"I8", 8},          {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
    {"F8_E5M2FNUZ", 8}, {"I16", 16},    {"U16", 16},    {"F16", 16},    {"BF16", 16},
    {"I32", 32},        {"U32", 32},    {"F32", 32},    {"C64", 64},    {"F64", 64},
    {"I64", 64},        {"U64", 64},
}};

constexpr uint64_t kMaxHeaderBytes = 100'000'000;
constexpr size_t kMaxTensors = 1'000'000;
constexpr size_t kMaxRank = 16;
constexpr size_t kMaxNameBytes = 1024;
constexpr int kMaxDepth = 32;  // unknown keys of entries may hold anything
constexpr std::string_view kMetadataKey = "__metadata__";

std::optional<SafetensorsType> TypeFromName(std::string_view name) {
  for (size_t i = 0; i < kTypes.size(); ++i) {
    if (kTypes[i].name == name) return static_cast<SafetensorsType>(i);
  }
  return std::nullopt;
}

/// Size in bytes of a tensor; nothing when it overflows or does not fill whole bytes.
std::optional<uint64_t> TensorBytes(SafetensorsType type, const std::vector<uint64_t>& shape) {
  auto bits = static_cast<uint64_t>(SafetensorsTypeBits(type));
  for (uint64_t extent : shape) {
    if (__builtin_mul_overflow(bits, extent, &bits)) return std::nullopt;
  }
  if (bits % 8 != 0) return std::nullopt;
  return bits / 8;
}

/// Why a name cannot be in a file; "" when it can.
std::string NameFault(const std::string& name) {
  if (name.size() > kMaxNameBytes) {
    return "is longer than " + std::to_string(kMaxNameBytes) + " bytes";
  }
  if (name.find('\0') != std::string::npos) return "holds a NUL byte";
  if (name == kMetadataKey) return "is reserved";
  return "";
}

std::string Quote(const std::string& name) {
  return Json(name.substr(0, 80)).dump(-1, ' ', true, Json::error_handler_t::replace);
}

/// One entry of the header, before its place in the file is known to be sound.
struct Entry {
  SafetensorsView view;
  uint64_t begin = 0;
  uint64_t end = 0;
};

Result<Entry> ReadEntry(const std::string& name, const Json& json) {
  auto fault = [&](const std::string& what) {
    return CorruptError("tensor " + Quote(name) + " " + what);
  };
  if (std::string why = NameFault(name); !why.empty()) return fault(why);
  // Other keys are passed over, as the reference implementation does.
  if (!json.is_object() || !json.contains("dtype") || !json.contains("shape") ||
      !json.contains("data_offsets")) {
    return fault("must have dtype, shape and data_offsets");
  }
  const Json& dtype = json["dtype"];
  const Json& shape = json["shape"];
  const Json& offsets = json["data_offsets"];
  Entry entry;
  entry.view.name = name;
  if (!dtype.is_string()) return fault("has a dtype that is not a string");
  std::optional<SafetensorsType> type = TypeFromName(dtype.get_ref<const std::string&>());
  if (!type) return fault("has the unknown dtype " + Quote(dtype.get<std::string>()));
  entry.view.type = *type;
  if (!shape.is_array() || shape.size() > kMaxRank) {
    return fault("has a shape that is not a list of at most " + std::to_string(kMaxRank) +
                 " extents");
  }
  for (const Json& extent : shape) {
    if (!extent.is_number_unsigned()) return fault("has an extent that is not a whole number");
    entry.view.shape.push_back(extent.get<uint64_t>());
  }
  if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
      !offsets[1].is_number_unsigned()) {
    return fault("has data_offsets that are not two whole numbers");
  }
  entry.begin = offsets[0].get<uint64_t>();
  entry.end = offsets[1].get<uint64_t>();
  return entry;
}

Status ReadMetadata(const Json& json, SafetensorsMetadata& metadata) {
  if (json.is_null()) return OkStatus();  // means the same as no metadata
  if (!json.is_object()) return CorruptError("__metadata__ is not an object");
  for (const auto& [key, value] : json.items()) {
    if (!value.is_string()) return CorruptError("__metadata__ has a value that is not a string");
    metadata[key] = value.get<std::string>();
  }
  return OkStatus();
}

/// Checks that the tensors tile the data exactly and points their views at it.
Status Place(std::vector<Entry>& entries, std::span<const std::byte> data) {
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::tie(a.begin, a.end, a.view.name) < std::tie(b.begin, b.end, b.view.name);
  });
  uint64_t position = 0;
  for (Entry& entry : entries) {
    auto fault = [&](const std::string& what) {
      return CorruptError("tensor " + Quote(entry.view.name) + " " + what);
    };
    if (entry.begin != position) {
      return fault("starts at byte " + std::to_string(entry.begin) + " of the data, not at " +
                   std::to_string(position) + ": tensors overlap or leave a gap");
    }
    if (entry.end < entry.begin) return fault("ends before it starts");
    if (entry.end > data.size()) return fault("ends past the end of the file");
    std::optional<uint64_t> expected = TensorBytes(entry.view.type, entry.view.shape);
    if (!expected) return fault("has a size that overflows or does not fill whole bytes");
    if (*expected != entry.end - entry.begin) {
      return fault("is " + DescribeTensor(entry.view.type, entry.view.shape) + ", which takes " +
                   std::to_string(*expected) + " bytes, but spans " +
                   std::to_string(entry.end - entry.begin));
    }
    entry.view.bytes = data.subspan(entry.begin, entry.end - entry.begin);
    position = entry.end;
  }
  if (position != data.size()) {
    return CorruptError("the tensors end at byte " + std::to_string(position) +
                        " of the data, which has " + std::to_string(data.size()));
  }
  return OkStatus();
}

/// The header with its length and padding, ready to be written. Throws Json::exception when a name
/// or metadata is not UTF-8.
std::string BuildHeader(const std::vector<SafetensorsTensor>& tensors,
                        const SafetensorsMetadata& metadata) {
  std::string header(8, '\0');
  auto text = [](const std::string& value) { return Json(value).dump(); };
  header += "{\"__metadata__\":{";
  bool first = true;
  for (const auto& [key, value] : metadata) {
    if (!std::exchange(first, false)) header += ',';
    header += text(key) + ":" + text(value);
  }
  header += '}';
  uint64_t offset = 0;
  for (const SafetensorsTensor& tensor : tensors) {
    header += "," + text(tensor.name) + ":{\"dtype\":\"";
    header += SafetensorsTypeName(tensor.type);
    header += "\",\"shape\":" + Json(tensor.shape).dump() + ",\"data_offsets\":[";
    header += std::to_string(offset);
    offset += *TensorBytes(tensor.type, tensor.shape);
    header += "," + std::to_string(offset) + "]}";
  }
  header += '}';
  header.append((8 - header.size() % 8) % 8, ' ');
  uint64_t length = header.size() - 8;
  std::memcpy(header.data(), &length, sizeof(length));
  return header;
}

Status CheckTensors(const std::vector<SafetensorsTensor>& tensors) {
  std::map<std::string_view, int> names;
  uint64_t total = 0;
  for (const SafetensorsTensor& tensor : tensors) {
    auto fault = [&](const std::string& what) {
      return InvalidError("tensor " + Quote(tensor.name) + " " + what);
    };
    if (std::string why = NameFault(tensor.name); !why.empty()) return fault(why);
    if (names[tensor.name]++ > 0) return fault("is given twice");
    if (tensor.shape.size() > kMaxRank) return fault("has too many dimensions");
    std::optional<uint64_t> expected = TensorBytes(tensor.type, tensor.shape);
    if (!expected || __builtin_add_overflow(total, *expected, &total)) {
      return fault("has a size that overflows or does not fill whole bytes");
    }
    if (!tensor.produce && *expected != tensor.bytes.size()) {
      return fault("is " + DescribeTensor(tensor.type, tensor.shape) + ", which takes " +
                   std::to_string(*expected) + " bytes, but " +
                   std::to_string(tensor.bytes.size()) + " were given");
    }
  }
  return OkStatus();
}

Status WriteTo(WritableFile& file, const std::vector<SafetensorsTensor>& tensors,
               const SafetensorsMetadata& metadata, SafetensorsWritten& written) {
  ContentHash hash;
  auto append = [&](std::span<const std::byte> bytes) -> Status {
    hash.Update(bytes);
    written.bytes += bytes.size();
    return file.Append(bytes);
  };
  std::string header;
  try {
    header = BuildHeader(tensors, metadata);
  } catch (const Json::exception&) {
    return InvalidError("a tensor name or a metadata string is not valid UTF-8");
  }
  if (header.size() - 8 > kMaxHeaderBytes) {
    return InvalidError("the header takes " + std::to_string(header.size()) +
                        " bytes, more than readers accept");
  }
  WEFT_RETURN_IF_ERROR(append(std::as_bytes(std::span(header))));
  for (const SafetensorsTensor& tensor : tensors) {
    if (!tensor.produce) {
      WEFT_RETURN_IF_ERROR(append(tensor.bytes));
      continue;
    }
    uint64_t before = written.bytes;
    WEFT_RETURN_IF_ERROR(tensor.produce(append));
    uint64_t expected = *TensorBytes(tensor.type, tensor.shape);
    if (written.bytes - before != expected) {
      return InternalError("tensor " + Quote(tensor.name) + " produced " +
                           std::to_string(written.bytes - before) + " bytes instead of " +
                           std::to_string(expected));
    }
  }
  WEFT_RETURN_IF_ERROR(file.Sync());
  WEFT_RETURN_IF_ERROR(file.Close());
  written.hash = hash.Hex();
  return OkStatus();
}

}  // namespace

std::string_view SafetensorsTypeName(SafetensorsType type) {
  return kTypes[static_cast<size_t>(type)].name;
}

int SafetensorsTypeBits(SafetensorsType type) {
  return kTypes[static_cast<size_t>(type)].bits;
}

std::string DescribeTensor(SafetensorsType type, const std::vector<uint64_t>& shape) {
  std::string text(SafetensorsTypeName(type));
  text += " [";
  for (size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(shape[i]);
  }
  return text + "]";
}

Result<SafetensorsFile> SafetensorsFile::Open(Env& env, const std::string& path) {
  WEFT_ASSIGN_OR_RETURN(std::unique_ptr<MappedFile> mapped, env.MapFile(path));
  WEFT_ASSIGN_OR_RETURN(SafetensorsFile file, Parse(mapped->bytes(), path));
  file.file_ = std::move(mapped);
  return file;
}

Result<SafetensorsFile> SafetensorsFile::Parse(std::span<const std::byte> bytes,
                                               const std::string& source) {
  auto fail = [&](const Status& status) {
    return CorruptError(source + " is not a sound safetensors file: " + status.message());
  };
  WEFT_RETURN_IF_ERROR(CheckNotGitLfsPointer(bytes, source));
  uint64_t length = 0;
  if (bytes.size() < sizeof(length)) return fail(CorruptError("shorter than 8 bytes"));
  std::memcpy(&length, bytes.data(), sizeof(length));
  bytes = bytes.subspan(sizeof(length));
  if (length > kMaxHeaderBytes) {
    return fail(CorruptError("header of " + std::to_string(length) + " bytes, at most " +
                             std::to_string(kMaxHeaderBytes) + " are accepted"));
  }
  if (length > bytes.size()) return fail(CorruptError("header runs past the end of the file"));
  std::string_view header(reinterpret_cast<const char*>(bytes.data()), length);
  if (header.empty() || header[0] != '{') {
    return fail(CorruptError("header does not start with '{'"));
  }
  Result<Json> json = ParseJson(header, {.bytes = kMaxHeaderBytes, .depth = kMaxDepth});
  if (!json.ok()) return fail(json.status());
  if (json->size() > kMaxTensors) {
    return fail(CorruptError("more than " + std::to_string(kMaxTensors) + " tensors"));
  }

  SafetensorsFile file;
  std::vector<Entry> entries;
  entries.reserve(json->size());
  for (const auto& [name, value] : json->items()) {
    if (name == kMetadataKey) {
      if (Status s = ReadMetadata(value, file.metadata_); !s.ok()) return fail(s);
      continue;
    }
    Result<Entry> entry = ReadEntry(name, value);
    if (!entry.ok()) return fail(entry.status());
    entries.push_back(*std::move(entry));
  }
  if (Status s = Place(entries, bytes.subspan(length)); !s.ok()) return fail(s);
  file.tensors_.reserve(entries.size());
  for (Entry& entry : entries) {
    file.index_.emplace(entry.view.name, file.tensors_.size());
    file.tensors_.push_back(std::move(entry.view));
  }
  return file;
}

const SafetensorsView* SafetensorsFile::Find(std::string_view name) const {
  auto it = index_.find(name);
  return it == index_.end() ? nullptr : &tensors_[it->second];
}

Result<SafetensorsWritten> WriteSafetensors(Env& env, const std::string& path,
                                            std::vector<SafetensorsTensor> tensors,
                                            const SafetensorsMetadata& metadata) {
  if (Status s = CheckTensors(tensors); !s.ok()) return s.WithContext("writing " + path);
  std::sort(tensors.begin(), tensors.end(),
            [](const SafetensorsTensor& a, const SafetensorsTensor& b) {
              if (a.type != b.type) return a.type > b.type;
              return a.name < b.name;
            });
  SafetensorsMetadata all = metadata;
  all["format"] = "pt";
  SafetensorsWritten written;
  std::string temporary = path + ".tmp." + std::to_string(getpid());
  auto write = [&]() -> Status {
    WEFT_ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, env.NewWritableFile(temporary));
    WEFT_RETURN_IF_ERROR(WriteTo(*file, tensors, all, written));
    return env.Rename(temporary, path);
  };
  if (Status status = write(); !status.ok()) {
    (void)env.RemoveFile(temporary);
    return status.WithContext("writing " + path);
  }
  WEFT_RETURN_IF_ERROR(env.SyncDir(DirName(path)));
  return written;
}

}  // namespace weft
