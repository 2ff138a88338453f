#include "coordinator/planner/cluster/step_model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

namespace weft::planner {
namespace {

// Elements of k after which a tile's pipeline is full.
constexpr double kTileStart = 160;
// How far a last wave that is not full costs a whole one: libraries split k and interleave tiles.
constexpr double kWaveShare = 0.5;
constexpr double kHalf = 2;  // bytes of bf16 and fp16
// Kernels of a block: the norms, products and what lies between them, forward and backward.
constexpr double kFusedForward = 16, kFusedBackward = 24;
constexpr double kPlainForward = 30, kPlainBackward = 40;
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

struct TileShape {
  double per_m, per_n;  ///< Of its sides, one over.
  double cost;          ///< Elements over the share of the rate that such tiles reach.
};
constexpr TileShape Tile(double m, double n, double share) {
  return {1 / m, 1 / n, m * n / share};
}
constexpr std::array<TileShape, 4> kTiles = {
    {Tile(256, 128, 1.0), Tile(128, 128, 0.95), Tile(128, 64, 0.8), Tile(64, 64, 0.6)}};

double D(int64_t value) {
  return static_cast<double>(value);
}

/// Of a value far below 2^63; std::ceil is a call on baseline x86-64.
double Ceil(double value) {
  const double below = D(static_cast<int64_t>(value));
  return below < value ? below + 1 : below;
}

int64_t CeilDiv(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

/// What the times of products of one precision share.
class ProductRates {
 public:
  ProductRates(const AcceleratorSpec& device, const SoftwareStack& stack,
               std::string_view precision)
      : multiprocessors_(device.multiprocessors),
        operand_(precision == "fp8"    ? 1
                 : precision == "fp32" ? 4
                                       : kHalf),
        bandwidth_(device.memory_bytes_per_second * stack.memory_share) {
    const ProductPeak* peak = device.Find(precision);
    rate_ = peak->flops_per_second * peak->sustained_share * stack.product_share;
  }

  double Seconds(double m, double n, double k, double batch = 1) const {
    double elements = INFINITY;  // of tiles, as if all reached the rate of the best
    for (const TileShape& tile : kTiles) {
      const double tiles = Ceil(m * tile.per_m) * Ceil(n * tile.per_n) * batch;
      const double full = tiles / multiprocessors_;
      const double waves = kWaveShare * Ceil(full) + (1 - kWaveShare) * std::max(1.0, full);
      elements = std::min(elements, waves * tile.cost);
    }
    const double flops = elements * multiprocessors_ * 2 * (k + kTileStart);
    const double bytes = batch * (operand_ * (m * k + k * n) + std::max(operand_, kHalf) * m * n);
    return std::max(flops / rate_, bytes / bandwidth_);
  }

 private:
  double multiprocessors_;
  double operand_;  ///< Bytes.
  double bandwidth_;
  double rate_ = 0;
};

/// Latencies of an all-reduce, in those of one between two ranks: the steps of its ring, or, where
/// they are fewer, up and down two trees.
double Hops(int64_t ranks) {
  constexpr int64_t kRing = 16;  // up to here its steps are fewer
  return ranks <= kRing ? D(ranks - 1) : std::min(D(ranks - 1), 4 * std::log2(D(ranks)));
}

/// A forward or backward pass of a block for a micro-batch.
struct PassSeconds {
  double products = 0;
  double attention = 0;
  double memory_bound = 0;
  double tensor = 0;
  double context = 0;
  double host = 0;  ///< To start its kernels.

  double device() const { return products + attention + memory_bound + tensor + context; }
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
        qkv_(width_ / D(model_.heads) * D(model_.heads + 2 * model_.key_heads) / D(run.tensor)),
        inner_(D(model_.mlp_width) / D(run.tensor)),
        up_(inner_ * (model_.gated ? 2 : 1)),
        bandwidth_(device.memory_bytes_per_second * stack.memory_share),
        products_(device, stack, run.precision),
        half_products_(device, stack, HalfPrecision()) {}

  StepLedger Run() const {
    const PassSeconds forward = Forward(), backward = Backward();
    const PassSeconds again = Again(forward);
    const double layers = D(model_.layers) / D(run_.pipeline);
    const double passes = Passes();
    const double gathers = Gathers(forward.device(), backward.device() + again.device());
    // The processor runs ahead of the device within the forward pass and within the backward pass,
    // where a block is recomputed just before its gradients.
    const double device = forward.device() + backward.device() + again.device();
    const double host_wait =
        std::max(0.0, forward.host - forward.device()) +
        std::max(0.0, again.host + backward.host - again.device() - backward.device());
    const double stage = layers * (device + host_wait + gathers);
    const double head = Head();
    const double hop = Hop();

    StepLedger ledger;
    const double blocks = passes * layers;
    // The stage with the classifier waits for none; one of the others sends and receives.
    const double sends = hop * D(run_.stages_per_rank);
    ledger.products =
        blocks * (forward.products + backward.products) + (head >= sends ? passes * head : 0);
    ledger.attention = blocks * (forward.attention + backward.attention);
    ledger.memory_bound = blocks * (forward.memory_bound + backward.memory_bound);
    ledger.recomputed = blocks * again.device();
    ledger.host_wait = blocks * host_wait;
    ledger.tensor_communication = blocks * (forward.tensor + backward.tensor);
    ledger.context_communication = blocks * (forward.context + backward.context);
    ledger.pipeline_communication = head >= sends ? 0 : passes * sends;
    ledger.bubble = D(run_.pipeline - 1) * (stage / D(run_.stages_per_rank) + hop);
    ledger.data_communication = blocks * gathers + Reduction();
    ledger.optimizer = Parameters() / Shards() * kOptimizerBytes / bandwidth_;
    ledger.fixed = stack_.step_seconds;
    return ledger;
  }

 private:
  double Product(double m, double n, double k) const { return products_.Seconds(m, n, k); }
  double HalfProduct(double m, double n, double k, double batch = 1) const {
    return half_products_.Seconds(m, n, k, batch);
  }
  std::string_view HalfPrecision() const {
    return run_.precision == "fp8" ? "bf16" : std::string_view(run_.precision);
  }
  double Passes() const { return D(run_.global_batch) / D(run_.data * run_.micro_batch); }
  double HeadsPerRank() const { return D(model_.heads) / D(run_.tensor); }
  double HeadWidth() const { return width_ / D(model_.heads); }
  double Scores() const { return D(run_.micro_batch) * HeadsPerRank(); }

  PassSeconds Forward() const {
    PassSeconds pass;
    const double out = width_ / D(run_.tensor);
    pass.products = Product(tokens_, qkv_, width_) + Product(tokens_, width_, out) +
                    Product(tokens_, up_, width_) + Product(tokens_, width_, inner_);
    pass.attention = Attention();
    pass.memory_bound =
        (ResidualBytes() + ActivationBytes() + ScoreBytes(kScorePasses) + QuantizedBytes()) /
        bandwidth_;
    AddCommunication(pass, 1);
    double kernels = stack_.fused_attention ? kFusedForward : kPlainForward;
    if (!stack_.fused_attention && std::fmod(Scores(), 4) != 0) kernels += kPlainScores;
    if (run_.tensor > 1) kernels += 2;
    pass.host = kernels * stack_.host_seconds;
    return pass;
  }

  PassSeconds Backward() const {
    PassSeconds pass;
    const double out = width_ / D(run_.tensor);
    const auto both = [&](double n, double k) {
      return Product(tokens_, k, n) + Product(k, n, tokens_);
    };
    pass.products =
        both(qkv_, width_) + both(width_, out) + both(up_, width_) + both(width_, inner_);
    pass.attention = Attention() * (stack_.fused_attention ? kAttentionBackward : 2);
    pass.memory_bound = (2 * (ResidualBytes() + ActivationBytes()) +
                         ScoreBytes(kBackwardScorePasses) + QuantizedBytes() + GradientSumBytes()) /
                        bandwidth_;
    AddCommunication(pass, 2);
    double kernels = stack_.fused_attention ? kFusedBackward : kPlainBackward;
    if (run_.tensor > 1) kernels += 2;
    pass.host = kernels * stack_.host_seconds * kBackwardHost;
    return pass;
  }

  double Attention() const {
    if (stack_.fused_attention) {
      const double causal = 2 * tokens_ * D(model_.sequence_length) * width_ / D(run_.tensor);
      const ProductPeak* peak = device_.Find(HalfPrecision());
      return causal / (peak->flops_per_second * device_.attention_share * stack_.attention_share *
                       stack_.product_share);
    }
    const double s = D(model_.sequence_length);
    return HalfProduct(s, s, HeadWidth(), Scores()) + HalfProduct(s, HeadWidth(), s, Scores());
  }

  // Norms, and the additions to the residual stream with their dropout.
  double ResidualBytes() const {
    const bool shared = stack_.sequence_parallel && run_.tensor > 1;
    return kHalf * tokens_ * width_ * (2 * 2 + 2 * 3) / (shared ? D(run_.tensor) : 1);
  }
  double ActivationBytes() const {
    return kHalf * tokens_ * (inner_ * (model_.gated ? 3 : 2) + 2 * qkv_);
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
    return sums * (kHalf + 2 * stack_.gradient_bytes) * BlockParameters();
  }
  double QuantizedBytes() const {
    if (run_.precision != "fp8") return 0;
    return 1.5 * kHalf * tokens_ * (width_ + qkv_ + up_ + inner_);
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

  double LinkRate(bool crosses_machines) const {
    return crosses_machines ? device_.network_bytes_per_second * stack_.network_share
                            : device_.link_bytes_per_second * stack_.link_share;
  }

  // What of a forward pass runs once more.
  PassSeconds Again(const PassSeconds& forward) const {
    if (run_.recomputation == Recomputation::kBlock) return forward;
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
  int64_t ReplicaNodes() const {
    return std::min(Replicas(), CeilDiv(run_.tensor * Replicas(), device_.per_node));
  }
  double AllReduce(double bytes) const {
    return AllReduceSeconds(device_, stack_, Replicas(), ReplicaNodes(), bytes);
  }
  double BlockParameters() const {
    return width_ * (qkv_ + width_ / D(run_.tensor) + up_ + inner_);
  }
  double Parameters() const {
    return D(model_.layers) / D(run_.pipeline) * BlockParameters() +
           D(model_.vocabulary) * width_ / D(run_.tensor);
  }
  double Shards() const { return run_.zero_stage > 0 ? D(Replicas()) : 1; }

  // With sharded parameters: what a block adds to its passes by gathering weights before each and
  // scattering gradients after.
  double Gathers(double forward, double backward) const {
    if (run_.zero_stage < 3) return 0;
    const double gather = AllReduce(kHalf * BlockParameters()) / 2;
    const double scatter = AllReduce(stack_.gradient_bytes * BlockParameters()) / 2;
    const auto exposed = [&](double compute, double communication) {
      return std::max(compute, communication) - compute +
             (1 - stack_.overlap) * std::min(compute, communication);
    };
    return exposed(forward, gather) + exposed(backward, gather + scatter);
  }

  double Reduction() const {
    if (run_.zero_stage >= 3 || Replicas() == 1) return 0;
    double seconds = AllReduce(stack_.gradient_bytes * Parameters());
    if (run_.zero_stage > 0) seconds = seconds / 2 + AllReduce(kHalf * Parameters()) / 2;
    return seconds * (1 - stack_.overlap);
  }

  const AcceleratorSpec& device_;
  const SoftwareStack& stack_;
  const ClusterRun& run_;
  const DecoderShape& model_;
  double tokens_;
  double width_;
  double qkv_;
  double inner_;
  double up_;
  double bandwidth_;
  ProductRates products_;
  ProductRates half_products_;
};

Status Check(const AcceleratorSpec& device, const ClusterRun& run) {
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
  if (run.pipeline * run.stages_per_rank > run.model.layers) {
    return InvalidError(std::to_string(run.pipeline * run.stages_per_rank) +
                        " pipeline stages for " + std::to_string(run.model.layers) + " blocks");
  }
  return OkStatus();
}

}  // namespace

double ProductSeconds(const AcceleratorSpec& device, const SoftwareStack& stack,
                      std::string_view precision, double m, double n, double k, double batch) {
  return ProductRates(device, stack, precision).Seconds(m, n, k, batch);
}

double AllReduceSeconds(const AcceleratorSpec& device, const SoftwareStack& stack, int64_t ranks,
                        int64_t nodes, double bytes) {
  if (ranks <= 1) return 0;
  const double inside = device.link_bytes_per_second * stack.link_share;
  const double share = D(ranks - 1) / D(ranks);
  if (nodes <= 1) return stack.latency_seconds * Hops(ranks) + 2 * share * bytes / inside;
  // As many rings as ranks on a machine, each of which leaves it once, by another's network card.
  const double between =
      device.network_bytes_per_second * stack.network_share * D(ranks) / D(nodes);
  const double latency = stack.latency_seconds * std::max(2.0, Hops(ranks));
  return latency + 2 * share * bytes / std::min(inside, between);
}

Result<StepLedger> PredictStep(const AcceleratorSpec& device, const SoftwareStack& stack,
                               const ClusterRun& run) {
  WEFT_RETURN_IF_ERROR(Check(device, run));
  return StepModel(device, stack, run).Run();
}

}  // namespace weft::planner
