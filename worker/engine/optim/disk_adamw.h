#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/optimizer/optimizer.h"
#include "worker/engine/nn/parameter_part.h"
#include "worker/engine/optim/optimizer.h"
#include "worker/engine/optim/parameter_rules.h"
#include "worker/engine/tensor/async_file.h"
#include "worker/engine/tensor/host_tier.h"
#include "worker/engine/tensor/tensor.h"

namespace weft::engine {

/// AdamW whose moments stand in a file (Rajbhandari et al. 2021, "ZeRO-Infinity", arXiv
/// 2104.07857). They pass through three buffers, tile by tile: while one tile is updated the next
/// one is read and the one before is written. Each tile read is checked against the hash of what
/// was written. The bits are those of the fused rule.
class DiskAdamW : public Optimizer {
 public:
  /// `context`: of the host tier, which has a directory.
  ~DiskAdamW() override;
  static Result<std::unique_ptr<Optimizer>> New(Context& context, const OptimizerSpec& spec,
                                                const ParameterSet& parameters,
                                                const std::vector<ParameterRule>& rules,
                                                std::span<const ParameterPart> parts,
                                                AsyncFile::Queue queue = AsyncFile::Queue::kBest);

  /// kCorrupt when the file is not what was written to it.
  Status Update(Context& context, const UpdateArgs& args) override;

  /// The moments stay in the file, and pass through the buffers as they are read and written.
  std::vector<NamedTensor> StateTensors() const override;

  AsyncFile& file() { return *file_; }

 private:
  static constexpr size_t kBuffers = 3;

  /// Successive elements of a parameter, with their moments in a tile.
  struct Piece {
    size_t tensor = 0;
    int64_t first = 0;
    int64_t count = 0;
    int64_t offset = 0;  ///< Of the first moments in the tile, in elements; the second follow.
  };
  struct Tile {
    std::vector<Piece> pieces;
    int64_t elements = 0;  ///< With what fills it up to whole blocks.
    uint64_t offset = 0;   ///< In the file.
    uint64_t hash = 0;     ///< Of what stands there.
    size_t Bytes() const { return static_cast<size_t>(elements) * sizeof(float); }
  };
  struct Entry {
    std::string name;
    Shape shape;
    std::optional<NamedTensor::Place> part;  ///< None: all of the parameter.
    int64_t parameter = 0;
    size_t first_tile = 0;
    std::array<std::shared_ptr<StoredNumbers>, 2> moments;
  };
  class Moment;

  explicit DiskAdamW(const OptimizerSpec& spec) : spec_(spec) {}

  void CutTiles();
  Status Allocate(Context& context, AsyncFile::Queue queue);
  Status StartRead(size_t tile);
  Status FinishRead(size_t tile);
  Status StartWrite(size_t tile);
  Status FinishWrite(size_t tile);
  Status UpdateTile(Context& context, const UpdateArgs& args, size_t tile);
  /// Has a tile in its buffer, between updates.
  Status Load(size_t tile);
  /// Writes what of the tile in this buffer was replaced.
  Status WriteBack(size_t buffer);
  Status RunTiles(Context& context, const UpdateArgs& args);
  float* Buffer(size_t tile) const { return buffers_[tile % kBuffers].As<float>(); }

  OptimizerSpec spec_;
  std::vector<kernels::UpdateTensor> tensors_;  ///< Without state.
  std::vector<Entry> entries_;                  ///< By tensor.
  std::vector<Tile> tiles_;
  std::vector<Tensor> buffers_;
  std::vector<int64_t> pending_;  ///< By tile: number of what is under way, or 0.
  struct Loaded {
    int64_t tile = -1;
    bool replaced = false;  ///< Some of it, since it was read.
  };
  std::array<Loaded, kBuffers> loaded_;  ///< By buffer, between updates.
  const float* gradients_ = nullptr;     ///< The buffer that those of tensors_ are in.
  /// Waits for what was started, on the books of the tier.
  Status WaitForFile(int64_t number);

  FileTier* books_ = nullptr;  ///< Of the tier; none before the file is there.
  int64_t file_bytes_ = 0;
  std::unique_ptr<AsyncFile> file_;
};

}  // namespace weft::engine
