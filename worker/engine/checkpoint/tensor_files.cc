#include "worker/engine/checkpoint/tensor_files.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <span>

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

/// Metadata of a file: by name of a part the tensor's sizes and the part's first element.
constexpr char kPartsKey[] = "weft_parts";
constexpr char kShapeKey[] = "shape", kFirstKey[] = "first";

/// Where a stored tensor belongs.
struct StoredPlace {
  std::vector<uint64_t> whole;
  uint64_t first = 0;
};

/// A tensor to fill.
struct Target {
  TensorView view;
  NamedTensor::Place place;
  int64_t missing = 0;  ///< Elements that no file had yet.
};

NamedTensor::Place PlaceOf(const NamedTensor& tensor) {
  return tensor.part.value_or(NamedTensor::Place{tensor.view.shape, 0});
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
  const auto it = parts.find(tensor.name);
  if (it == parts.end()) return StoredPlace{tensor.shape, 0};
  // Its sizes are those of a tensor of this program, or the caller will find that they are not.
  const auto is_size = [](const Json& value) { return value.is_number_unsigned(); };
  StoredPlace place;
  bool sound = it->is_object() && it->contains(kShapeKey) && (*it)[kShapeKey].is_array() &&
               it->contains(kFirstKey) && is_size((*it)[kFirstKey]) && tensor.shape.size() == 1;
  if (sound) {
    uint64_t left = uint64_t{1} << 62;
    for (const Json& size : (*it)[kShapeKey]) {
      sound = sound && is_size(size) && size.get<uint64_t>() > 0;
      if (!sound) break;
      place.whole.push_back(size.get<uint64_t>());
      left /= place.whole.back();
    }
    place.first = (*it)[kFirstKey].get<uint64_t>();
    uint64_t elements = 1;
    if (left == 0) sound = false;
    for (uint64_t size : place.whole) elements *= sound ? size : 1;
    sound = sound && tensor.shape[0] <= elements && place.first <= elements - tensor.shape[0];
  }
  if (!sound) return CorruptError(path + ": '" + tensor.name + "' is no part of a tensor");
  return place;
}

void Widen(std::span<const std::byte> bytes, float* to) {
  for (size_t i = 0; i < bytes.size() / sizeof(BFloat16); ++i) {
    BFloat16 value;
    std::memcpy(&value, bytes.data() + i * sizeof(value), sizeof(value));
    to[i] = ToFloat(value);
  }
}

/// Copies what the stored tensor has of the target, both of the same tensor.
Status Fill(const Stream& stream, const SafetensorsView& tensor, const StoredPlace& stored,
            Target& target) {
  const int64_t size = SafetensorsTypeBits(tensor.type) / 8;
  const auto stored_first = static_cast<int64_t>(stored.first);
  const int64_t stored_end = stored_first + static_cast<int64_t>(tensor.bytes.size()) / size;
  const int64_t target_first = target.place.first;
  const int64_t begin = std::max(stored_first, target_first);
  const int64_t end = std::min(stored_end, target_first + target.view.shape.Elements());
  if (end <= begin) return OkStatus();
  if (end - begin > target.missing) {
    return InvalidError("the checkpoint holds '" + tensor.name + "' more than once");
  }
  target.missing -= end - begin;
  char* data = static_cast<char*>(target.view.data) +
               static_cast<size_t>(begin - target_first) * DTypeSize(target.view.dtype);
  const TensorView to(data, target.view.dtype, {end - begin}, target.view.device);
  const auto from = tensor.bytes.subspan(static_cast<size_t>((begin - stored_first) * size),
                                         static_cast<size_t>((end - begin) * size));
  if (tensor.type == TypeOf(to.dtype)) return Upload(stream, from.data(), to);
  return FillOnHost(stream, to, [&](const TensorView& host) { Widen(from, host.As<float>()); });
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
      parts[tensor.name] = {{kShapeKey, SizesOf(tensor.part->whole)},
                            {kFirstKey, static_cast<uint64_t>(tensor.part->first)}};
    }
    contents.push_back({tensor.name,
                        TypeOf(tensor.view.dtype),
                        SizesOf(tensor.view.shape),
                        {static_cast<const std::byte*>(tensor.view.data), tensor.view.Bytes()},
                        {}});
  }
  SafetensorsMetadata metadata;
  if (!parts.empty()) metadata[kPartsKey] = parts.dump();
  WEFT_ASSIGN_OR_RETURN(
      SafetensorsWritten written,
      WriteSafetensors(env, JoinPath(folder, name), std::move(contents), metadata));
  return CheckpointFile{name, rank, static_cast<int64_t>(written.bytes), written.hash};
}

Status LoadTensors(Env& env, const std::string& folder, const CheckpointManifest& manifest,
                   const std::vector<NamedTensor>& targets, ExtraTensors extra,
                   const Stream& stream) {
  std::map<std::string, Target> wanted;
  for (const NamedTensor& target : targets) {
    WEFT_CHECK(target.view.Contiguous(), target.name);
    wanted[target.name] = {target.view, PlaceOf(target), target.view.shape.Elements()};
  }
  for (const CheckpointFile& file : manifest.files) {
    const std::string path = JoinPath(folder, file.name);
    WEFT_ASSIGN_OR_RETURN(SafetensorsFile tensors, SafetensorsFile::Open(env, path));
    WEFT_ASSIGN_OR_RETURN(const Json parts, PartsOf(tensors, path));
    for (const SafetensorsView& tensor : tensors.tensors()) {
      auto it = wanted.find(tensor.name);
      if (it == wanted.end()) {
        if (extra == ExtraTensors::kIgnore) continue;
        return InvalidError(path + " holds '" + tensor.name +
                            "', which this model and optimizer do not have");
      }
      WEFT_ASSIGN_OR_RETURN(const StoredPlace stored, PlaceOf(tensor, parts, path));
      Target& target = it->second;
      const DType dtype = target.view.dtype;
      const bool widens = extra == ExtraTensors::kIgnore && dtype == DType::kF32 &&
                          tensor.type == SafetensorsType::kBF16;
      const std::vector<uint64_t> shape = SizesOf(target.place.whole);
      if ((tensor.type != TypeOf(dtype) && !widens) || stored.whole != shape) {
        return InvalidError(path + ": '" + tensor.name + "' is " +
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
        "the checkpoint in " + folder + " has no tensor '" + name + "'" +
        (target.missing == target.view.shape.Elements() ? "" : ", or not all of it"));
  }
  return OkStatus();
}

}  // namespace weft::engine
