#include "worker/engine/techniques/parallel/parameter_gatherer.h"

#include <algorithm>
#include <utility>

#include "kernels/elementwise/elementwise.h"
#include "worker/engine/nn/parameter_file.h"
#include "worker/engine/tensor/host_memory_pool.h"
#include "worker/engine/tensor/transfer.h"

namespace weft::engine {

ParameterGatherer::ParameterGatherer(Context& context, Collective* group, Collective* same_experts,
                                     ParameterSet* parameters, DType products)
    : group_(group),
      same_experts_(same_experts),
      parameters_(parameters),
      host_(parameters->offloaded() ? context.host : nullptr),
      dequantizes_(parameters->prefetcher()),
      products_(products),
      stream_(context.stream),
      first_differentiated_(parameters->units()),
      gathered_(parameters->flat_parameters().size()),
      wanted_images_(static_cast<size_t>(parameters->units())),
      read_ahead_(static_cast<size_t>(parameters->units())) {
  const std::vector<ParameterSet::FlatParameter>& flat_parameters = parameters->flat_parameters();
  for (const ParameterSet::FlatParameter& flat : flat_parameters) {
    if (!flat.trained || flat.of_all_blocks) continue;
    first_differentiated_ = std::min(first_differentiated_, flat.first_unit);
  }
  for (const ParameterSet::CopiesOf& copies : parameters->copies()) {
    size_t at = 0;
    while (std::find(flat_parameters[at].parameters.begin(), flat_parameters[at].parameters.end(),
                     copies.first) == flat_parameters[at].parameters.end()) {
      ++at;
    }
    flat_parameter_of_copies_.push_back(at);
  }
  parameters->SetPrefetcher(this);
}

ParameterGatherer::~ParameterGatherer() {
  for (const Gathered& gathered : gathered_) (void)gathered.work.Wait(stream_);
  if (host_ != nullptr) (void)host_->up().WaitForAll();
  for (size_t unit = 0; parameters_->file() != nullptr && unit < wanted_images_.size(); ++unit) {
    (void)parameters_->file()->AwaitUncounted(static_cast<int64_t>(unit));
    parameters_->file()->Drop(static_cast<int64_t>(unit));
  }
  parameters_->SetPrefetcher(dequantizes_);
}

std::vector<size_t> ParameterGatherer::Wanted(int64_t unit, Pass pass) const {
  std::vector<size_t> wanted;
  for (size_t r = 0; r < gathered_.size(); ++r) {
    const ParameterSet::FlatParameter& flat = parameters_->flat_parameters()[r];
    if (flat.replicated || (flat.first_unit != unit && flat.last_unit != unit)) continue;
    if (pass == Pass::kBackward && unit == 0 && flat.looked_up) continue;
    if (pass == Pass::kTrained && (!flat.trained || flat.first_unit != unit)) continue;
    wanted.push_back(r);
  }
  return wanted;
}

DType ParameterGatherer::TypeOf(const ParameterSet::FlatParameter& flat, int64_t unit,
                                Pass pass) const {
  const bool rounds =
      flat.rounded && products_ == DType::kBF16 && unit > 0 && pass != Pass::kTrained;
  return rounds ? DType::kBF16 : flat.dtype;
}

Status ParameterGatherer::StartReading(int64_t unit, Pass pass) {
  ParameterFile* const file = parameters_->file();
  std::vector<int64_t>& images = read_ahead_[static_cast<size_t>(unit)];
  if (file == nullptr || !images.empty()) return OkStatus();
  for (size_t r : Wanted(unit, pass)) {
    if (gathered_[r].part || gathered_[r].values) continue;
    // A token table that classifies is of unit 0.
    const int64_t image = parameters_->flat_parameters()[r].first_unit;
    WEFT_RETURN_IF_ERROR(file->Start(image));
    ++wanted_images_[static_cast<size_t>(image)];
    images.push_back(image);
  }
  return OkStatus();
}

void ParameterGatherer::LeaveImage(int64_t unit) {
  if (--wanted_images_[static_cast<size_t>(unit)] == 0) parameters_->file()->Drop(unit);
}

Status ParameterGatherer::BringParts(Context& context, int64_t unit, Pass pass) {
  ParameterFile* const file = parameters_->file();
  for (size_t r : Wanted(unit, pass)) {
    Gathered& gathered = gathered_[r];
    if (gathered.part || gathered.values) continue;
    const ParameterSet::FlatParameter& flat = parameters_->flat_parameters()[r];
    WEFT_ASSIGN_OR_RETURN(gathered.part, Tensor::New(context, Component::kParameters,
                                                     TypeOf(flat, unit, pass), flat.held.shape));
    if (file != nullptr) {
      WEFT_RETURN_IF_ERROR(file->Start(flat.first_unit));
      ++wanted_images_[static_cast<size_t>(flat.first_unit)];
    }
    if (gathered.part.dtype() != flat.dtype) {
      WEFT_RETURN_IF_ERROR(host_->up().ReserveStaging(host_->allocator()));
    }
    gathered.job = host_->up().Enqueue(
        [this, file, image = flat.first_unit, held = flat.held,
         part = gathered.part.view()]() -> Status {
          if (file != nullptr) WEFT_RETURN_IF_ERROR(file->AwaitUncounted(image));
          host_->up().Copy(part, held);
          return OkStatus();
        },
        stream_);
  }
  for (const int64_t image : std::exchange(read_ahead_[static_cast<size_t>(unit)], {})) {
    LeaveImage(image);
  }
  return OkStatus();
}

Status ParameterGatherer::Start(Context& context, size_t flat, DType dtype) {
  Gathered& gathered = gathered_[flat];
  const ParameterSet::FlatParameter& held = parameters_->flat_parameters()[flat];
  Collective* const shard_group = ShardGroupOf(held);
  if (host_ != nullptr) {
    ProfileScope scope(context.profiler, "wait for weights");
    WEFT_RETURN_IF_ERROR(host_->up().Await(stream_, gathered.job));
    if (parameters_->file() != nullptr) LeaveImage(held.first_unit);
    if (shard_group == nullptr) gathered.values = std::exchange(gathered.part, {});
  }
  if (shard_group == nullptr && (gathered.values || dtype == held.dtype)) return OkStatus();
  const int64_t count = held.held.shape.Elements();
  WEFT_ASSIGN_OR_RETURN(gathered.values,
                        Tensor::New(context, Component::kParameters, dtype, {count * held.ranks}));
  Tensor own = gathered.values.Elements(held.rank * count, count);
  if (host_ == nullptr) {
    WEFT_RETURN_IF_ERROR(held.dtype == DType::kI32 ? CopyRows(stream_, held.held, own)
                                                   : kernels::Cast(stream_, {held.held, own}));
  } else {
    own = gathered.part;
  }
  if (shard_group == nullptr) return OkStatus();
  gathered.work = shard_group->AllGather(stream_, own, gathered.values, "all-gather parameters");
  return OkStatus();
}

Status ParameterGatherer::StartUnit(Context& context, int64_t unit, Pass pass) {
  if (host_ != nullptr) WEFT_RETURN_IF_ERROR(BringParts(context, unit, pass));
  for (size_t r : Wanted(unit, pass)) {
    if (gathered_[r].values) continue;
    WEFT_RETURN_IF_ERROR(Start(context, r, TypeOf(parameters_->flat_parameters()[r], unit, pass)));
  }
  return OkStatus();
}

Status ParameterGatherer::Place(size_t flat) {
  Gathered& gathered = gathered_[flat];
  WEFT_RETURN_IF_ERROR(gathered.work.Wait(stream_));
  gathered.part = {};
  const ParameterSet::FlatParameter& placed = parameters_->flat_parameters()[flat];
  parameters_->PlaceFlatParameter(placed, gathered.values ? gathered.values.view() : placed.held);
  gathered.placed = true;
  return OkStatus();
}

// A table that classifies is first looked up.
Status ParameterGatherer::MakeCopies(Context& context, const std::vector<size_t>& flat_parameters,
                                     int64_t unit) const {
  ProfileScope scope(context.profiler, "pack weights");
  for (const size_t flat : flat_parameters) {
    const ParameterSet::FlatParameter& placed = parameters_->flat_parameters()[flat];
    if (unit != placed.last_unit || placed.dtype == DType::kI32) continue;
    for (size_t c = 0; c < flat_parameter_of_copies_.size(); ++c) {
      if (flat_parameter_of_copies_[c] != flat) continue;
      WEFT_RETURN_IF_ERROR(parameters_->copies()[c].copies->Make(context));
    }
  }
  return OkStatus();
}

Status ParameterGatherer::Fetch(Context& context, int64_t unit, Pass pass) {
  const int64_t forward = pass == Pass::kBackward ? -1 : 1;
  const int64_t lowest = pass == Pass::kBackward ? first_differentiated_ : 0;
  const auto follows = [&](int64_t other) {
    return other >= lowest && other < parameters_->units();
  };
  for (int64_t other = unit; host_ != nullptr && other != unit + 3 * forward; other += forward) {
    if (follows(other)) WEFT_RETURN_IF_ERROR(BringParts(context, other, pass));
  }
  WEFT_RETURN_IF_ERROR(StartUnit(context, unit, pass));
  // Copies may be made of values of several flat parameters.
  std::vector<size_t> placed = Wanted(unit, pass);
  std::erase_if(placed, [&](size_t r) { return gathered_[r].placed; });
  for (const size_t r : placed) WEFT_RETURN_IF_ERROR(Place(r));
  if (pass != Pass::kTrained) {
    WEFT_RETURN_IF_ERROR(MakeCopies(context, placed, unit));
    if (dequantizes_) WEFT_RETURN_IF_ERROR(dequantizes_->Fetch(context, unit, pass));
  }
  const int64_t next = unit + forward;
  if (follows(next)) WEFT_RETURN_IF_ERROR(StartUnit(context, next, pass));
  const int64_t behind = unit + 3 * forward;
  return follows(behind) ? StartReading(behind, pass) : OkStatus();
}

void ParameterGatherer::DropPlaced(size_t flat) {
  if (!gathered_[flat].placed) return;
  const ParameterSet::FlatParameter& placed = parameters_->flat_parameters()[flat];
  for (size_t c = 0; c < flat_parameter_of_copies_.size(); ++c) {
    if (flat_parameter_of_copies_[c] != flat || placed.dtype == DType::kI32) continue;
    parameters_->copies()[c].copies->Drop();
  }
  parameters_->PlaceFlatParameter(placed, {});
  gathered_[flat] = {};
}

Status ParameterGatherer::Release(int64_t unit) {
  if (dequantizes_) WEFT_RETURN_IF_ERROR(dequantizes_->Release(unit));
  for (size_t r : Wanted(unit, Pass::kForward)) {
    if (!parameters_->flat_parameters()[r].of_all_blocks) DropPlaced(r);
  }
  return OkStatus();
}

Status ParameterGatherer::Forget() {
  for (size_t r = 0; r < gathered_.size(); ++r) {
    if (parameters_->flat_parameters()[r].of_all_blocks) DropPlaced(r);
  }
  return dequantizes_ ? dequantizes_->Forget() : OkStatus();
}

}  // namespace weft::engine
