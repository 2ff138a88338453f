#include <cstdint>
#include <memory>

#include "worker/engine/techniques/sequence_warmup/sequence_warmup_cost.h"
#include "worker/engine/techniques/technique.h"

namespace weft::engine {
namespace {

class SequenceWarmup : public Technique {
 public:
  explicit SequenceWarmup(const TrainSpec& train) : train_(train) {}

  int64_t TrainedLength(int64_t step, int64_t length) const override {
    return WarmedUpLength(train_, step, length);
  }

 private:
  TrainSpec train_;
};

}  // namespace

std::unique_ptr<Technique> NewSequenceWarmup(const TechniqueInputs& inputs) {
  if (inputs.train.sequence_warmup_steps == 0) return nullptr;
  return std::make_unique<SequenceWarmup>(inputs.train);
}

}  // namespace weft::engine
