#include "worker/engine/train/pipeline_run.h"

#include <algorithm>
#include <string>

#include "common/model/technique_cost.h"
#include "common/pipeline/messages.h"

namespace weft::engine {

PipelineRun::~PipelineRun() {
  if (!failed_) return;
  // The peers may wait for what will never come, and we for them.
  parts_.pipeline->Abort();
  WaitForAll();
}

void PipelineRun::WaitForAll() {
  const Stream& stream = parts_.context->stream;
  for (const Inbox* inbox : {&activations_, &output_gradients_}) {
    for (const Message& message : inbox->asked) (void)message.work.Wait(stream);
  }
  for (const Outbox* outbox : {&outputs_, &gradients_out_}) {
    for (const Message& message : outbox->sent) (void)message.work.Wait(stream);
  }
}

int64_t PipelineRun::RowsOf(const TokenBatch& batch) const {
  const bool shares = parts_.tensor != nullptr && parts_.tensor->sequence();
  int64_t rows = batch.count;
  if (const int64_t added = VirtualTokensOf(parts_.model->spec()).in_blocks; added > 0) {
    rows += added * batch.RunsOfTokens();
  }
  return shares ? rows / parts_.tensor->degree() : rows;
}

// Memory for the next message, and word that it may come.
Status PipelineRun::Ask(Inbox& inbox) {
  if (inbox.expected.empty()) return OkStatus();
  WEFT_ASSIGN_OR_RETURN(
      Tensor values,
      Tensor::New(*parts_.context, inbox.component, parts_.model->precision().activations,
                  {inbox.expected.front(), parts_.model->spec().width}));
  inbox.expected.pop_front();
  const Work work = parts_.pipeline->Receive(parts_.context->stream, inbox.direction, values);
  inbox.asked.push_back({std::move(values), work});
  return OkStatus();
}

Result<Tensor> PipelineRun::Take(Inbox& inbox) {
  Context& context = *parts_.context;
  WEFT_RETURN_IF_ERROR(parts_.clock->Start(context));
  WEFT_RETURN_IF_ERROR(inbox.asked.front().work.Wait(context.stream));
  WEFT_RETURN_IF_ERROR(
      parts_.clock->Mark(context, "wait for stages", &PhaseSeconds::communication_exposed));
  Tensor values = std::move(inbox.asked.front().values);
  inbox.asked.pop_front();
  if (inbox.came < inbox.taken.size()) {
    WEFT_RETURN_IF_ERROR(Release(*inbox.back, inbox.taken[inbox.came++]));
  }
  WEFT_RETURN_IF_ERROR(Ask(inbox));
  return values;
}

// Gives back what is known to have been taken: nothing is waited for. What is done sooner stays, so
// that memory depends on the schedule alone, not on how fast the neighbours are.
Status PipelineRun::Release(Outbox& outbox, int64_t taken) {
  while (!outbox.sent.empty() && outbox.taken < taken) {
    WEFT_RETURN_IF_ERROR(outbox.sent.front().work.Wait(parts_.context->stream));
    outbox.sent.pop_front();
    ++outbox.taken;
  }
  return OkStatus();
}

void PipelineRun::Post(Outbox& outbox, Tensor values) {
  const Work work = parts_.pipeline->Send(parts_.context->stream, outbox.direction, values);
  outbox.sent.push_back({std::move(values), work});
}

// Nothing comes back that shows a rank how far the next one is: it runs ahead, but not far.
Status PipelineRun::WaitForFirstSent() {
  constexpr size_t kMostSent = 2;
  return outputs_.sent.size() > kMostSent ? Release(outputs_, outputs_.taken + 1) : OkStatus();
}

Status PipelineRun::Mark(std::string_view name, double PhaseSeconds::*phase) {
  WEFT_RETURN_IF_ERROR(parts_.clock->Mark(*parts_.context, name, phase));
  if (parts_.stalls != nullptr) parts_.stalls->Charge(phase);
  return OkStatus();
}

Result<Value> PipelineRun::RunStage(Tape& tape, int64_t chunk, Value in, TokenBatch& batch,
                                    kernels::StepValue<float> gradient_scale, BatchLoss* total) {
  Context& context = *parts_.context;
  const bool sums = parts_.part_losses != nullptr && parts_.pipeline->last(chunk);
  if (sums) WEFT_RETURN_IF_ERROR(parts_.part_losses->Prepare(context, batch));
  WEFT_ASSIGN_OR_RETURN(Value out, parts_.model->Stage(context, tape, chunk, std::move(in), batch,
                                                       gradient_scale, total));
  if (sums) WEFT_RETURN_IF_ERROR(parts_.part_losses->Add(context, batch));
  return out;
}

Status PipelineRun::Forward(const PipelineStep& step) {
  const bool first = parts_.pipeline->first(step.chunk), last = parts_.pipeline->last(step.chunk);
  auto& batch = batches_[static_cast<size_t>(step.micro_batch)];
  Flight& flight =
      flights_.emplace(std::pair(step.chunk, step.micro_batch), Flight{Tape(gradients_)})
          .first->second;
  peak_in_flight_ = std::max(peak_in_flight_, static_cast<int64_t>(flights_.size()));
  if (split_) flight.tape.DeferWeightGradients();
  flight.tape.SetFirstRow(batch.first_token);
  Value in;
  if (!first) {
    WEFT_ASSIGN_OR_RETURN(Tensor values, Take(activations_));
    in = flight.tape.NewValue(std::move(values), parts_.pipeline->SendsGradients(step.chunk));
    flight.input = in.node;
  }
  WEFT_ASSIGN_OR_RETURN(
      Value out, RunStage(flight.tape, step.chunk, std::move(in), batch, gradient_scale_, total_));
  if (step.chunk + 1 == parts_.pipeline->chunks()) batch = {};
  WEFT_RETURN_IF_ERROR(Mark("forward", &PhaseSeconds::forward));
  if (!last) {
    flight.output = out.node;
    Post(outputs_, std::move(out.tensor));
    if (!parts_.pipeline->GetsGradients(step.chunk)) WEFT_RETURN_IF_ERROR(WaitForFirstSent());
  }
  return --forwards_left_ > 0 ? OkStatus() : gradients_->EndForward();
}

Status PipelineRun::Backward(const PipelineStep& step) {
  Context& context = *parts_.context;
  const auto found = flights_.find({step.chunk, step.micro_batch});
  Flight& flight = found->second;
  if (parts_.pipeline->GetsGradients(step.chunk)) {
    WEFT_ASSIGN_OR_RETURN(Tensor gradient, Take(output_gradients_));
    WEFT_RETURN_IF_ERROR(flight.tape.AddGradient(context, flight.output, std::move(gradient)));
  }
  WEFT_RETURN_IF_ERROR(flight.tape.RunBackward(context));
  Tensor gradient;
  if (flight.input != Value::kNoNode) gradient = flight.tape.TakeGradient(flight.input);
  if (!split_) flights_.erase(found);
  WEFT_RETURN_IF_ERROR(Mark("backward", &PhaseSeconds::backward));
  if (gradient) Post(gradients_out_, std::move(gradient));
  return OkStatus();
}

Status PipelineRun::Weights(const PipelineStep& step) {
  const auto found = flights_.find({step.chunk, step.micro_batch});
  WEFT_RETURN_IF_ERROR(found->second.tape.RunDeferred(*parts_.context));
  flights_.erase(found);
  return Mark("backward", &PhaseSeconds::backward);
}

Status PipelineRun::RunStep(const PipelineStep& step) {
  switch (step.op) {
    case PipelineOp::kForward:
      return Forward(step);
    case PipelineOp::kBackward:
    case PipelineOp::kBackwardInput:
      return Backward(step);
    case PipelineOp::kBackwardWeight:
      return Weights(step);
  }
  return OkStatus();
}

Status PipelineRun::RunSteps(const PipelineSchedule& schedule) {
  const int64_t rank = parts_.pipeline->rank(), degree = parts_.pipeline->degree();
  const std::vector<PipelineStep>& steps = schedule.steps[static_cast<size_t>(rank)];
  // Neighbours have their stages before and after those here in turn.
  activations_.taken =
      TakenBeforeSending(schedule, (rank + degree - 1) % degree, PipelineSide::kNext,
                         parts_.pipeline->first_trained_stage());
  output_gradients_.taken =
      TakenBeforeSending(schedule, (rank + 1) % degree, PipelineSide::kPrevious,
                         parts_.pipeline->first_trained_stage());
  for (const PipelineStep& step : steps) {
    const int64_t rows = RowsOf(batches_[static_cast<size_t>(step.micro_batch)]);
    if (step.op == PipelineOp::kForward) {
      ++forwards_left_;
      if (!parts_.pipeline->first(step.chunk)) activations_.expected.push_back(rows);
    } else if (step.op != PipelineOp::kBackwardWeight &&
               parts_.pipeline->GetsGradients(step.chunk)) {
      output_gradients_.expected.push_back(rows);
    }
  }
  WEFT_RETURN_IF_ERROR(Ask(activations_));
  WEFT_RETURN_IF_ERROR(Ask(output_gradients_));
  for (const PipelineStep& step : steps) {
    WEFT_RETURN_IF_ERROR(RunStep(step));
    if (parts_.on_step) WEFT_RETURN_IF_ERROR(parts_.on_step());
  }
  return Finish();
}

Status PipelineRun::Train(std::vector<TokenBatch> batches, ParameterGradients& gradients,
                          kernels::StepValue<float> gradient_scale, BatchLoss* total) {
  WEFT_ASSIGN_OR_RETURN(const PipelineSchedule* schedule,
                        parts_.pipeline->ScheduleOf(static_cast<int64_t>(batches.size())));
  batches_ = std::move(batches);
  gradients_ = &gradients;
  gradient_scale_ = gradient_scale;
  total_ = total;
  split_ = schedule->split_backward;
  Status status = RunSteps(*schedule);
  failed_ = !status.ok();
  return status;
}

Status PipelineRun::Evaluate(TokenBatch& batch, BatchLoss* total) {
  const auto run = [&]() -> Status {
    for (int64_t chunk = 0; chunk < parts_.pipeline->chunks(); ++chunk) {
      Tape tape(nullptr);
      Value in;
      if (!parts_.pipeline->first(chunk)) {
        activations_.expected.push_back(RowsOf(batch));
        WEFT_RETURN_IF_ERROR(Ask(activations_));
        WEFT_ASSIGN_OR_RETURN(in.tensor, Take(activations_));
      }
      WEFT_ASSIGN_OR_RETURN(Value out, RunStage(tape, chunk, std::move(in), batch, 1.0f, total));
      if (parts_.pipeline->last(chunk)) continue;
      Post(outputs_, std::move(out.tensor));
      WEFT_RETURN_IF_ERROR(WaitForFirstSent());
    }
    return OkStatus();
  };
  Status status = run();
  failed_ = !status.ok();
  return status;
}

Status PipelineRun::Finish() {
  for (Outbox* outbox : {&outputs_, &gradients_out_}) {
    WEFT_RETURN_IF_ERROR(
        Release(*outbox, outbox->taken + static_cast<int64_t>(outbox->sent.size())));
  }
  return OkStatus();
}

}  // namespace weft::engine
