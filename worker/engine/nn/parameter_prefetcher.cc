#include "worker/engine/nn/parameter_prefetcher.h"

#include "worker/engine/nn/parameter_set.h"

namespace weft::engine {

Status EnterUnit(Context& context, Tape& tape, const ParameterSet& parameters, int64_t unit) {
  ParameterPrefetcher* prefetcher = parameters.prefetcher();
  if (prefetcher == nullptr) return OkStatus();
  WEFT_RETURN_IF_ERROR(prefetcher->Fetch(context, unit, Pass::kForward));
  // What is recorded first runs last.
  if (tape.recording()) {
    tape.Record("release parameters",
                [prefetcher, unit](Context&, Tape&) { return prefetcher->Release(unit); });
  }
  return OkStatus();
}

Status LeaveUnit(Context&, Tape& tape, const ParameterSet& parameters, int64_t unit,
                 bool differentiated, bool stays) {
  ParameterPrefetcher* prefetcher = parameters.prefetcher();
  if (prefetcher == nullptr) return OkStatus();
  const bool returns = tape.recording() && differentiated;
  if (!returns || !stays) WEFT_RETURN_IF_ERROR(prefetcher->Release(unit));
  if (returns) {
    tape.Record("fetch parameters", [prefetcher, unit](Context& context, Tape&) {
      return prefetcher->Fetch(context, unit, Pass::kBackward);
    });
  }
  return OkStatus();
}

}  // namespace weft::engine
