#include "worker/engine/nn/parameter_residence.h"

#include "worker/engine/nn/parameter_set.h"

namespace weft::engine {

Status EnterUnit(Context& context, Tape& tape, const ParameterSet& parameters, int64_t unit) {
  ParameterResidence* residence = parameters.residence();
  if (residence == nullptr) return OkStatus();
  WEFT_RETURN_IF_ERROR(residence->Fetch(context, unit, Pass::kForward));
  // What is recorded first runs last.
  if (tape.recording()) {
    tape.Record("release parameters",
                [residence, unit](Context&, Tape&) { return residence->Release(unit); });
  }
  return OkStatus();
}

Status LeaveUnit(Context&, Tape& tape, const ParameterSet& parameters, int64_t unit,
                 bool differentiated, bool stays) {
  ParameterResidence* residence = parameters.residence();
  if (residence == nullptr) return OkStatus();
  const bool returns = tape.recording() && differentiated;
  if (!returns || !stays) WEFT_RETURN_IF_ERROR(residence->Release(unit));
  if (returns) {
    tape.Record("fetch parameters", [residence, unit](Context& context, Tape&) {
      return residence->Fetch(context, unit, Pass::kBackward);
    });
  }
  return OkStatus();
}

}  // namespace weft::engine
