#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "common/spec/job_spec.h"
#include "worker/engine/data/batch_source.h"
#include "worker/engine/data/dataset.h"
#include "worker/engine/data/order.h"

namespace weft::engine {

struct ImageLoaderOptions {
  int64_t size = 0;      ///< Side in pixels.
  int64_t channels = 1;  ///< Colours.
  int64_t length = 1;    ///< Batch::length: what the model makes of an image.
  int64_t global_batch = 1;
  uint64_t seed = 0;
  bool shuffle = true;
  double mean = 0;       ///< Subtracted from pixels in 0 to 1,
  double deviation = 1;  ///< which are then divided by this.
};

/// Patches of an image and one token for its class.
int64_t ImageTokens(const ModelSpec& model);

/// Options of a job's training images, or with shuffle false of those for validation.
ImageLoaderOptions ImageOptions(const JobSpec& job, bool shuffle);

/// Labelled images of a span whose documents are the bytes of one each, [size, size, channels].
/// Order as of TokenLoader. Thread-safe.
class ImageLoader : public BatchSource {
 public:
  /// kInvalid when there are no images, or of another size, or no labels.
  static Result<std::unique_ptr<ImageLoader>> Create(TokenSpan span,
                                                     const ImageLoaderOptions& options);

  int64_t Sequences() const override { return sequences_; }
  Result<Batch> Get(int64_t step, int64_t first_sequence, int64_t count) override;

 private:
  ImageLoader(TokenSpan span, const ImageLoaderOptions& options, int64_t sequences);
  void AppendPixels(uint64_t image, Batch& batch) const;

  TokenSpan span_;
  ImageLoaderOptions options_;
  int64_t sequences_;
  uint64_t first_document_;
  SequenceOrder order_;
  std::array<float, 256> scaled_;
};

}  // namespace weft::engine
