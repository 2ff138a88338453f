#include "worker/engine/train/parameter_uploader.h"

#include <algorithm>

#include "worker/engine/tensor/host_memory_pool.h"

namespace weft::engine {

ParameterUploader::ParameterUploader(Context& context, ParameterSet* parameters)
    : host_(context.host),
      parameters_(parameters),
      of_others_(parameters->prefetcher()),
      copies_(static_cast<size_t>(parameters->units())),
      jobs_(static_cast<size_t>(parameters->units())) {
  for (const ParameterSet::CopiesOf& of : parameters->copies()) {
    if (!of.copies->trained() || !parameters->on_host(of.first)) continue;
    copies_[static_cast<size_t>(parameters->LastUnitOf(of.first))].push_back(of.copies.get());
  }
  parameters->SetPrefetcher(this);
}

ParameterUploader::~ParameterUploader() {
  (void)Finish();
  if (parameters_->prefetcher() == this) parameters_->SetPrefetcher(of_others_);
}

void ParameterUploader::Start(const Context& context) {
  Context below = context;
  below.profiler = nullptr;  // another thread's
  for (size_t unit = 0; unit < jobs_.size(); ++unit) {
    jobs_[unit] = host_->up().Enqueue(
        [this, unit, below]() mutable -> Status {
          parameters_->UploadOperands(below, static_cast<int64_t>(unit));
          for (DerivedCopies* copies : copies_[unit]) WEFT_RETURN_IF_ERROR(copies->Make(below));
          return OkStatus();
        },
        context.stream);
  }
}

Status ParameterUploader::Finish() {
  return host_->up().WaitFor(jobs_.empty() ? 0 : jobs_.back());
}

Status ParameterUploader::FinishInBackground() {
  return host_->up().WaitUncounted(jobs_.empty() ? 0 : jobs_.back());
}

Status ParameterUploader::Fetch(Context& context, int64_t unit, Pass pass) {
  if (of_others_) WEFT_RETURN_IF_ERROR(of_others_->Fetch(context, unit, pass));
  if (pass == Pass::kBackward) return OkStatus();
  ProfileScope scope(context.profiler, "wait for weights");
  return host_->up().Await(context.stream, jobs_[static_cast<size_t>(unit)]);
}

}  // namespace weft::engine
