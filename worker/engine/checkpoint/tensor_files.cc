#include "worker/engine/checkpoint/tensor_files.h"

#include <cstdio>
#include <cstring>
#include <map>
#include <span>

#include "common/formats/safetensors.h"
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

void Widen(std::span<const std::byte> bytes, float* to) {
  for (size_t i = 0; i < bytes.size() / sizeof(BFloat16); ++i) {
    BFloat16 value;
    std::memcpy(&value, bytes.data() + i * sizeof(value), sizeof(value));
    to[i] = ToFloat(value);
  }
}

}  // namespace

Result<CheckpointFile> WriteTensorFile(Env& env, const std::string& folder, int64_t rank,
                                       int64_t world_size,
                                       const std::vector<NamedTensor>& tensors) {
  char name[64];
  std::snprintf(name, sizeof(name), "state-%05lld-of-%05lld.safetensors",
                static_cast<long long>(rank), static_cast<long long>(world_size));
  std::vector<SafetensorsTensor> contents;
  for (const NamedTensor& tensor : tensors) {
    WEFT_CHECK(tensor.view.Contiguous(), tensor.name);
    contents.push_back({tensor.name,
                        TypeOf(tensor.view.dtype),
                        SizesOf(tensor.view.shape),
                        {static_cast<const std::byte*>(tensor.view.data), tensor.view.Bytes()},
                        {}});
  }
  WEFT_ASSIGN_OR_RETURN(SafetensorsWritten written,
                        WriteSafetensors(env, JoinPath(folder, name), std::move(contents)));
  return CheckpointFile{name, rank, static_cast<int64_t>(written.bytes), written.hash};
}

Status LoadTensors(Env& env, const std::string& folder, const CheckpointManifest& manifest,
                   const std::vector<NamedTensor>& targets, ExtraTensors extra,
                   const Stream& stream) {
  std::map<std::string, TensorView> missing;
  for (const NamedTensor& target : targets) {
    WEFT_CHECK(target.view.Contiguous(), target.name);
    missing[target.name] = target.view;
  }
  for (const CheckpointFile& file : manifest.files) {
    const std::string path = JoinPath(folder, file.name);
    WEFT_ASSIGN_OR_RETURN(SafetensorsFile tensors, SafetensorsFile::Open(env, path));
    for (const SafetensorsView& tensor : tensors.tensors()) {
      auto it = missing.find(tensor.name);
      if (it == missing.end()) {
        if (extra == ExtraTensors::kIgnore) continue;
        return InvalidError(path + " holds '" + tensor.name +
                            "', which this model and optimizer do not have");
      }
      const TensorView& target = it->second;
      const bool widens = extra == ExtraTensors::kIgnore && target.dtype == DType::kF32 &&
                          tensor.type == SafetensorsType::kBF16;
      if ((tensor.type != TypeOf(target.dtype) && !widens) ||
          tensor.shape != SizesOf(target.shape)) {
        return InvalidError(path + ": '" + tensor.name + "' is " +
                            DescribeTensor(tensor.type, tensor.shape) + ", the model wants " +
                            DescribeTensor(TypeOf(target.dtype), SizesOf(target.shape)) +
                            "; hint: resume with the job's own model section, or start a new job");
      }
      if (widens) {
        WEFT_RETURN_IF_ERROR(FillOnHost(stream, target, [&](const TensorView& host) {
          Widen(tensor.bytes, host.As<float>());
        }));
      } else {
        WEFT_RETURN_IF_ERROR(Upload(stream, tensor.bytes.data(), target));
      }
      missing.erase(it);
    }
  }
  if (!missing.empty()) {
    return InvalidError("the checkpoint in " + folder + " has no tensor '" +
                        missing.begin()->first + "'");
  }
  return OkStatus();
}

}  // namespace weft::engine
