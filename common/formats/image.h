#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/env.h"
#include "common/status.h"

namespace weft {

/// An image of 8-bit colours, [height, width, channels].
struct Image {
  int64_t height = 0;
  int64_t width = 0;
  int64_t channels = 0;
  std::vector<uint8_t> pixels;
};

/// Decodes a PNG or JPEG file in 1 (grey) or 3 (red, green, blue) channels, converting as needed;
/// transparency goes to black. kInvalid when it is neither, damaged, cut short, or larger than 2^26
/// pixels. Any bytes are borne.
Result<Image> DecodeImage(std::span<const std::byte> bytes, int64_t channels);

/// The image's middle square at `size` x `size` pixels, by a triangle filter as wide as a pixel
/// of the coarser grid (what Pillow calls BILINEAR).
Image ResizeSquare(const Image& image, int64_t size);

/// An IDX file (MNIST's form), as it is or compressed by gzip: a big-endian header and bytes.
struct IdxFile {
  std::vector<int64_t> shape;
  std::vector<uint8_t> values;
};

/// Reads an IDX file of unsigned bytes in 1 to 4 dimensions. kInvalid when it is malformed, cut
/// short or longer than its header says, or past 16 GiB.
Result<IdxFile> ReadIdx(std::span<const std::byte> bytes);

/// IdxFile::shape, for which no more than the header is read or decompressed. Errors as ReadIdx,
/// which alone notices that a compressed file is cut short or too long.
Result<std::vector<int64_t>> ReadIdxShape(std::span<const std::byte> bytes);

/// The labels that belong to the images in `path`: X-labels-idx1-ubyte of X-images-idx3-ubyte.
/// kInvalid when it is not named like that.
Result<std::string> IdxLabelsPath(const std::string& path);

/// Whether the file of images in `path` and that of its labels have the shapes of a pair: [images,
/// height, width] and [images]. kInvalid otherwise.
Status CheckIdxPair(const std::string& path, const std::vector<int64_t>& images,
                    const std::vector<int64_t>& labels);

/// Whether a file in a folder of images is one, by its name: .png, .jpg or .jpeg.
bool IsImageName(std::string name);

/// The error for a folder of images that has none.
Status NoImagesError(const std::string& folder);

}  // namespace weft
