#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kernels/optimizer/optimizer.h"
#include "worker/engine/nn/parameter_part.h"
#include "worker/engine/optim/optimizer.h"
#include "worker/engine/optim/parameter_rules.h"
#include "worker/engine/tensor/tensor.h"
#include "worker/engine/tensor/tile_file.h"

namespace weft::engine {

/// AdamW whose moments are in a file (Rajbhandari et al. 2021, "ZeRO-Infinity", arXiv
/// 2104.07857). They pass through three buffers, tile by tile: while one tile is updated the next
/// one is read and the one before is written. The bits are those of the fused rule.
class DiskAdamW : public Optimizer {
 public:
  /// `context`: of the host memory pool, which has a directory.
  static Result<std::unique_ptr<Optimizer>> New(Context& context, const OptimizerSpec& spec,
                                                const ParameterSet& parameters,
                                                const std::vector<ParameterRule>& rules,
                                                std::span<const ParameterPart> parts,
                                                AsyncFile::Queue queue = AsyncFile::Queue::kBest);

  /// kCorrupt when the file is not what was written to it.
  Status Update(Context& context, const UpdateArgs& args) override;

  /// The moments stay in the file, and pass through the buffers as they are read and written.
  std::vector<NamedTensor> StateTensors() const override;

  AsyncFile& file() { return file_->file(); }

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
    int64_t unit = 0;      ///< Of all, where values are in a file, too.
  };
  struct Entry {
    ParameterPart of;
    std::optional<NamedTensor::Place> part;  ///< None: all of the parameter.
    size_t first_tile = 0;
    std::array<std::shared_ptr<StoredNumbers>, 2> moments;
  };
  class Moment;

  DiskAdamW(const OptimizerSpec& spec, const ParameterSet& parameters)
      : spec_(spec), parameters_(parameters) {}

  void CutTiles();
  Status Allocate(Context& context, AsyncFile::Queue queue);
  Status UpdateTile(Context& context, const UpdateArgs& args, size_t tile);
  Status RunTiles(Context& context, const UpdateArgs& args);
  Status StartRead(size_t tile) { return file_->StartRead(tile, Buffer(tile)); }
  Status StartWrite(size_t tile) { return file_->StartWrite(tile, Buffer(tile)); }
  /// Waits for the file, and accounts the time to the tier where the rank waits.
  Status FinishRead(Context& context, size_t tile);
  Status FinishWrite(Context& context, size_t tile);
  float* Buffer(size_t tile) const {
    return static_cast<float*>(buffers_[tile % kBuffers].view().data);
  }

  OptimizerSpec spec_;
  const ParameterSet& parameters_;
  std::vector<kernels::UpdateTensor> tensors_;  ///< Without state.
  std::vector<Entry> entries_;                  ///< By tensor.
  std::vector<Tile> tiles_;
  std::vector<Tensor> buffers_;       ///< Between updates the first one is the file's cache.
  const float* gradients_ = nullptr;  ///< The buffer that those of tensors_ are in.
  bool overlapped_ = false;           ///< UpdateArgs of the last update.
  std::unique_ptr<TileFile> file_;
};

}  // namespace weft::engine
