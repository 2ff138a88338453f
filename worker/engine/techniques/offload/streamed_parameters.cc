#include "worker/engine/techniques/offload/streamed_parameters.h"

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "worker/engine/nn/parameter_file.h"
#include "worker/engine/nn/update_pipeline.h"
#include "worker/engine/tensor/host_memory_pool.h"

namespace weft::engine {

StreamedParameters::StreamedParameters(Context& context, ParameterSet* parameters,
                                       std::span<const int64_t> stay)
    : host_(context.host),
      parameters_(parameters),
      dequantizes_(parameters->prefetcher()),
      units_(static_cast<size_t>(parameters->units())),
      first_differentiated_(parameters->units()) {
  for (int64_t i = 0; i < parameters->size(); ++i) {
    const Parameter& parameter = (*parameters)[i];
    if (!parameter.trainable()) continue;
    first_differentiated_ = std::min(first_differentiated_, parameter.unit);
  }
  for (const ParameterSet::CopiesOf& of : parameters->copies()) {
    if ((*parameters)[of.first].quantized_words > 0) continue;  // made where it is dequantised
    units_[static_cast<size_t>(parameters->LastUnitOf(of.first))].copies.push_back(of.copies.get());
  }
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    units_[unit].comes =
        !units_[unit].copies.empty() || parameters->ReadsOperands(static_cast<int64_t>(unit), true);
  }
  for (const int64_t unit : stay) {
    WEFT_CHECK(unit >= 0 && unit < std::ssize(units_), "a unit of the model (CheckOffload)");
    units_[static_cast<size_t>(unit)].stays = true;
  }
  parameters->SetPrefetcher(this);
}

StreamedParameters::~StreamedParameters() {
  (void)host_->up().WaitForAll();
  for (int64_t unit = 0; unit < parameters_->units(); ++unit) {
    DropRead(unit);
    Drop(unit);
  }
  parameters_->SetPrefetcher(dequantizes_);
}

// A table that classifies is of unit 0, too.
Status StreamedParameters::StartReading(int64_t unit, Pass pass) {
  ParameterFile* const file = parameters_->file();
  Unit& starting = units_[static_cast<size_t>(unit)];
  if (file == nullptr || starting.job > 0 || !starting.read.empty()) return OkStatus();
  const bool tables = unit > 0 || pass == Pass::kForward;
  if (starting.copies.empty() && !parameters_->ReadsOperands(unit, tables)) return OkStatus();
  if (!file->update_pipeline().Brings(unit)) starting.read.push_back(unit);
  if (unit > 0 && unit + 1 == parameters_->units() && parameters_->LastUnitUsesFirst()) {
    starting.read.push_back(0);
  }
  for (const int64_t read : starting.read) WEFT_RETURN_IF_ERROR(file->Start(read));
  return OkStatus();
}

void StreamedParameters::DropRead(int64_t unit) {
  Unit& come = units_[static_cast<size_t>(unit)];
  for (const int64_t read : come.read) {
    (void)parameters_->file()->AwaitUncounted(read);  // its waiters get the error
    parameters_->file()->Drop(read);
  }
  come.read.clear();
}

Status StreamedParameters::Start(Context& context, int64_t unit, Pass pass) {
  Unit& starting = units_[static_cast<size_t>(unit)];
  if (starting.job > 0) return OkStatus();
  WEFT_RETURN_IF_ERROR(
      parameters_->ReserveOperands(context, unit, unit > 0 || pass == Pass::kForward));
  for (DerivedCopies* copies : starting.copies) WEFT_RETURN_IF_ERROR(copies->Reserve(context));
  WEFT_RETURN_IF_ERROR(StartReading(unit, pass));
  std::vector<int64_t> needed = starting.read;
  if (parameters_->file() != nullptr && parameters_->file()->update_pipeline().Brings(unit)) {
    needed.push_back(unit);
  }
  Context below = context;
  below.profiler = nullptr;  // another thread's
  starting.job = host_->up().Enqueue(
      [this, unit, below, read = std::move(needed)]() mutable -> Status {
        for (const int64_t other : read) {
          WEFT_RETURN_IF_ERROR(parameters_->file()->AwaitUncounted(other));
        }
        parameters_->BringOperands(below, unit);
        for (DerivedCopies* copies : units_[static_cast<size_t>(unit)].copies) {
          WEFT_RETURN_IF_ERROR(copies->Make(below));
        }
        return OkStatus();
      },
      context.stream);
  return OkStatus();
}

