#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "common/formats/git_lfs.h"
#include "common/formats/image.h"

namespace weft {
namespace {

constexpr uint64_t kMaxBytes = uint64_t{16} << 30;  // of values
constexpr size_t kBlockBytes = size_t{1} << 20;
constexpr size_t kMostDimensions = 4;
constexpr size_t kMostHeaderBytes = 4 + 4 * kMostDimensions;

bool IsZipped(std::span<const std::byte> bytes) {
  return bytes.size() >= 2 && bytes[0] == std::byte{0x1f} && bytes[1] == std::byte{0x8b};
}

/// The first `limit` bytes of what is compressed, or all of it where that is less.
Result<std::vector<uint8_t>> Unzip(std::span<const std::byte> bytes, uint64_t limit) {
  z_stream stream;
  std::memset(&stream, 0, sizeof(stream));
  if (inflateInit2(&stream, 16 + MAX_WBITS) != Z_OK) return InternalError("zlib does not start");
  std::vector<uint8_t> out;
  int state = Z_OK;
  size_t at = 0;
  while (state == Z_OK && out.size() < limit) {
    if (stream.avail_in == 0) {
      const size_t part = std::min(bytes.size() - at, size_t{1} << 30);
      if (part == 0) break;
      // The library does not write here, its interface is older than const.
      stream.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(bytes.data() + at));
      stream.avail_in = static_cast<uInt>(part);
      at += part;
    }
    const size_t filled = out.size();
    const size_t block = std::min<uint64_t>(kBlockBytes, limit - filled);
    out.resize(filled + block);
    stream.next_out = out.data() + filled;
    stream.avail_out = static_cast<uInt>(block);
    state = inflate(&stream, Z_NO_FLUSH);
    out.resize(out.size() - stream.avail_out);
  }
  inflateEnd(&stream);
  if (state != Z_STREAM_END && out.size() < limit) {
    return InvalidError("the gzip file is damaged or cut short");
  }
  return out;
}

struct Header {
  std::vector<int64_t> shape;
  size_t bytes = 0;
  uint64_t values = 1;
};

Result<Header> ReadHeader(std::span<const std::byte> bytes) {
  auto at = [&](size_t i) { return std::to_integer<uint32_t>(bytes[i]); };
  if (bytes.size() < 4 || at(0) != 0 || at(1) != 0 || at(2) != 8 || at(3) < 1 ||
      at(3) > kMostDimensions) {
    return InvalidError("it is no IDX file of unsigned bytes");
  }
  Header header;
  header.bytes = 4 + 4 * at(3);
  if (bytes.size() < header.bytes) return InvalidError("the IDX file is cut short");
  for (size_t i = 4; i < header.bytes; i += 4) {
    const uint64_t size = at(i) << 24 | at(i + 1) << 16 | at(i + 2) << 8 | at(i + 3);
    header.shape.push_back(static_cast<int64_t>(size));
    if (size > 0 && header.values > kMaxBytes / size) {
      return InvalidError("the IDX file is too large");
    }
    header.values *= size;
  }
  return header;
}

Status CheckLength(const Header& header, uint64_t file_bytes) {
  if (file_bytes - header.bytes == header.values) return OkStatus();
  return InvalidError("the IDX file has " + std::to_string(file_bytes - header.bytes) +
                      " values, its header says " + std::to_string(header.values));
}

}  // namespace

Result<IdxFile> ReadIdx(std::span<const std::byte> bytes) {
  WEFT_RETURN_IF_ERROR(CheckNotGitLfsPointer(bytes, "the IDX file"));
  std::vector<uint8_t> unzipped;
  if (IsZipped(bytes)) {
    WEFT_ASSIGN_OR_RETURN(unzipped, Unzip(bytes, kMaxBytes + kMostHeaderBytes));
    bytes = std::as_bytes(std::span(unzipped));
  }
  WEFT_ASSIGN_OR_RETURN(Header header, ReadHeader(bytes));
  WEFT_RETURN_IF_ERROR(CheckLength(header, bytes.size()));
  IdxFile file;
  file.shape = std::move(header.shape);
  const auto* values = reinterpret_cast<const uint8_t*>(bytes.data()) + header.bytes;
  file.values.assign(values, values + header.values);
  return file;
}

Result<std::vector<int64_t>> ReadIdxShape(std::span<const std::byte> bytes) {
  if (IsZipped(bytes)) {
    WEFT_ASSIGN_OR_RETURN(const std::vector<uint8_t> begin, Unzip(bytes, kMostHeaderBytes));
    WEFT_ASSIGN_OR_RETURN(Header header, ReadHeader(std::as_bytes(std::span(begin))));
    return std::move(header.shape);
  }
  WEFT_ASSIGN_OR_RETURN(Header header, ReadHeader(bytes));
  WEFT_RETURN_IF_ERROR(CheckLength(header, bytes.size()));
  return std::move(header.shape);
}

Result<std::string> IdxLabelsPath(const std::string& path) {
  const std::string images = BaseName(path);
  std::string labels = images;
  auto replace = [&](const std::string& from, const std::string& to) {
    if (size_t at = labels.find(from); at != std::string::npos) labels.replace(at, from.size(), to);
  };
  replace("images", "labels");
  replace("idx3", "idx1");
  if (labels == images) {
    return InvalidError(path + " is not named like images-idx3-ubyte, so its labels are not found");
  }
  return JoinPath(DirName(path), labels);
}

Status CheckIdxPair(const std::string& path, const std::vector<int64_t>& images,
                    const std::vector<int64_t>& labels) {
  if (images.size() == 3 && labels.size() == 1 && images[0] == labels[0] && images[1] > 0 &&
      images[2] > 0) {
    return OkStatus();
  }
  auto text = [](const std::vector<int64_t>& shape) {
    std::string list;
    for (const int64_t extent : shape) list += (list.empty() ? "" : ", ") + std::to_string(extent);
    return "[" + list + "]";
  };
  return InvalidError(path + " and its labels are " + text(images) + " and " + text(labels) +
                      ", not [images, height, width] and [images]");
}

}  // namespace weft
