#include "common/formats/image.h"

#include <png.h>

#include <algorithm>
#include <cmath>
#include <csetjmp>
#include <cstdio>
#include <cstring>

#include <jpeglib.h>
// After jpeglib.h.
#include <jerror.h>

#include "common/formats/git_lfs.h"

namespace weft {
namespace {

constexpr int64_t kMaxPixels = int64_t{1} << 26;

Status TooLarge(int64_t width, int64_t height) {
  return InvalidError("the image has " + std::to_string(width) + " x " + std::to_string(height) +
                      " pixels; at most " + std::to_string(kMaxPixels) + " are read");
}

Result<Image> DecodePng(std::span<const std::byte> bytes, int64_t channels) {
  png_image png;
  std::memset(&png, 0, sizeof(png));
  png.version = PNG_IMAGE_VERSION;
  auto failure = [&] {
    Status status = InvalidError(std::string("the PNG cannot be read: ") + png.message);
    png_image_free(&png);
    return status;
  };
  if (png_image_begin_read_from_memory(&png, bytes.data(), bytes.size()) == 0) return failure();
  Image image{png.height, png.width, channels, {}};
  if (image.width * image.height > kMaxPixels) {
    png_image_free(&png);
    return TooLarge(image.width, image.height);
  }
  // Otherwise the library takes 16 bits as linear, unlike 8.
  png.flags |= PNG_IMAGE_FLAG_16BIT_sRGB;
  png.format = channels == 1 ? PNG_FORMAT_GRAY : PNG_FORMAT_RGB;
  image.pixels.resize(static_cast<size_t>(image.height * image.width * channels));
  const png_color black = {0, 0, 0};
  if (png_image_finish_read(&png, &black, image.pixels.data(), 0, nullptr) == 0) return failure();
  return image;
}

struct JpegErrors {
  jpeg_error_mgr manager;
  std::jmp_buf jump;
  char message[JMSG_LENGTH_MAX];
};

void OnJpegError(j_common_ptr info) {
  auto* errors = reinterpret_cast<JpegErrors*>(info->err);
  info->err->format_message(info, errors->message);
  std::longjmp(errors->jump, 1);  // NOLINT: the library's way out, over frames of C only
}

// A file that is cut short is read with a warning only; other warnings are harmless.
void OnJpegMessage(j_common_ptr info, int level) {
  const int code = info->err->msg_code;
  if (level < 0 && (code == JWRN_JPEG_EOF || code == JWRN_HIT_MARKER)) OnJpegError(info);
}

/// Reads the header into `info`, or with `rows` all pixels. False after an error. Nothing here has
/// a destructor: the library leaves by longjmp.
bool ReadJpeg(jpeg_decompress_struct& info, JpegErrors& errors, std::span<const std::byte> bytes,
              J_COLOR_SPACE colors, int64_t max_pixels, uint8_t* rows) {
  if (setjmp(errors.jump) != 0) return false;  // NOLINT: see OnJpegError
  jpeg_create_decompress(&info);
  jpeg_mem_src(&info, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
  jpeg_read_header(&info, TRUE);
  if (rows == nullptr) return true;
  info.out_color_space = colors;
  if (static_cast<int64_t>(info.image_width) * info.image_height > max_pixels) return false;
  jpeg_start_decompress(&info);
  while (info.output_scanline < info.output_height) {
    JSAMPROW row = rows + static_cast<size_t>(info.output_scanline) * info.output_width *
                              static_cast<size_t>(info.output_components);
    jpeg_read_scanlines(&info, &row, 1);
  }
  jpeg_finish_decompress(&info);
  return true;
}

Result<Image> DecodeJpeg(std::span<const std::byte> bytes, int64_t channels) {
  jpeg_decompress_struct info;
  JpegErrors errors;
  auto prepare = [&] {
    std::memset(&info, 0, sizeof(info));
    std::memset(&errors, 0, sizeof(errors));
    info.err = jpeg_std_error(&errors.manager);
    errors.manager.error_exit = OnJpegError;
    errors.manager.emit_message = OnJpegMessage;
  };
  const J_COLOR_SPACE colors = channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
  prepare();
  bool good = ReadJpeg(info, errors, bytes, colors, kMaxPixels, nullptr);
  Image image{info.image_height, info.image_width, channels, {}};
  jpeg_destroy_decompress(&info);
  if (good && image.width * image.height > kMaxPixels) return TooLarge(image.width, image.height);
  if (good) {
    image.pixels.resize(static_cast<size_t>(image.height * image.width * channels));
    prepare();
    good = ReadJpeg(info, errors, bytes, colors, kMaxPixels, image.pixels.data());
    jpeg_destroy_decompress(&info);
  }
  if (!good) return InvalidError(std::string("the JPEG cannot be read: ") + errors.message);
  return image;
}

/// What of a line of pixels goes into each pixel of a line of another length.
struct Window {
  int64_t first = 0;
  std::vector<double> weights;
};

std::vector<Window> Windows(int64_t from, int64_t to) {
  const double scale = static_cast<double>(from) / static_cast<double>(to);
  const double support = std::max(scale, 1.0);
  std::vector<Window> windows;
  for (int64_t i = 0; i < to; ++i) {
    const double center = (static_cast<double>(i) + 0.5) * scale;
    const auto first = std::max<int64_t>(0, std::llround(center - support));
    const auto end = std::min<int64_t>(from, std::llround(center + support));
    Window window{first, {}};
    double sum = 0;
    for (int64_t at = first; at < end; ++at) {
      const double distance = std::abs((static_cast<double>(at) + 0.5 - center) / support);
      window.weights.push_back(std::max(0.0, 1.0 - distance));
      sum += window.weights.back();
    }
    for (double& weight : window.weights) weight /= sum;
    windows.push_back(std::move(window));
  }
  return windows;
}

}  // namespace

Result<Image> DecodeImage(std::span<const std::byte> bytes, int64_t channels) {
  if (channels != 1 && channels != 3) {
    return InvalidError("images are read in 1 or 3 colours, not " + std::to_string(channels) +
                        ". hint: set model.image_channels");
  }
  auto begins = [&](std::string_view magic) {
    return bytes.size() >= magic.size() &&
           std::memcmp(bytes.data(), magic.data(), magic.size()) == 0;
  };
  if (begins("\x89PNG\r\n\x1a\n")) return DecodePng(bytes, channels);
  if (begins("\xff\xd8\xff")) return DecodeJpeg(bytes, channels);
  WEFT_RETURN_IF_ERROR(CheckNotGitLfsPointer(bytes, "the image"));
  return InvalidError("it is neither PNG nor JPEG");
}

Image ResizeSquare(const Image& image, int64_t size) {
  const int64_t side = std::min(image.height, image.width);
  const int64_t top = (image.height - side) / 2;
  const int64_t left = (image.width - side) / 2;
  const int64_t channels = image.channels;
  const std::vector<Window> windows = Windows(side, size);
  auto rounded = [](double value) { return static_cast<uint8_t>(std::lround(value)); };
  // Columns first, then rows.
  std::vector<uint8_t> narrow(static_cast<size_t>(side * size * channels));
  for (int64_t y = 0; y < side; ++y) {
    const uint8_t* line = image.pixels.data() + ((top + y) * image.width + left) * channels;
    for (int64_t x = 0; x < size; ++x) {
      const Window& window = windows[static_cast<size_t>(x)];
      for (int64_t c = 0; c < channels; ++c) {
        double sum = 0;
        for (size_t i = 0; i < window.weights.size(); ++i) {
          sum += window.weights[i] * line[(window.first + static_cast<int64_t>(i)) * channels + c];
        }
        narrow[static_cast<size_t>((y * size + x) * channels + c)] = rounded(sum);
      }
    }
  }
  Image out{size, size, channels, {}};
  out.pixels.resize(static_cast<size_t>(size * size * channels));
  for (int64_t y = 0; y < size; ++y) {
    const Window& window = windows[static_cast<size_t>(y)];
    for (int64_t i = 0; i < size * channels; ++i) {
      double sum = 0;
      for (size_t k = 0; k < window.weights.size(); ++k) {
        sum += window.weights[k] *
               narrow[static_cast<size_t>(
                   (window.first + static_cast<int64_t>(k)) * size * channels + i)];
      }
      out.pixels[static_cast<size_t>(y * size * channels + i)] = rounded(sum);
    }
  }
  return out;
}

bool IsImageName(std::string name) {
  for (char& c : name) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return name.ends_with(".png") || name.ends_with(".jpg") || name.ends_with(".jpeg");
}

Status NoImagesError(const std::string& folder) {
  return InvalidError(folder +
                      " holds no images. hint: a folder for each class with .png or .jpg files");
}

}  // namespace weft