// Passes go by units in their order, where an update under way does, but by those of another stage,
// and by those that are shared.
Status StreamedParameters::FollowUpdate(int64_t unit, Pass pass) {
  ParameterFile* const file = parameters_->file();
  if (file == nullptr || !file->update_pipeline().open()) return OkStatus();
  if (pass == Pass::kForward && unit >= file->update_pipeline().next())
    return file->update_pipeline().Pass(unit - 1);
  // What has been started comes first.
  WEFT_RETURN_IF_ERROR(host_->up().WaitForAll());
  return file->update_pipeline().Close();
}

Status StreamedParameters::Fetch(Context& context, int64_t unit, Pass pass) {
  WEFT_RETURN_IF_ERROR(FollowUpdate(unit, pass));
  WEFT_RETURN_IF_ERROR(Start(context, unit, pass));
  // In their order: the first is needed first.
  const int64_t step = pass == Pass::kForward ? 1 : -1;
  const auto follows = [&](int64_t other) {
    return other >= (step > 0 ? 0 : first_differentiated_) && other < parameters_->units();
  };
  const int64_t next = Next(unit, step);
  if (follows(next)) WEFT_RETURN_IF_ERROR(Start(context, next, pass));
  {
    ProfileScope scope(context.profiler, "wait for weights");
    WEFT_RETURN_IF_ERROR(host_->up().Await(context.stream, units_[static_cast<size_t>(unit)].job));
  }
  if (dequantizes_ != nullptr) WEFT_RETURN_IF_ERROR(dequantizes_->Fetch(context, unit, pass));
  DropRead(unit);
  if (parameters_->file() != nullptr && parameters_->file()->update_pipeline().open()) {
    WEFT_RETURN_IF_ERROR(parameters_->file()->update_pipeline().Pass(unit));
  }
  const int64_t after = unit + 2 * step;
  if (!follows(after) || !units_[static_cast<size_t>(unit + step)].comes) return OkStatus();
  return StartReading(after, pass);
}

int64_t StreamedParameters::Next(int64_t unit, int64_t step) const {
  const auto is_there = [&](int64_t other) {
    if (other < 0 || other >= std::ssize(units_)) return false;
    const Unit& of = units_[static_cast<size_t>(other)];
    return of.stays && of.job > 0;
  };
  int64_t next = unit + step;
  while (is_there(next)) next += step;
  return next;
}

void StreamedParameters::Drop(int64_t unit) {
  Unit& leaving = units_[static_cast<size_t>(unit)];
  if (leaving.job == 0) return;
  for (DerivedCopies* copies : leaving.copies) copies->Drop();
  parameters_->DropOperands(unit);
  leaving.job = 0;
}

Status StreamedParameters::Release(int64_t unit) {
  if (dequantizes_ != nullptr) WEFT_RETURN_IF_ERROR(dequantizes_->Release(unit));
  if (!units_[static_cast<size_t>(unit)].stays) Drop(unit);
  return OkStatus();
}

Status StreamedParameters::Forget() {
  for (int64_t unit = 0; unit < std::ssize(units_); ++unit) {
    const Unit& staying = units_[static_cast<size_t>(unit)];
    if (!staying.stays || staying.job == 0) continue;
    WEFT_RETURN_IF_ERROR(host_->up().WaitForAll());
    Drop(unit);
  }
  return dequantizes_ != nullptr ? dequantizes_->Forget() : OkStatus();
}

}  // namespace weft::engine
