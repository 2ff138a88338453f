#include <zlib.h>

#include <cstring>
#include <string>

#include "common/formats/git_lfs.h"
#include "common/formats/image.h"

namespace weft {
namespace {

constexpr uint64_t kMaxBytes = uint64_t{16} << 30;
constexpr size_t kBlockBytes = size_t{1} << 20;

Result<std::vector<uint8_t>> Unzip(std::span<const std::byte> bytes) {
  z_stream stream;
  std::memset(&stream, 0, sizeof(stream));
  if (inflateInit2(&stream, 16 + MAX_WBITS) != Z_OK) return InternalError("zlib does not start");
  std::vector<uint8_t> out;
  int state = Z_OK;
  size_t at = 0;
  while (state == Z_OK && out.size() < kMaxBytes) {
    if (stream.avail_in == 0) {
      const size_t part = std::min(bytes.size() - at, size_t{1} << 30);
      if (part == 0) break;
      // The library does not write here, its interface is older than const.
      stream.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(bytes.data() + at));
      stream.avail_in = static_cast<uInt>(part);
      at += part;
    }
    const size_t filled = out.size();
    out.resize(filled + kBlockBytes);
    stream.next_out = out.data() + filled;
    stream.avail_out = static_cast<uInt>(kBlockBytes);
    state = inflate(&stream, Z_NO_FLUSH);
    out.resize(out.size() - stream.avail_out);
  }
  inflateEnd(&stream);
  if (state != Z_STREAM_END) return InvalidError("the gzip file is damaged or cut short");
  return out;
}

}  // namespace

Result<IdxFile> ReadIdx(std::span<const std::byte> bytes) {
  WEFT_RETURN_IF_ERROR(CheckNotGitLfsPointer(bytes, "the IDX file"));
  std::vector<uint8_t> unzipped;
  if (bytes.size() >= 2 && bytes[0] == std::byte{0x1f} && bytes[1] == std::byte{0x8b}) {
    WEFT_ASSIGN_OR_RETURN(unzipped, Unzip(bytes));
    bytes = std::as_bytes(std::span(unzipped));
  }
  auto at = [&](size_t i) { return std::to_integer<uint32_t>(bytes[i]); };
  if (bytes.size() < 4 || at(0) != 0 || at(1) != 0 || at(2) != 8 || at(3) < 1 || at(3) > 4) {
    return InvalidError("it is no IDX file of unsigned bytes");
  }
  const size_t header = 4 + 4 * at(3);
  if (bytes.size() < header) return InvalidError("the IDX file is cut short");
  IdxFile file;
  uint64_t count = 1;
  for (size_t i = 4; i < header; i += 4) {
    const uint64_t size = at(i) << 24 | at(i + 1) << 16 | at(i + 2) << 8 | at(i + 3);
    file.shape.push_back(static_cast<int64_t>(size));
    if (size > 0 && count > kMaxBytes / size) return InvalidError("the IDX file is too large");
    count *= size;
  }
  if (bytes.size() - header != count) {
    return InvalidError("the IDX file has " + std::to_string(bytes.size() - header) +
                        " values, its header says " + std::to_string(count));
  }
  const auto* values = reinterpret_cast<const uint8_t*>(bytes.data()) + header;
  file.values.assign(values, values + count);
  return file;
}

}  // namespace weft
