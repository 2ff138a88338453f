#include "worker/engine/data/image_loader.h"

#include <algorithm>
#include <string>
#include <utility>

namespace weft::engine {
namespace {

int64_t Bytes(const ImageLoaderOptions& options) {
  return options.size * options.size * options.channels;
}

}  // namespace

int64_t ImageTokens(const ModelSpec& model) {
  const int64_t side = model.image_size / model.patch_size;
  return side * side + 1;
}

ImageLoaderOptions ImageOptions(const JobSpec& job, bool shuffle) {
  return {.size = job.model.image_size,
          .channels = job.model.image_channels,
          .length = ImageTokens(job.model),
          .global_batch = job.train.global_batch,
          .seed = static_cast<uint64_t>(job.train.seed),
          .shuffle = shuffle,
          .mean = job.data.pixel_mean,
          .deviation = job.data.pixel_deviation};
}

ImageLoader::ImageLoader(TokenSpan span, const ImageLoaderOptions& options, int64_t sequences)
    : span_(std::move(span)),
      options_(options),
      sequences_(sequences),
      first_document_(span_.first / static_cast<uint64_t>(Bytes(options))),
      order_(static_cast<uint64_t>(sequences), options.seed, options.shuffle) {
  for (size_t value = 0; value < scaled_.size(); ++value) {
    scaled_[value] =
        static_cast<float>((static_cast<double>(value) / 255 - options.mean) / options.deviation);
  }
}

Result<std::unique_ptr<ImageLoader>> ImageLoader::Create(TokenSpan span,
                                                         const ImageLoaderOptions& options) {
  WEFT_CHECK(options.size > 0 && options.channels > 0 && options.global_batch > 0,
             "sizes must be positive");
  const auto each = static_cast<uint64_t>(Bytes(options));
  if (span.count == 0) return InvalidError("there are no images");
  if (span.count % each != 0 || span.first % each != 0) {
    return InvalidError("the images are not of " + std::to_string(options.size) + " x " +
                        std::to_string(options.size) + " pixels in " +
                        std::to_string(options.channels) + " colours");
  }
  if (span.labels == nullptr) return InvalidError("the images have no labels");
  const auto sequences = static_cast<int64_t>(span.count / each);
  return std::unique_ptr<ImageLoader>(new ImageLoader(std::move(span), options, sequences));
}

void ImageLoader::AppendPixels(uint64_t image, Batch& batch) const {
  const auto each = static_cast<size_t>(Bytes(options_));
  const auto channels = static_cast<size_t>(options_.channels);
  std::vector<int32_t> bytes(each);
  span_.shard->Read(span_.first + image * each, bytes);
  for (size_t channel = 0; channel < channels; ++channel) {
    for (size_t i = channel; i < each; i += channels) {
      batch.pixels.push_back(scaled_[static_cast<size_t>(bytes[i])]);
    }
  }
}

Result<Batch> ImageLoader::Get(int64_t step, int64_t first_sequence, int64_t count) {
  const int64_t bound = options_.shuffle ? options_.global_batch : sequences_;
  WEFT_CHECK(step >= 0 && first_sequence >= 0 && count >= 0 && first_sequence <= bound - count,
             "sequences outside the batch");
  Batch batch;
  batch.sequences = count;
  batch.length = options_.length;
  batch.pixels.reserve(static_cast<size_t>(count * Bytes(options_)));
  const int64_t start = options_.shuffle ? step * options_.global_batch : 0;
  for (int64_t s = 0; s < count; ++s) {
    const uint64_t image = order_.At(static_cast<uint64_t>(start + first_sequence + s)).index;
    AppendPixels(image, batch);
    batch.labels.push_back((*span_.labels)[first_document_ + image]);
    batch.sequence_starts.push_back(static_cast<int32_t>(s * options_.length));
    for (int64_t t = 0; t < options_.length; ++t) {
      batch.positions.push_back(static_cast<int32_t>(t));
    }
  }
  batch.sequence_starts.push_back(static_cast<int32_t>(count * options_.length));
  batch.target_count = count;
  return batch;
}

}  // namespace weft::engine
