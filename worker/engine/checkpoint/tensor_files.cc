#include "worker/engine/checkpoint/tensor_files.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <optional>
#include <span>
#include <utility>

#include "common/failpoint.h"
#include "common/formats/safetensors.h"
#include "common/json.h"
#include "worker/engine/tensor/transfer.h"

namespace weft::engine {
namespace {

SafetensorsType TypeOf(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return SafetensorsType::kF32;
    case DType::kBF16:
      return SafetensorsType::kBF16;
    case DType::kF16:
      return SafetensorsType::kF16;
    case DType::kI32:
      return SafetensorsType::kI32;
    case DType::kU16:
      return SafetensorsType::kU16;
    case DType::kU8:
      return SafetensorsType::kU8;
    case DType::kF8E4M3:
      return SafetensorsType::kF8E4M3;
    case DType::kF8E5M2:
      return SafetensorsType::kF8E5M2;
  }
  return SafetensorsType::kU8;
}

std::vector<uint64_t> SizesOf(const Shape& shape) {
  std::vector<uint64_t> sizes;
  for (int i = 0; i < shape.rank; ++i) sizes.push_back(static_cast<uint64_t>(shape[i]));
  return sizes;
}

/// Metadata of a file: by name of a part the tensor's sizes, the axis along which it is cut and the
/// ranges that are there, and of successive elements the first one.
constexpr char kPartsKey[] = "weft_parts";
constexpr char kShapeKey[] = "shape", kFirstKey[] = "first";
constexpr char kAxisKey[] = "axis", kRangesKey[] = "ranges", kColumnsKey[] = "columns";

/// Elements that follow one another in a part and in its tensor.
struct Run {
  int64_t part = 0;
  int64_t logical = 0;
  int64_t count = 0;
};

std::vector<Run> RunsOf(const NamedTensor::Place& place, int64_t elements) {
  std::vector<Run> runs;
  place.ForEachRun(elements, [&](int64_t part, int64_t logical, int64_t count) {
    runs.push_back({part, logical, count});
  });
  return runs;
}

/// Where a stored tensor belongs.
struct StoredPlace {
  std::vector<uint64_t> whole;
  std::vector<Run> runs;  ///< Ascending in the tensor.
};

/// A tensor to fill.
struct Target {
  TensorView view;
  StoredNumbers* stored = nullptr;  ///< Instead of its memory.
  std::vector<uint64_t> whole;
  std::vector<Run> runs;  ///< Likewise.
  int64_t missing = 0;    ///< Elements that no file had yet.
};

/// Describes a part with this shape.
Json JsonOf(const NamedTensor::Place& place, const Shape& part) {
  Json json = {{kShapeKey, SizesOf(place.whole)}};
  if (place.shard.whole() || part != place.ShardShape()) {
    json[kFirstKey] = static_cast<uint64_t>(place.first);
  }
  if (place.shard.whole()) return json;
  json[kAxisKey] = static_cast<uint64_t>(place.shard.axis);
  json[kRangesKey] = Json::array();
  for (const Shard::Range& range : place.shard.ranges) {
    json[kRangesKey].push_back(
        {static_cast<uint64_t>(range.begin), static_cast<uint64_t>(range.end)});
  }
  if (const Shard::Range& across = place.shard.across; across.size() > 0) {
    json[kColumnsKey] = {static_cast<uint64_t>(across.begin), static_cast<uint64_t>(across.end)};
  }
  return json;
}

bool IsSize(const Json& value) {
  return value.is_number_unsigned() && value.get<uint64_t>() < uint64_t{1} << 62;
}

/// [begin, end), not empty; none when it is something else.
std::optional<Shard::Range> RangeOf(const Json& range) {
  if (!range.is_array() || range.size() != 2 || !IsSize(range[0]) || !IsSize(range[1])) {
    return std::nullopt;
  }
  const Shard::Range found{range[0].get<int64_t>(), range[1].get<int64_t>()};
  if (found.size() <= 0) return std::nullopt;
  return found;
}

/// The shard of a tensor of these sizes, all of it where there are no ranges; none when something
/// is wrong.
std::optional<Shard> ShardOf(const Json& place, const Shape& whole) {
  if (!place.contains(kRangesKey)) return Shard();
  if (!place.contains(kAxisKey) || !IsSize(place[kAxisKey]) || !place[kRangesKey].is_array()) {
    return std::nullopt;
  }
  const auto axis = place[kAxisKey].get<uint64_t>();
  if (axis > 1 || axis >= static_cast<uint64_t>(whole.rank)) return std::nullopt;
  // Columns are those of matrices.
  if (axis == 1 && whole.rank != 2) return std::nullopt;
  Shard shard{static_cast<int>(axis), whole.dims[axis], {}};
  int64_t end = 0;
  for (const Json& range : place[kRangesKey]) {
    const std::optional<Shard::Range> rows = RangeOf(range);
    if (!rows || rows->begin < end) return std::nullopt;
    end = rows->end;
    shard.ranges.push_back(*rows);
  }
  if (shard.whole() || end > shard.extent) return std::nullopt;
  if (!place.contains(kColumnsKey)) return shard;
  const std::optional<Shard::Range> columns = RangeOf(place[kColumnsKey]);
  if (!columns || axis != 0 || whole.rank != 2 || columns->end > whole.dims[1]) {
    return std::nullopt;
  }
  shard.across = *columns;
  shard.across_extent = whole.dims[1];
  return shard;
}

/// The sizes that `place` gives its tensor; none when something is wrong.
std::optional<std::vector<uint64_t>> WholeOf(const Json& place) {
  if (!place.is_object() || !place.contains(kShapeKey) || !place[kShapeKey].is_array() ||
      place[kShapeKey].size() > static_cast<size_t>(kMaxRank)) {
    return std::nullopt;
  }
  std::vector<uint64_t> whole;
  uint64_t left = uint64_t{1} << 62;
  for (const Json& size : place[kShapeKey]) {
    if (!IsSize(size) || size.get<uint64_t>() == 0) return std::nullopt;
    whole.push_back(size.get<uint64_t>());
    left /= whole.back();
  }
  if (left == 0) return std::nullopt;
  return whole;
}

Result<Json> PartsOf(const SafetensorsFile& file, const std::string& path) {
  const auto it = file.metadata().find(kPartsKey);
  if (it == file.metadata().end()) return Json::object();
  Result<Json> parts = ParseJson(it->second);
  if (!parts.ok() || !parts->is_object()) {
    return CorruptError(path + " does not say which parts of tensors it holds");
  }
  return parts;
}

Result<StoredPlace> PlaceOf(const SafetensorsView& tensor, const Json& parts,
                            const std::string& path) {
  const auto elements = static_cast<int64_t>(tensor.bytes.size() * 8 /
                                             static_cast<size_t>(SafetensorsTypeBits(tensor.type)));
  const auto it = parts.find(tensor.name);
  if (it == parts.end()) return StoredPlace{tensor.shape, {{0, 0, elements}}};
  const Status unsound = CorruptError(path + ": '" + tensor.name + "' is no part of a tensor");
  const std::optional<std::vector<uint64_t>> whole = WholeOf(*it);
  if (!whole) return unsound;
  NamedTensor::Place place;
  for (uint64_t size : *whole) place.whole.dims[place.whole.rank++] = static_cast<int64_t>(size);
  const std::optional<Shard> shard = ShardOf(*it, place.whole);
  if (!shard) return unsound;
  place.shard = *shard;
  const Shape own = place.ShardShape();
  if (!it->contains(kFirstKey)) {
    if (place.shard.whole() || SizesOf(own) != tensor.shape) return unsound;
  } else {
    if (!IsSize((*it)[kFirstKey]) || tensor.shape.size() != 1 || elements > own.Elements()) {
      return unsound;
    }
    place.first = (*it)[kFirstKey].get<int64_t>();
    if (place.first > own.Elements() - elements) return unsound;
  }
  return StoredPlace{*whole, RunsOf(place, elements)};
}

void Widen(std::span<const std::byte> bytes, float* to) {
  for (size_t i = 0; i < bytes.size() / sizeof(BFloat16); ++i) {
    BFloat16 value;
    std::memcpy(&value, bytes.data() + i * sizeof(value), sizeof(value));
    to[i] = ToFloat(value);
  }
}

/// Hands what is in a file to `sink`, piece by piece.
Status ReadStored(const NamedTensor& tensor, const ByteSink& sink) {
  constexpr int64_t kPieceElements = int64_t{1} << 20;
  const int64_t elements = tensor.view.shape.Elements();
  const size_t size = DTypeSize(tensor.view.dtype);
  std::vector<std::byte> piece;
  for (int64_t first = 0; first < elements; first += kPieceElements) {
    piece.resize(static_cast<size_t>(std::min(kPieceElements, elements - first)) * size);
    WEFT_RETURN_IF_ERROR(tensor.stored->Read(first, piece));
    WEFT_RETURN_IF_ERROR(sink(piece));
  }
  return OkStatus();
}

/// Copies what the stored tensor has of the target, both of the same tensor.
Status Fill(const Stream& stream, const SafetensorsView& tensor, const StoredPlace& stored,
            Target& target) {
  const int64_t size = SafetensorsTypeBits(tensor.type) / 8;
  const auto copy = [&](int64_t from, int64_t to, int64_t count) -> Status {
    if (count > target.missing) {
      return InvalidError("the checkpoint holds '" + tensor.name + "' more than once");
    }
    target.missing -= count;
    const auto bytes =
        tensor.bytes.subspan(static_cast<size_t>(from * size), static_cast<size_t>(count * size));
    if (target.stored != nullptr) return target.stored->Write(to, bytes);
    char* data = static_cast<char*>(target.view.data) +
                 static_cast<size_t>(to) * DTypeSize(target.view.dtype);
    const TensorView view(data, target.view.dtype, {count}, target.view.device);
    if (tensor.type == TypeOf(view.dtype)) return Upload(stream, bytes.data(), view);
    return FillOnHost(stream, view,
                      [&](const TensorView& host) { Widen(bytes, host.As<float>()); });
  };
  for (size_t s = 0, t = 0; s < stored.runs.size() && t < target.runs.size();) {
    const Run &from = stored.runs[s], &to = target.runs[t];
    const int64_t begin = std::max(from.logical, to.logical);
    const int64_t from_end = from.logical + from.count, to_end = to.logical + to.count;
    const int64_t count = std::min(from_end, to_end) - begin;
    if (count > 0) {
      WEFT_RETURN_IF_ERROR(
          copy(from.part + begin - from.logical, to.part + begin - to.logical, count));
    }
    ++(from_end < to_end ? s : t);
  }
  return OkStatus();
}

}  // namespace

