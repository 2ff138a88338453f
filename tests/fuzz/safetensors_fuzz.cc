// A safetensors file: what opens has tensors that lie inside it and agree with their shapes.
#include <functional>
#include <numeric>

#include "common/formats/safetensors.h"
#include "tests/fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weft;
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
  const Result<SafetensorsFile> file = SafetensorsFile::Parse(bytes, "input");
  if (!file.ok()) return 0;
  unsigned sum = 0;
  for (const SafetensorsView& tensor : file->tensors()) {
    WEFT_FUZZ_EXPECT(file->Find(tensor.name) == &tensor);
    const uint64_t elements =
        std::accumulate(tensor.shape.begin(), tensor.shape.end(), uint64_t{1}, std::multiplies<>());
    const auto bits = static_cast<uint64_t>(SafetensorsTypeBits(tensor.type));
    WEFT_FUZZ_EXPECT(elements * bits == tensor.bytes.size() * 8);
    for (const std::byte byte : tensor.bytes) sum += static_cast<unsigned>(byte);
  }
  // So that the reads stay.
  WEFT_FUZZ_EXPECT(sum <= 255u * size);
  return 0;
}
