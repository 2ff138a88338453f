#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "common/pipeline/schedule.h"
#include "worker/engine/models/model.h"
#include "worker/engine/techniques/parallel/pipeline_parallel.h"
#include "worker/engine/train/link_stalls.h"
#include "worker/engine/train/part_losses.h"
#include "worker/engine/train/step_clock.h"

namespace weft::engine {

/// The forward and backward passes of one training step, or of an evaluation, on one rank of a
/// pipeline: exactly the steps of its schedule, one after the other. What another stage sends is
/// asked for one message ahead, and what goes out is let go at once, so that both overlap with the
/// rank's computing. Memory of what went out is used again once something has come that its
/// receiver sent later, so that it depends on the schedule alone. On a CUDA device the host
/// enqueues all of it without waiting: the device's stream waits for what comes. Not thread-safe.
class PipelineRun {
 public:
  /// The objects that it works with, and where the times go; all outlive this.
  struct Parts {
    Context* context = nullptr;
    const Model* model = nullptr;
    const TensorParallel* tensor = nullptr;  ///< Or none.
    PipelineParallel* pipeline = nullptr;
    StepClock* clock = nullptr;
    LinkStalls* stalls = nullptr;             ///< Or none.
    const PartLosses* part_losses = nullptr;  ///< Adds up those of parts of batches; or none.
    /// In training, called after each step of the schedule; or none.
    std::function<Status()> on_step = {};
  };

  explicit PipelineRun(const Parts& parts) : parts_(parts) {}

  /// After an error leaves the groups of the pipeline, so that nothing is under way any more.
  ~PipelineRun();
  PipelineRun(const PipelineRun&) = delete;
  PipelineRun& operator=(const PipelineRun&) = delete;

  /// Trains on the micro-batches: as Model::Loss and Tape::RunBackward with each of them.
  /// `gradients` is between StartPasses and FinishPass.
  Status Train(std::vector<TokenBatch> batches, ParameterGradients& gradients,
               kernels::StepValue<float> gradient_scale, BatchLoss* total);

  /// Adds the loss of a batch to *total, on the last rank; nothing is recorded. All ranks bring the
  /// same batches in the same order, and call Finish after the last one.
  Status Evaluate(TokenBatch& batch, BatchLoss* total);
  Status Finish();

  /// Most forward passes at a time whose backward pass, with the gradients of weights, was still to
  /// come.
  int64_t peak_in_flight() const { return peak_in_flight_; }

 private:
  using Direction = PipelineParallel::Direction;

  /// A micro-batch in a stage, between its forward pass and the end of its backward pass.
  struct Flight {
    Tape tape;
    int32_t input = Value::kNoNode;
    int32_t output = Value::kNoNode;
  };
  struct Message {
    Tensor values;
    Work work;
  };
  /// What goes out in a direction, in order, until it is known to have been taken.
  struct Outbox {
    Direction direction;
    std::deque<Message> sent = {};
    int64_t taken = 0;  ///< Messages before these.
  };
  /// What comes in a direction from the rank to which `back` goes.
  struct Inbox {
    Direction direction;
    Component component;  ///< What it is here.
    Outbox* back;
    std::deque<int64_t> expected = {};  ///< Rows of each message, in order.
    std::deque<Message> asked = {};     ///< For the first of them.
    std::vector<int64_t> taken = {};    ///< Messages of `back` that each shows to be taken.
    size_t came = 0;
  };

  Status RunSteps(const PipelineSchedule& schedule);
  Status RunStep(const PipelineStep& step);
  int64_t RowsOf(const TokenBatch& batch) const;
  Status Ask(Inbox& inbox);
  Result<Tensor> Take(Inbox& inbox);
  void Post(Outbox& outbox, Tensor values);
  Status Release(Outbox& outbox, int64_t taken);
  Status WaitForFirstSent();
  /// Runs Model::Stage.
  Result<Value> RunStage(Tape& tape, int64_t chunk, Value in, TokenBatch& batch,
                         kernels::StepValue<float> gradient_scale, BatchLoss* total);
  Status Forward(const PipelineStep& step);
  Status Backward(const PipelineStep& step);
  Status Weights(const PipelineStep& step);
  /// Charges to `phase` what was done since the last call, except waits for the host memory pool.
  Status Mark(std::string_view name, double PhaseSeconds::*phase);
  void WaitForAll();

  Parts parts_;
  bool failed_ = false;
  std::vector<TokenBatch> batches_;
  ParameterGradients* gradients_ = nullptr;
  kernels::StepValue<float> gradient_scale_ = 1.0f;
  BatchLoss* total_ = nullptr;
  bool split_ = false;  ///< Gradients of weights have steps of their own.
  int64_t forwards_left_ = 0;
  std::map<std::pair<int32_t, int32_t>, Flight> flights_;  ///< By chunk and micro-batch.
  int64_t peak_in_flight_ = 0;
  Outbox outputs_{Direction::kToNext};
  Outbox gradients_out_{Direction::kToPrevious};
  Inbox activations_{Direction::kFromPrevious, Component::kActivations, &gradients_out_};
  Inbox output_gradients_{Direction::kFromNext, Component::kWorkspace, &outputs_};
};

}  // namespace weft::engine