Result<CheckpointFile> WriteTensorFile(Env& env, const std::string& folder, int64_t rank,
                                       int64_t world_size,
                                       const std::vector<NamedTensor>& tensors) {
  char name[64];
  std::snprintf(name, sizeof(name), "state-%05lld-of-%05lld.safetensors",
                static_cast<long long>(rank), static_cast<long long>(world_size));
  std::vector<SafetensorsTensor> contents;
  Json parts = Json::object();
  for (const NamedTensor& tensor : tensors) {
    WEFT_CHECK(tensor.view.Contiguous(), tensor.name);
    if (tensor.part) {
      if (tensor.view.shape.Elements() == 0) continue;
      parts[tensor.name] = JsonOf(*tensor.part, tensor.view.shape);
    }
    SafetensorsTensor written = {
        tensor.name, TypeOf(tensor.view.dtype), SizesOf(tensor.view.shape), {}, {}};
    written.produce = [&tensor](const ByteSink& sink) -> Status {
      WEFT_RETURN_IF_ERROR(Failpoint("checkpoint.during_write"));
      if (tensor.stored != nullptr) return ReadStored(tensor, sink);
      return sink({static_cast<const std::byte*>(tensor.view.data), tensor.view.Bytes()});
    };
    contents.push_back(std::move(written));
  }
  SafetensorsMetadata metadata;
  if (!parts.empty()) metadata[kPartsKey] = parts.dump();
  WEFT_ASSIGN_OR_RETURN(
      SafetensorsWritten written,
      WriteSafetensors(env, JoinPath(folder, name), std::move(contents), metadata));
  return CheckpointFile{name, rank, static_cast<int64_t>(written.bytes), written.hash};
}

