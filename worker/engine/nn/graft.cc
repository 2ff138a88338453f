#include "worker/engine/nn/graft.h"

#include "common/check.h"

namespace weft::engine {

void Grafts::SetGate(std::unique_ptr<BranchGate> gate) {
  WEFT_CHECK(gate_ == nullptr, "one gate decides about a branch");
  gate_ = std::move(gate);
}

Result<Value> Grafts::Forward(GraftPlace place, Context& context, Tape& tape, Value x,
                              const GraftUse& use) const {
  for (const std::unique_ptr<Graft>& graft : At(place)) {
    WEFT_ASSIGN_OR_RETURN(x, graft->Forward(context, tape, std::move(x), use));
  }
  return x;
}

}  // namespace weft::engine
