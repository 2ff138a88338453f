#include "coordinator/planner/cluster/step_model.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "common/model/precision.h"
#include "common/number.h"
#include "coordinator/planner/cluster/collectives.h"
#include "coordinator/planner/cluster/product_rates.h"

namespace weft::planner {
namespace {

constexpr double kHalf = 2;  // bytes of bf16 and fp16
constexpr int64_t kAlignedHalves = 8;
// Kernels of a block: the norms, products and what lies between them, forward and backward.
constexpr double kFusedForward = 16, kFusedBackward = 24;
constexpr double kPlainForward = 30, kPlainBackward = 40;
// A mixture has further kernels: router, choice, counts, order of rows, their copies and their sum;
// and those where these are one operation after the other.
constexpr double kRoutingForward = 10, kRoutingBackward = 12;
constexpr double kPlainRoutingForward = 80, kPlainRoutingBackward = 60;
// Kernels of a product of one expert take its part of the rows and multiply; with operands in a
// format of their own (8 bits were measured) they also make buffers, casts and scales.
constexpr double kExpertProduct = 3, kExpertProductInFormat = 8;
// Until the device has the first kernel that the processor starts when it knows the counts.
constexpr double kAfterCounts = 3;
// Copies of a row on its way to an expert and back: written for the expert, the result read and
// added up; backward the results are read and written once more. Put in order besides, it is
// read and written on each way.
constexpr double kRowPasses = 3, kBackwardRowPasses = 5, kOrderPasses = 4;
// Passes over the result of an expert's activation: one kernel reads both halves and writes their
// product; products that do it themselves write it only. With biases and bounds one operation comes
// after the other: a bias for both halves (4), two bounds (4), a scaled sigmoid (7), an offset (2),
// the product (3), that with the router's weight (3), and the second bias, which is multiplied by
// it, added and put in order (5), half of them in f32.
constexpr double kActivation = 3, kFusedActivation = 1, kBiasedActivation = 28 * 1.5;
// Bytes of a value around its cast to 8 bits: written for products of both passes and, unless the
// kernel that made it did that, or half of the time in a dense model, read.
constexpr double kFusedCast = 2, kCast = 3, kPlainCast = 4;
// Without fused attention, scores of fewer than four heads and sequences fall back to more kernels.
constexpr double kPlainScores = 10;
// The backward pass is started by the framework's own thread, in half the time.
constexpr double kBackwardHost = 0.5;
// Flash attention makes the scores again: five products instead of two, a little slower.
constexpr double kAttentionBackward = 2.5 * 1.15;
// Passes of the loss over the logits in f32: softmax of a fused one, and of one operation after the
// other.
constexpr double kFusedLoss = 5, kPlainLoss = 20;
// Passes over the scores where they are kept: softmax with its mask reads and writes, dropout
// reads, writes and keeps a byte each; backward, dropout does the same, and softmax reads two and
// writes.
constexpr double kScorePasses = 4.5, kBackwardScorePasses = 5.5;
// Bytes a parameter that AdamW with masters moves.
constexpr double kOptimizerBytes = 40;

int64_t CeilDiv(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

/// A forward or backward pass of a block for a micro-batch.
struct PassSeconds {
  double products = 0;
  double attention = 0;
  double memory_bound = 0;
  double tensor = 0;
  double context = 0;
  double expert = 0;
  double host = 0;           ///< To start its kernels.
  double host_before = 0;    ///< Of that, before it waits for the counts of rows,
  double device_before = 0;  ///< and what the device has to do until then.

  double device() const { return products + attention + memory_bound + tensor + context + expert; }
  /// What the device waits for the processor, which runs ahead of it.
  double Wait() const { return std::max(0.0, host - device()); }
  /// The same if the device is idle when the processor has the counts.
  double WaitWithCounts() const {
    return std::max(0.0, host_before - device_before) +
           std::max(0.0, (host - host_before) - (device() - device_before));
  }
};

class StepModel {
 public:
  StepModel(const AcceleratorSpec& device, const SoftwareStack& stack, const ClusterRun& run)
      : device_(device),
        stack_(stack),
        run_(run),
        model_(run.model),
        tokens_(D(run.micro_batch * run.model.sequence_length) / D(run.context)),
        width_(D(run.model.width)),
        attended_(D(model_.heads * model_.HeadWidth()) / D(run.tensor)),
        qkv_(D(model_.HeadWidth()) * D(model_.heads + 2 * model_.key_heads) / D(run.tensor)),
        inner_(D(model_.mlp_width) / D(model_.HasExperts() ? run.ExpertTensor() : run.tensor)),
        up_(inner_ * (model_.gated ? 2 : 1)),
        experts_(D(model_.experts) / D(run.expert)),
        rows_(tokens_ * model_.RowsOfToken() *
              (model_.HasExperts() ? D(run.ExpertTensor()) / D(run.tensor) : 1)),
        bandwidth_(device.memory_bytes_per_second * stack.memory_share),
        format_(FindFormat(run.precision)),
        products_(device, stack, run.precision),
        half_products_(device, stack, HalfPrecision()),
        score_products_(device, stack, ScorePrecision()) {}

  StepLedger Run() const {
    const PassSeconds forward = Forward(), backward = Backward();
    const PassSeconds again = Again(forward);
    const double passes = Passes();
    const double gathers = Gathers(forward.device(), backward.device() + again.device());
    const double device = forward.device() + backward.device() + again.device();
    // Where it does not wait, the processor runs ahead of the device within the forward pass and
    // within the backward pass, where a block is recomputed just before its gradients.
    const double host_wait =
        stack_.waits_for_kernels
            ? forward.host + again.host + backward.host
            : Wait(forward) +
                  std::max(0.0, again.host + backward.host - again.device() - backward.device());
    const double block = device + host_wait + gathers;
    const double head = Head();
    const double hop = Hop();
    const double sends = hop * D(run_.stages_per_rank);
    // All wait for the stage with the classifier, or for one with more blocks. Nothing overlaps
    // with a transfer: between the others both directions wait for one another, while the last
    // stage returns a gradient and gets the next input at once.
    const double exchange = sends / 2;
    const double last = D(BlocksAt(stack_, run_, run_.pipeline - 1));
    const bool for_last = last * block + head + exchange >= Blocks() * block + sends;
    const double awaited = for_last ? last : Blocks();
    // The other stages, once: before the first pass and after the last.
    const double others = run_.stages_per_rank > 1
                              ? D(run_.pipeline - 1) * Blocks() / D(run_.stages_per_rank)
                              : D(model_.layers) - awaited;

    StepLedger ledger;
    const double blocks = passes * awaited;
    ledger.products =
        blocks * (forward.products + backward.products) + (for_last ? passes * head : 0);
    ledger.attention = blocks * (forward.attention + backward.attention);
    ledger.memory_bound = blocks * (forward.memory_bound + backward.memory_bound);
    ledger.recomputed = blocks * again.device();
    ledger.host_wait = blocks * host_wait;
    ledger.tensor_communication = blocks * (forward.tensor + backward.tensor);
    ledger.context_communication = blocks * (forward.context + backward.context);
    ledger.expert_communication = blocks * (forward.expert + backward.expert);
    ledger.pipeline_communication = passes * (for_last ? exchange : sends);
    ledger.bubble = others * block + D(run_.pipeline - 1) * hop + (for_last ? 0 : head);
    // Gradients are final in the last backward pass, and new parameters needed in the first forward
    // pass: nothing else can hide them.
    const double beside = Blocks() * (backward.device() + again.device() +
                                      (run_.zero_stage > 0 ? forward.device() : 0));
    ledger.data_communication = blocks * gathers + Reduction(beside) + TiedReduction();
    ledger.optimizer =
        (DenseParameters() / Shards(Replicas()) + ExpertParameters() / Shards(ExpertReplicas())) *
        kOptimizerBytes / bandwidth_;
    ledger.fixed = stack_.step_seconds;
    return ledger;
  }

 private:
  double Product(double m, double n, double k) const { return products_.Seconds(m, n, k); }
  double HalfProduct(double m, double n, double k) const { return half_products_.Seconds(m, n, k); }
  std::string_view HalfPrecision() const {
    return format_ != nullptr ? "bf16" : std::string_view(run_.precision);
  }
  // Rows of heads that are not whole 16 bytes keep products of scores off the tensor cores.
  std::string_view ScorePrecision() const {
    const bool aligned = run_.model.HeadWidth() % kAlignedHalves == 0;
    return aligned || device_.Find("fp32") == nullptr ? HalfPrecision() : "fp32";
  }
  double ScoreProduct(double m, double n, double k) const {
    return score_products_.Seconds(m, n, k, Scores());
  }
  double Passes() const { return D(run_.global_batch) / D(run_.data * run_.micro_batch); }
  double HeadsPerRank() const { return D(model_.heads) / D(run_.tensor); }
  double HeadWidth() const { return D(model_.HeadWidth()); }
  double Scores() const { return D(run_.micro_batch) * HeadsPerRank(); }

  // Products of the experts of a rank in one kernel, each of its share of the rows.
  double MlpProduct(double m_share, double n, double k) const {
    return products_.Seconds(m_share, n, k, experts_);
  }
  double ExpertRows() const { return rows_ / experts_; }
  bool PlainExperts() const { return model_.HasExperts() && !stack_.experts.grouped; }
  double Wait(const PassSeconds& forward) const {
    const bool waits = model_.HasExperts() && stack_.experts.waits_for_counts;
    return waits ? forward.WaitWithCounts() + kAfterCounts * stack_.host_seconds : forward.Wait();
  }

  PassSeconds Forward() const {
    PassSeconds pass;
    pass.products = Product(tokens_, qkv_, width_) + Product(tokens_, width_, attended_);
    if (model_.HasExperts()) pass.products += HalfProduct(tokens_, D(model_.experts), width_);
    pass.attention = Attention();
    pass.memory_bound = (ResidualBytes() + ScoreBytes(kScorePasses)) / bandwidth_;
    AddCommunication(pass, 1);
    double kernels = stack_.fused_attention ? kFusedForward : kPlainForward;
    if (!stack_.fused_attention && std::fmod(Scores(), 4) != 0) kernels += kPlainScores;
    if (run_.tensor > 1) kernels += 2;
    AddHost(pass, kernels, PlainExperts() ? kPlainRoutingForward : kRoutingForward, 2);
    pass.device_before = pass.device();

    pass.products +=
        MlpProduct(ExpertRows(), up_, width_) + MlpProduct(ExpertRows(), width_, inner_);
    pass.memory_bound +=
        (ActivationBytes() + QuantizedBytes() + RoutingBytes(kRowPasses)) / bandwidth_;
    AddExpertCommunication(pass);
    return pass;
  }

  PassSeconds Backward() const {
    PassSeconds pass;
    const auto both = [&](double n, double k) {
      return Product(tokens_, k, n) + Product(k, n, tokens_);
    };
    const auto both_of_mlp = [&](double n, double k) {
      return MlpProduct(ExpertRows(), k, n) + MlpProduct(k, n, ExpertRows());
    };
    pass.products = both(qkv_, width_) + both(width_, attended_) + both_of_mlp(up_, width_) +
                    both_of_mlp(width_, inner_);
    if (model_.HasExperts()) {
      const double experts = D(model_.experts);
      pass.products +=
          HalfProduct(tokens_, width_, experts) + HalfProduct(width_, experts, tokens_);
    }
    pass.attention = Attention() * (stack_.fused_attention ? kAttentionBackward : 2);
    pass.memory_bound =
        (2 * (ResidualBytes() + ActivationBytes()) + ScoreBytes(kBackwardScorePasses) +
         QuantizedBytes() + GradientSumBytes() + RoutingBytes(kBackwardRowPasses)) /
        bandwidth_;
    AddCommunication(pass, 2);
    AddExpertCommunication(pass);
    double kernels = stack_.fused_attention ? kFusedBackward : kPlainBackward;
    if (run_.tensor > 1) kernels += 2;
    AddHost(pass, kernels, PlainExperts() ? kPlainRoutingBackward : kRoutingBackward, 4);
    pass.host *= kBackwardHost;
    return pass;
  }

  // Time to start this many kernels of a block, and those of routing and of products of experts.
  void AddHost(PassSeconds& pass, double kernels, double routing, double products) const {
    const ProgramExperts& program = stack_.experts;
    double after = 0;
    if (model_.HasExperts()) {
      if (program.Captures("step")) return;
      kernels += routing / 2;
      if (program.Captures("routing")) kernels = 1;
      after = routing / 2;
    }
    if (PlainExperts()) {
      after += products * experts_ * (format_ != nullptr ? kExpertProductInFormat : kExpertProduct);
    }
    pass.host_before = kernels * stack_.host_seconds;
    pass.host = pass.host_before + after * stack_.host_seconds;
  }

  double Attention() const {
    if (stack_.fused_attention) {
      const double causal = 2 * tokens_ * D(model_.sequence_length) * attended_;
      const ProductPeak* peak = device_.Find(HalfPrecision());
      return causal / (peak->flops_per_second * device_.attention_share * stack_.attention_share *
                       stack_.product_share);
    }
    const double s = D(model_.sequence_length);
    return ScoreProduct(s, s, HeadWidth()) + ScoreProduct(s, HeadWidth(), s);
  }

  // Norms, and the additions to the residual stream with their dropout.
  double ResidualBytes() const {
    return NormBytes() + kHalf * tokens_ * width_ * 2 * 3 / StreamShards();
  }
  double NormBytes() const { return kHalf * tokens_ * width_ * 2 * 2 / StreamShards(); }
  double StreamShards() const {
    return stack_.sequence_parallel && run_.tensor > 1 ? D(run_.tensor) : 1;
  }
  // Rows that are copied for their experts, and the tokens that they come from.
  double RoutingBytes(double passes) const {
    if (!model_.HasExperts()) return 0;
    if (PlainExperts()) passes += kOrderPasses;
    const double sequence_ranks = stack_.sequence_parallel ? D(run_.ExpertTensor()) : 1;
    return kHalf * width_ * (passes * rows_ / sequence_ranks + tokens_ / StreamShards());
  }
  double ActivationBytes() const { return MlpActivationBytes() + kHalf * tokens_ * 2 * qkv_; }
  double MlpActivationBytes() const { return kHalf * rows_ * inner_ * ActivationPasses(); }
  double ActivationPasses() const {
    if (model_.HasExperts() && stack_.experts.fused_mlp) return kFusedActivation;
    if (model_.HasExperts() && model_.biased_experts) return kBiasedActivation;
    return model_.gated ? kActivation : 2;
  }
  double ScoreBytes(double passes) const {
    if (stack_.fused_attention) return 0;
    return kHalf * Scores() * D(model_.sequence_length) * D(model_.sequence_length) * passes;
  }
  // Programs of the time before fused attention add the gradients of a block to those of earlier
  // micro-batches in a kernel that reads both and writes their sum; later ones do it in the
  // product.
  double GradientSumBytes() const {
    if (stack_.fused_attention || run_.zero_stage >= 3) return 0;
    const double sums = 1 - 1 / Passes();
    return sums * (kHalf + 2 * stack_.gradient_bytes) * (DenseOfBlock() + ExpertsOfBlock());
  }
  double QuantizedBytes() const {
    if (format_ == nullptr) return 0;
    const bool fused = stack_.experts.fused_mlp;
    const double read = model_.HasExperts() ? kPlainCast : kCast;
    const double made = !model_.HasExperts() ? kCast : fused ? kFusedCast : kPlainCast;
    return kCast * tokens_ * qkv_ + rows_ * (read * width_ + made * (up_ + inner_));
  }

  void AddCommunication(PassSeconds& pass, double hops) const {
    if (run_.tensor > 1) {
      const double each =
          AllReduceSeconds(device_, stack_, run_.tensor, CeilDiv(run_.tensor, device_.per_node),
                           kHalf * tokens_ * width_);
      pass.tensor = 2 * each * (stack_.overlaps_tensor_parallel ? 1 - stack_.overlap : 1);
    }
    if (run_.context > 1) {
      // Keys and values go round the ring behind attention.
      const double bytes = kHalf * tokens_ * 2 * D(model_.key_heads) * HeadWidth() / D(run_.tensor);
      const double seconds = hops * bytes * D(run_.context - 1) /
                             LinkRate(run_.tensor * run_.context > device_.per_node);
      pass.context = std::max(0.0, seconds - pass.attention);
    }
  }

  // Rows go to their experts and results come back. Each tensor-parallel rank of an expert sends
  // its part.
  void AddExpertCommunication(PassSeconds& pass) const {
    if (run_.expert == 1) return;
    const int64_t between =
        run_.expert_tensor > 0 ? run_.expert_tensor : run_.tensor * run_.context;
    const int64_t on_machine = std::max<int64_t>(1, device_.per_node / between);
    const double bytes = kHalf * rows_ * width_ / D(run_.ExpertTensor());
    AllToAllBytes traffic = AllToAllTraffic(run_.expert, on_machine, bytes);
    if (stack_.experts.sends_once) {
      const double near = D(std::min(run_.expert, on_machine));
      traffic = DispatchTraffic(run_.expert, on_machine, bytes / D(model_.experts_per_token),
                                Meets(experts_), Meets(experts_ * near));
    }
    const double each = AllToAllSeconds(LinksOf(device_, stack_), traffic);
    pass.expert = 2 * each * (stack_.experts.overlaps_sends ? 1 - stack_.overlap : 1);
  }

  // The chance that a token meets one of this many experts.
  double Meets(double experts) const {
    double none = 1;
    for (int64_t i = 0; i < model_.experts_per_token; ++i) {
      none *= std::max(0.0, 1 - experts / D(model_.experts - i));
    }
    return 1 - none;
  }

  double LinkRate(bool crosses_machines) const {
    return crosses_machines ? device_.network_bytes_per_second * stack_.network_share
                            : device_.link_bytes_per_second * stack_.link_share;
  }

  // What of a forward pass runs once more.
  PassSeconds Again(const PassSeconds& forward) const {
    if (run_.recomputation == Recomputation::kBlock) return forward;
    if (run_.recomputation == Recomputation::kElementwise) {
      return {.memory_bound = (NormBytes() + MlpActivationBytes()) / bandwidth_};
    }
    if (run_.recomputation == Recomputation::kNone || stack_.fused_attention) return {};
    return {.attention = forward.attention, .memory_bound = ScoreBytes(kScorePasses) / bandwidth_};
  }

  // Classifier and loss of a micro-batch.
  double Head() const {
    const double columns = D(model_.vocabulary) / D(run_.tensor);
    const double passes = stack_.fused_attention ? kFusedLoss : kPlainLoss;
    const double bytes = tokens_ * columns * (kHalf + 4 * passes);
    return HalfProduct(tokens_, columns, width_) + HalfProduct(tokens_, width_, columns) +
           HalfProduct(width_, columns, tokens_) + bytes / bandwidth_;
  }

  // Sending a stage's result on and its gradient back.
  double Hop() const {
    if (run_.pipeline == 1) return 0;
    const bool crosses = run_.tensor * run_.context * run_.data >= device_.per_node;
    const double bytes = kHalf * tokens_ * width_ / D(run_.tensor);
    return 2 * (stack_.latency_seconds + bytes / LinkRate(crosses));
  }

  int64_t Replicas() const { return run_.data * run_.context; }
  int64_t ExpertReplicas() const { return run_.ExpertReplicas(); }
  int64_t StageNodes() const { return CeilDiv(run_.tensor * Replicas(), device_.per_node); }
  // All-reduce of this many bytes of each parameter: those of experts among fewer ranks, which are
  // as far apart as they can be.
  double AllReduce(double bytes, double dense, double experts) const {
    const auto among = [&](int64_t replicas, double parameters) {
      return AllReduceSeconds(device_, stack_, replicas, std::min(replicas, StageNodes()),
                              bytes * parameters);
    };
    return among(Replicas(), dense) + (experts > 0 ? among(ExpertReplicas(), experts) : 0);
  }
  double DenseOfBlock() const { return ParametersOfBlock(model_).dense / D(run_.tensor); }
  double ExpertsOfBlock() const {
    return ParametersOfBlock(model_).experts / D(run_.ExpertTensor() * run_.expert);
  }
  // In the middle of the pipeline, where all wait for the rank that has most.
  double Blocks() const { return D(BlocksAt(stack_, run_, run_.pipeline / 2)); }
  double DenseParameters() const {
    return Blocks() * DenseOfBlock() + TableParametersAt(run_, 0) / D(run_.tensor);
  }
  double ExpertParameters() const { return Blocks() * ExpertsOfBlock(); }
  double Shards(int64_t replicas) const { return run_.zero_stage > 0 ? D(replicas) : 1; }

  // With sharded parameters: what a block adds to its passes by gathering weights before each and
  // scattering gradients after.
  double Gathers(double forward, double backward) const {
    if (run_.zero_stage < 3) return 0;
    const double gather = AllReduce(kHalf, DenseOfBlock(), ExpertsOfBlock()) / 2;
    const double scatter = AllReduce(stack_.gradient_bytes, DenseOfBlock(), ExpertsOfBlock()) / 2;
    const auto exposed = [&](double compute, double communication) {
      return std::max(compute, communication) - compute +
             (1 - stack_.overlap) * std::min(compute, communication);
    };
    return exposed(forward, gather) + exposed(backward, gather + scatter);
  }

  // What of the exchange of gradients, and of new parameters, does not hide behind `beside`
  // seconds.
  double Reduction(double beside) const {
    if (run_.zero_stage >= 3 || (Replicas() == 1 && ExpertReplicas() == 1)) return 0;
    const auto all_reduce = [&](double bytes) {
      return AllReduce(bytes, DenseParameters(), ExpertParameters());
    };
    double seconds = all_reduce(stack_.gradient_bytes);
    if (run_.zero_stage > 0) seconds = seconds / 2 + all_reduce(kHalf) / 2;
    return seconds - std::min(seconds * stack_.overlap, beside);
  }

  // The first and the last stage hold the table of tokens that the classifier shares, and add up
  // their gradients of it.
  double TiedReduction() const {
    if (run_.pipeline == 1 || model_.untied_classifier) return 0;
    const bool crosses = run_.tensor * Replicas() * (run_.pipeline - 1) >= device_.per_node;
    const double parameters = TableParametersAt(run_, 0) / D(run_.tensor);
    return AllReduceSeconds(device_, stack_, 2, crosses ? 2 : 1,
                            stack_.gradient_bytes * parameters);
  }

  const AcceleratorSpec& device_;
  const SoftwareStack& stack_;
  const ClusterRun& run_;
  const DecoderShape& model_;
  double tokens_;
  double width_;
  double attended_;  ///< Columns of attention's result.
  double qkv_;
  double inner_;
  double up_;
  double experts_;  ///< Of a rank.
  double rows_;     ///< Of all its MLPs.
  double bandwidth_;
  const ProductFormat* format_;  ///< Of products with weights, or null.
  ProductRates products_;
  ProductRates half_products_;
  ProductRates score_products_;
};

Status Check(const AcceleratorSpec& device, const SoftwareStack& stack, const ClusterRun& run) {
  const auto positive = {run.model.layers,
                         run.model.width,
                         run.model.heads,
                         run.model.key_heads,
                         run.model.mlp_width,
                         run.model.vocabulary,
                         run.model.sequence_length,
                         run.tensor,
                         run.context,
                         run.data,
                         run.expert,
                         run.model.experts,
                         run.model.experts_per_token,
                         run.pipeline,
                         run.stages_per_rank,
                         run.micro_batch,
                         run.global_batch};
  for (const int64_t value : positive) {
    if (value < 1) return InvalidError("a size or degree of the run is " + std::to_string(value));
  }
  if (device.Find(run.precision) == nullptr) {
    return InvalidError(device.name + " has no products of " + run.precision);
  }
  if (run.global_batch % (run.data * run.micro_batch) != 0) {
    return InvalidError("a batch of " + std::to_string(run.global_batch) + " sequences on " +
                        std::to_string(run.data) + " replicas with micro-batches of " +
                        std::to_string(run.micro_batch) +
                        "; hint: it is a multiple of their product");
  }
  if (run.model.expert_imbalance < 1) {
    return InvalidError("an imbalance of experts of " + std::to_string(run.model.expert_imbalance) +
                        "; hint: 1 is an equal share of the rows for each rank");
  }
  if (run.expert_tensor < 0 || run.expert_tensor > run.tensor ||
      (run.expert_tensor > 0 && run.tensor % run.expert_tensor != 0)) {
    return InvalidError("each matrix of an expert on " + std::to_string(run.expert_tensor) +
                        " of " + std::to_string(run.tensor) +
                        " tensor-parallel ranks; hint: a divisor, or 0 for all of them");
  }
  // Where experts are divided in their own way, all ranks of a stage may share them.
  const int64_t expert_data_ranks =
      run.expert_tensor > 0 ? run.tensor * run.context * run.data / run.expert_tensor : run.data;
  if (run.model.experts_per_token > run.model.experts || run.model.experts % run.expert != 0 ||
      expert_data_ranks % run.expert != 0) {
    return InvalidError(
        std::to_string(run.model.experts) + " experts, " +
        std::to_string(run.model.experts_per_token) + " of them for each token, on " +
        std::to_string(run.expert) + " of " + std::to_string(expert_data_ranks) +
        (run.expert_tensor > 0 ? "" : " data-parallel") + " ranks; hint: the ranks divide both");
  }
  const int64_t tables = stack.tables_are_blocks && run.pipeline > 1 ? 2 : 0;
  if (run.pipeline * run.stages_per_rank > run.model.layers + tables) {
    return InvalidError(std::to_string(run.pipeline * run.stages_per_rank) +
                        " pipeline stages for " + std::to_string(run.model.layers) + " blocks");
  }
  return OkStatus();
}

}  // namespace

std::string_view NameOf(Recomputation recomputation) {
  switch (recomputation) {
    case Recomputation::kNone:
      return "none";
    case Recomputation::kAttention:
      return "attention";
    case Recomputation::kElementwise:
      return "norms and activations";
    case Recomputation::kBlock:
      return "blocks";
  }
  return "";
}

BlockParameters ParametersOfBlock(const DecoderShape& model) {
  const double width = D(model.width);
  const double heads = D(2 * model.heads + 2 * model.key_heads) * D(model.HeadWidth());
  const double mlp = D(model.mlp_width) * (model.gated ? 3 : 2);
  if (!model.HasExperts()) return {width * (heads + mlp), 0};
  return {width * (heads + D(model.experts)), width * mlp * D(model.experts)};
}

double TableParametersAt(const ClusterRun& run, int64_t position) {
  const double table = D(run.model.vocabulary) * D(run.model.width);
  if (run.pipeline == 1) return run.model.untied_classifier ? 2 * table : table;
  return position == 0 || position == run.pipeline - 1 ? table : 0;
}

int64_t BlocksAt(const SoftwareStack& stack, const ClusterRun& run, int64_t position) {
  const int64_t tables = stack.tables_are_blocks && run.pipeline > 1 ? 1 : 0;
  const int64_t stages = run.pipeline * run.stages_per_rank;
  const int64_t most = run.stages_per_rank * CeilDiv(run.model.layers + 2 * tables, stages);
  if (run.pipeline == 1) return run.model.layers;
  if (position == 0) return most - tables;
  if (position < run.pipeline - 1) return most;
  if (run.stages_per_rank > 1) return most - tables;
  const int64_t before = (most - tables) + (run.pipeline - 2) * most;
  return std::clamp<int64_t>(run.model.layers - before, 1, most - tables);
}

Result<StepLedger> PredictStep(const AcceleratorSpec& device, const SoftwareStack& stack,
                               const ClusterRun& run) {
  WEFT_RETURN_IF_ERROR(Check(device, stack, run));
  return StepModel(device, stack, run).Run();
}

}  // namespace weft::planner