struct StoredTensors::File {
  std::string path;
  SafetensorsFile tensors;
  Json parts;  ///< See PartsOf.
};

Result<StoredTensors> StoredTensors::Open(Env& env, const std::string& folder,
                                          const CheckpointManifest& manifest) {
  auto files = std::make_shared<std::vector<File>>();
  for (const CheckpointFile& file : manifest.files) {
    const std::string path = JoinPath(folder, file.name);
    WEFT_ASSIGN_OR_RETURN(SafetensorsFile tensors, SafetensorsFile::Open(env, path));
    WEFT_ASSIGN_OR_RETURN(Json parts, PartsOf(tensors, path));
    files->push_back(File{path, std::move(tensors), std::move(parts)});
  }
  return StoredTensors(folder, std::move(files));
}

bool StoredTensors::Has(const std::string& name) const {
  return std::any_of(files_->begin(), files_->end(),
                     [&](const File& file) { return file.tensors.Find(name) != nullptr; });
}

Status StoredTensors::Load(const std::vector<NamedTensor>& targets, ExtraTensors extra,
                           const Stream& stream) const {
  std::map<std::string, Target> wanted;
  for (const NamedTensor& target : targets) {
    WEFT_CHECK(target.view.Contiguous(), target.name);
    const Shape& shape = target.view.shape;
    const NamedTensor::Place place = target.part.value_or(NamedTensor::Place{.whole = shape});
    wanted[target.name] = {target.view, target.stored.get(), SizesOf(place.whole),
                           RunsOf(place, shape.Elements()), shape.Elements()};
  }
  for (const File& file : *files_) {
    for (const SafetensorsView& tensor : file.tensors.tensors()) {
      auto it = wanted.find(tensor.name);
      if (it == wanted.end()) {
        if (extra == ExtraTensors::kIgnore) continue;
        return InvalidError(file.path + " holds '" + tensor.name +
                            "', which this model and optimizer do not have");
      }
      WEFT_ASSIGN_OR_RETURN(const StoredPlace stored, PlaceOf(tensor, file.parts, file.path));
      Target& target = it->second;
      const DType dtype = target.view.dtype;
      const bool widens = extra == ExtraTensors::kIgnore && dtype == DType::kF32 &&
                          tensor.type == SafetensorsType::kBF16 && target.stored == nullptr;
      const std::vector<uint64_t>& shape = target.whole;
      if ((tensor.type != TypeOf(dtype) && !widens) || stored.whole != shape) {
        return InvalidError(file.path + ": '" + tensor.name + "' is " +
                            DescribeTensor(tensor.type, stored.whole) + ", the model wants " +
                            DescribeTensor(TypeOf(dtype), shape) +
                            "; hint: resume with the job's own model section, or start a new job");
      }
      WEFT_RETURN_IF_ERROR(Fill(stream, tensor, stored, target));
    }
  }
  for (const auto& [name, target] : wanted) {
    if (target.missing == 0) continue;
    return InvalidError(
        "the checkpoint in " + folder_ + " has no tensor '" + name + "'" +
        (target.missing == target.view.shape.Elements() ? "" : ", or not all of it"));
  }
  return OkStatus();
}

Status LoadTensors(Env& env, const std::string& folder, const CheckpointManifest& manifest,
                   const std::vector<NamedTensor>& targets, ExtraTensors extra,
                   const Stream& stream) {
  WEFT_ASSIGN_OR_RETURN(const StoredTensors stored, StoredTensors::Open(env, folder, manifest));
  return stored.Load(targets, extra, stream);
}

}  // namespace weft::engine
