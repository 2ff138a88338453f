#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/env.h"
#include "common/status.h"

namespace weft {

/// Element types of the safetensors format, in the format's order of alignment (lowest first).
enum class SafetensorsType : uint8_t {
  kBool,
  kF4,
  kF6E2M3,
  kF6E3M2,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kF8E8M0,
  kF8E4M3Fnuz,
  kF8E5M2Fnuz,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kC64,
  kF64,
  kI64,
  kU64,
};

/// The name in files, for example "BF16".
std::string_view SafetensorsTypeName(SafetensorsType type);

/// Bits of one element; less than 8 for the packed types.
int SafetensorsTypeBits(SafetensorsType type);

/// "F32 [2, 3]".
std::string DescribeTensor(SafetensorsType type, const std::vector<uint64_t>& shape);

using SafetensorsMetadata = std::map<std::string, std::string>;

/// One tensor of an open file. Row-major and little-endian. `bytes` may start at any address: copy
/// elements out with memcpy.
struct SafetensorsView {
  std::string name;
  SafetensorsType type = SafetensorsType::kF32;
  std::vector<uint64_t> shape;  ///< Empty for a scalar.
  std::span<const std::byte> bytes;
};

/// A safetensors file, mapped. The whole header is validated on opening: a file that opens has
/// tensors that lie inside it, do not overlap, leave no gap and agree with their shapes. Names come
/// from the file: treat them as data, never as paths. Immutable, so thread-safe. The file must not
/// be truncated while it is open (writers here replace by rename, which is safe).
class SafetensorsFile {
 public:
  /// kCorrupt when the bytes break the format (the message names the rule), kInvalid when they are
  /// a git-lfs pointer, kNotFound and the like when the file cannot be read. As in the reference
  /// implementation `__metadata__` may be null, and unknown keys of an entry are passed over.
  static Result<SafetensorsFile> Open(Env& env, const std::string& path);

  /// Reads a file that is in memory, which outlives the result; `source` names it in errors.
  static Result<SafetensorsFile> Parse(std::span<const std::byte> bytes, const std::string& source);

  /// The tensors in the order of the file.
  const std::vector<SafetensorsView>& tensors() const { return tensors_; }

  /// nullptr when there is none of this name.
  const SafetensorsView* Find(std::string_view name) const;

  /// The `__metadata__` entry; empty when absent.
  const SafetensorsMetadata& metadata() const { return metadata_; }

 private:
  std::unique_ptr<MappedFile> file_;
  std::vector<SafetensorsView> tensors_;
  SafetensorsMetadata metadata_;
  std::map<std::string, size_t, std::less<>> index_;
};

/// Takes the next bytes of a tensor.
using ByteSink = std::function<Status(std::span<const std::byte>)>;

/// A tensor to write: its bytes, or a function that hands them to a sink piece by piece when they
/// are not in memory as the file wants them (transposed, converted).
struct SafetensorsTensor {
  std::string name;
  SafetensorsType type = SafetensorsType::kF32;
  std::vector<uint64_t> shape;
  std::span<const std::byte> bytes;
  std::function<Status(const ByteSink&)> produce;  ///< Used instead of `bytes` when set.
};

/// What was written.
struct SafetensorsWritten {
  uint64_t bytes = 0;  ///< Size of the file.
  std::string hash;    ///< ContentHash of the whole file.
};

/// Writes tensors in the reference order (widest type first, then by name), so that each is
/// naturally aligned, under the metadata `format: pt`, which transformers demands, and `metadata`.
/// Tensor bytes go to the file without a copy. The file appears whole or not at all (temporary
/// name, sync, rename). kInvalid: repeated or illegal names, sizes that do not fit the shapes.
Result<SafetensorsWritten> WriteSafetensors(Env& env, const std::string& path,
                                            std::vector<SafetensorsTensor> tensors,
                                            const SafetensorsMetadata& metadata = {});

}  // namespace weft
