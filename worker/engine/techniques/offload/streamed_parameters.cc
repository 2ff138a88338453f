#include "worker/engine/techniques/offload/streamed_parameters.h"

#include <algorithm>

#include "worker/engine/tensor/host_tier.h"

namespace weft::engine {

StreamedParameters::StreamedParameters(Context& context, ParameterSet* parameters)
    : host_(context.host),
      parameters_(parameters),
      units_(static_cast<size_t>(parameters->units())),
      first_differentiated_(parameters->units()) {
  for (int64_t i = 0; i < parameters->size(); ++i) {
    const Parameter& parameter = (*parameters)[i];
    if (!parameter.trainable()) continue;
    first_differentiated_ = std::min(first_differentiated_, parameter.unit);
  }
  for (const ParameterSet::CopiesOf& of : parameters->copies()) {
    units_[static_cast<size_t>(parameters->UnitOfCopies(of.first))].copies.push_back(
        of.copies.get());
  }
  parameters->SetResidence(this);
}

StreamedParameters::~StreamedParameters() {
  (void)host_->up().WaitForAll();
  for (int64_t unit = 0; unit < parameters_->units(); ++unit) (void)Release(unit);
  parameters_->SetResidence(nullptr);
}

Status StreamedParameters::Start(Context& context, int64_t unit, Pass pass) {
  Unit& starting = units_[static_cast<size_t>(unit)];
  if (starting.job > 0) return OkStatus();
  WEFT_RETURN_IF_ERROR(
      parameters_->ReserveOperands(context, unit, unit > 0 || pass == Pass::kForward));
  for (DerivedCopies* copies : starting.copies) WEFT_RETURN_IF_ERROR(copies->Reserve(context));
  Context below = context;
  below.profiler = nullptr;  // another thread's
  starting.job = host_->up().Enqueue(
      [this, unit, below]() mutable -> Status {
        parameters_->BringOperands(below, unit);
        for (DerivedCopies* copies : units_[static_cast<size_t>(unit)].copies) {
          WEFT_RETURN_IF_ERROR(copies->Make(below));
        }
        return OkStatus();
      },
      context.stream);
  return OkStatus();
}

Status StreamedParameters::Fetch(Context& context, int64_t unit, Pass pass) {
  WEFT_RETURN_IF_ERROR(Start(context, unit, pass));
  // In their order: the first is needed first.
  const int64_t next = pass == Pass::kForward ? unit + 1 : unit - 1;
  const int64_t lowest = pass == Pass::kForward ? 0 : first_differentiated_;
  if (next >= lowest && next < parameters_->units()) {
    WEFT_RETURN_IF_ERROR(Start(context, next, pass));
  }
  ProfileScope scope(context.profiler, "wait for weights");
  return host_->up().Await(context.stream, units_[static_cast<size_t>(unit)].job);
}

Status StreamedParameters::Release(int64_t unit) {
  Unit& leaving = units_[static_cast<size_t>(unit)];
  if (leaving.job == 0) return OkStatus();
  for (DerivedCopies* copies : leaving.copies) copies->Drop();
  parameters_->DropOperands(unit);
  leaving.job = 0;
  return OkStatus();
}

}  // namespace weft::engine
