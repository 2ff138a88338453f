#include "coordinator/planner/time_model.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "common/model/gradient_bytes.h"
#include "common/model/model_counts.h"
#include "common/model/technique_cost.h"
#include "common/model/tensor_traffic.h"
#include "common/number.h"

namespace weft::planner {
namespace {

// Of entering and leaving a parallel loop, checks, allocation, what each thread adds at the
// barrier.
constexpr double kSecondsPerOperationAndThread = 0.3e-6;
constexpr double kOperationsPerBlock = 26;         // forward and backward
constexpr double kForwardOperationsPerBlock = 10;  // of them
constexpr double kAttentionOperations = 2;         // of these, inside of attention
constexpr double kOperationsPerPass = 40;          // embedding, classifier, loading the batch
// Share of the backward pass that can hide a collective: on a CPU it takes cores from compute.
constexpr double kOverlap = 0.5;

/// Of a reduce-scatter or an all-gather of `bytes` over `ranks`, in so many collectives: half of
/// what all-reduces take.
double ScatterSeconds(int64_t ranks, double bytes, double collectives, const Wire& wire) {
  const double others = D(ranks - 1);
  return others / D(ranks) * bytes / wire.bytes_per_second +
         collectives * others * wire.message_seconds;
}

/// Share of the products beside it that can hide a collective. Where ranks take turns on processors
/// there are products of others to be computed meanwhile.
double Overlap(const StepInputs& inputs, const RateModel& rates) {
  return kOverlap / rates.RanksPerProcessor(inputs.threads, inputs.ranks_on_worker);
}

bool IsInBlocks(const Gemm& gemm) {
  return gemm.name == "qkv" || gemm.name == "attention output" || gemm.name == "mlp up" ||
         gemm.name == "mlp down";
}

/// Of files, for one rank.
double FileRate(const StepInputs& inputs, const RateModel& rates) {
  return rates.FileBytesPerSecond(std::max<int64_t>(inputs.ranks_on_worker, 1));
}

/// How long a pass stands still for what goes and comes block by block beside its blocks: in the
/// forward pass activations go down and weights come up, in the backward pass both come up. The
/// first weights have nothing to hide behind. A schedule is followed step by step. What stands in a
/// file is read or written meanwhile, at the rate `file`. Where some weights stay, so many of the
/// others are said to come beside each block, be they computed with a few blocks later.
double BlockLinkSeconds(const StepInputs& inputs, const PassCost& pass, const TimeBreakdown& time,
                        const StreamedBytes& weights, double bandwidth, double link, double file) {
  const BlockSeconds block = SecondsOfBlock(pass, inputs.shape, bandwidth);
  if (!inputs.schedule.empty()) {
    std::vector<StepLoad> loads = LoadsOf(inputs.schedule, block);
    for (size_t i = 0; i < loads.size(); ++i) {
      loads[i].bytes = SavedByStep(inputs.schedule[i], inputs.block);
    }
    return TransferWaits(inputs.schedule, loads, 1 / link);
  }
  const double blocks = D(inputs.shape.spec.layers);
  const double neighbours = std::max(blocks - 1, 1.0);
  const double forward = block.forward;
  const double passes = D(inputs.accumulation_steps);
  const double backward = block.backward + time.recompute_seconds / passes / blocks;
  const double down = D(inputs.activation_bytes) / link / neighbours;
  const double up = D(weights.forward - weights.first) / link / (blocks + 1);
  const double back = D(weights.backward + inputs.activation_bytes) / link / neighbours;
  const double read = D(inputs.file_pass.forward - inputs.file_pass.first) / file / (blocks + 1);
  const double moved = D(inputs.file_pass.backward) / file / neighbours;
  return D(weights.first) / link + D(inputs.file_pass.first) / file +
         neighbours * std::max(0.0, std::max({down, up, read}) - forward) +
         neighbours * std::max(0.0, std::max(back, moved) - backward);
}

/// How long a step stands still for gradients that go down and weights that come up where the host
/// makes the update. Gradients go beside the backward pass, but for the last bucket; sums of
/// earlier passes come up before they are added to, where a rank has them; of reduced ones its part
/// goes down. Weights go up beside the update, where they are not to be gathered first, and the
/// first forward pass after it. Of units that are kept on the device nothing goes: behind the
/// backward pass of the first ones the last bucket of the others hides, and before the last ones
/// the backward pass has nothing to send, and the forward pass nothing to wait for.
double StateLinkSeconds(const StepInputs& inputs, const PassCost& pass, double optimizer_seconds,
                        double link) {
  const double passes = D(inputs.accumulation_steps);
  const GradientLinkBytes gradients =
      GradientsOverLink(inputs.shape, inputs.zero_stage, inputs.sharers);
  const double trained = D(inputs.shape.trained - inputs.kept.trained);
  const double going_share = trained / std::max(1.0, D(inputs.shape.trained));
  // The backward pass of a block takes twice as long as its forward pass.
  const double of_block = pass.block_forward_gemm_seconds;
  const double of_first = 2 * of_block * D(inputs.kept.first_blocks);
  const double of_last = of_block * D(inputs.kept.last_blocks);
  const auto exposed = [&](int64_t bytes) {
    const double going = going_share * D(bytes) / link;
    const double buckets = std::max(1.0, 4 * trained / D(inputs.bucket_bytes));
    return std::max(
        {0.0, going - (pass.backward_gemm_seconds - 2 * of_last), going / buckets - of_first});
  };
  const double down = (passes - 1) * exposed(gradients.earlier_down) + exposed(gradients.down);
  const double sums = (passes - 1) * going_share * D(gradients.earlier_up) / link;
  const double forward = pass.gemm_seconds - pass.backward_gemm_seconds - of_last;
  const double beside = forward + (inputs.sharers > 1 ? 0 : optimizer_seconds);
  const double up = std::max(0.0, D(inputs.uploaded_weight_bytes) / link - beside);
  return down + sums + up;
}

/// The same of a step: in its first pass those that stay come, too.
double StepLinkSeconds(const StepInputs& inputs, const PassCost& pass, const TimeBreakdown& time,
                       double bandwidth, double link, double file) {
  StreamedBytes first = inputs.streamed;
  first.forward += inputs.resident_weight_bytes;
  const double later = D(inputs.accumulation_steps - 1);
  const double in_later =
      later > 0 ? BlockLinkSeconds(inputs, pass, time, inputs.streamed, bandwidth, link, file) : 0;
  return BlockLinkSeconds(inputs, pass, time, first, bandwidth, link, file) + later * in_later;
}

/// Of an update whose tiles are read from a file and written to it beside the update of others.
double FileSeconds(const StepInputs& inputs, const RateModel& rates) {
  return D(inputs.file_bytes) / FileRate(inputs, rates);
}

/// How long such an update goes on beside the next forward pass, on a CPU: not of ranks that share
/// it.
double BesideSeconds(const StepInputs& inputs, const PassCost& pass, double bandwidth) {
  if (!inputs.offloads_optimizer || inputs.sharers > 1) return 0;
  return D(inputs.shape.spec.layers) * SecondsOfBlock(pass, inputs.shape, bandwidth).forward;
}

/// What a step on a GPU takes otherwise where some of it stands on the host.
void AddHostTier(const StepInputs& inputs, const PassCost& pass, const RateModel& rates,
                 TimeBreakdown& time) {
  const double bandwidth = rates.device()->MemoryBytesPerSecond();
  const double link = rates.device()->HostLinkBytesPerSecond();
  if (inputs.offloads_optimizer) {
    // As on the device; matrices that go up in another type are read and converted beside it.
    const PrecisionRecipe& precision = *inputs.precision;
    const double stored = D(ElementBytes(precision.matrices));
    // Those that ranks gather are converted in their passes.
    const bool converts = precision.matrices != precision.products && !inputs.SharesParameters();
    const double converted = converts ? stored + D(ElementBytes(precision.products)) : 0;
    const double bytes =
        inputs.Updated() * (5 * 4 + 2 * stored + 4) + D(inputs.shape.packed) * converted;
    time.optimizer_seconds =
        std::max(bytes / rates.HostBytesPerSecond(inputs.threads, inputs.ranks_on_worker),
                 FileSeconds(inputs, rates));
    time.exposed_communication_seconds +=
        StateLinkSeconds(inputs, pass, time.optimizer_seconds, link);
  }
  if (inputs.activation_bytes == 0 && inputs.streamed.forward == 0) return;
  time.exposed_communication_seconds +=
      StepLinkSeconds(inputs, pass, time, bandwidth, link, FileRate(inputs, rates));
}

/// Seconds to draw which weights of a layer's attention are dropped, whose products have so many
/// FLOPs: each takes as long as so many of a product in f32 (Philox, a block for 8 weights).
double SecondsOfDraws(const ModelSpec& model, double product_flops, const RateModel& rates,
                      int64_t threads) {
  if (AttentionDropoutOf(model) == 0) return 0;
  constexpr double kFlopsOfDraw = 50;
  constexpr int64_t kLarge = 1024;
  const double weights = product_flops / (2 * D(HeadWidth(model)));
  return weights * kFlopsOfDraw /
         rates.With(DType::kF32).GemmFlopsPerSecond(kLarge, kLarge, kLarge, threads);
}

/// The pass where its products take so many times longer.
PassCost SlowedBy(PassCost pass, double times) {
  pass.gemm_seconds *= times;
  pass.backward_gemm_seconds *= times;
  pass.block_forward_gemm_seconds *= times;
  pass.attention_forward_gemm_seconds *= times;
  pass.attention_product_seconds *= times;
  pass.step_product_seconds *= times;
  return pass;
}

}  // namespace

MeasuredShape BlockOfPass(const ModelShape& shape, int64_t micro_batch, int64_t sequence_length,
                          DType products, int64_t sharers) {
  return {.products = std::string(GemmRateName(products)),
          .experts = shape.spec.experts,
          .width = shape.spec.width / shape.tensor_rows,
          .tensor = shape.TensorColumns(),
          .tokens = micro_batch * sequence_length / sharers,
          .sequence_length = sequence_length};
}

double Fp8Share(const ModelSpec& model, const PrecisionRecipe& precision, const Fp8Spec& fp8) {
  if (precision.block_products != ProductFormat::kFp8) return 0;
  const int64_t blocks = DistinctBlocks(model);
  return D(blocks - fp8.bf16_first_blocks - fp8.bf16_last_blocks) / D(blocks);
}

PassCost CostOfPass(const ModelShape& shape, int64_t micro_batch, int64_t sequence_length,
                    const PrecisionRecipe& precision, double fp8_share, double dropout,
                    const RateModel& rates, int64_t threads, int64_t sharers) {
  const int64_t tokens = micro_batch * sequence_length / sharers;
  const int64_t element = ElementBytes(precision.activations);
  PassCost cost;
  cost.fp8_share = rates.device() != nullptr ? fp8_share : 0;
  for (const Gemm& gemm : WeightGemms(shape, tokens, sequence_length, element)) {
    double seconds = gemm.Flops() / rates.GemmFlopsPerSecond(gemm.m, gemm.n, gemm.k, threads);
    if (cost.fp8_share > 0 && IsInBlocks(gemm)) {
      const double codes =
          D(gemm.count) * rates.device()->ProductSeconds("fp8", D(gemm.m), D(gemm.n), D(gemm.k));
      seconds += cost.fp8_share * (codes - seconds);
    }
    // The classifier's columns are already those of a rank; each has the whole router.
    const bool whole = gemm.name == "classifier" || gemm.name == "router";
    seconds /= D(whole ? shape.tensor_rows : shape.tensor);
    cost.gemm_seconds += seconds;
    if (gemm.pass != GemmPass::kForward) {
      cost.backward_gemm_seconds += seconds;
    } else if (gemm.name != "classifier") {
      cost.block_forward_gemm_seconds += seconds / D(shape.spec.layers);
      if (gemm.name == "qkv") {
        cost.attention_forward_gemm_seconds += seconds / D(shape.spec.layers);
      }
    }
  }
  // Attention: 2 products forward, 5 backward (flash attention computes the scores again). Its
  // dropout is drawn again in the backward pass, on a GPU in each of two kernels.
  const ModelSpec& model = shape.spec;
  const double product_flops =
      TwiceTheKeys(model, sequence_length) * D(model.width) * D(tokens) / D(shape.TensorColumns());
  const double product = product_flops / rates.AttentionFlopsPerSecond(threads);
  const double draw = SecondsOfDraws(model, product_flops, rates, threads);
  const double forward_layer = 2 * product + draw;
  const double backward_layer = 5 * product + (rates.device() != nullptr ? 2 : 1) * draw;
  const double backward_layers = D(model.layers - shape.first_trained_layer);
  cost.gemm_seconds += D(model.layers) * forward_layer + backward_layers * backward_layer;
  cost.backward_gemm_seconds += backward_layers * backward_layer;
  cost.block_forward_gemm_seconds += forward_layer;
  cost.attention_forward_gemm_seconds += forward_layer;
  cost.attention_product_seconds = product;
  if (!rates.calibration().shapes.empty()) {
    const MeasuredShape block =
        BlockOfPass(shape, micro_batch, sequence_length, precision.products, sharers);
    cost = SlowedBy(cost, std::exp(rates.Near(block).deviation));
  }

  // Bytes each token moves, in elements of its width c and of the MLP f. Forward, a norm reads two
  // and writes two, an activation reads its one or two inputs and writes one; backward, a norm
  // moves four and an activation twice as much, and the bias gradients read what the products read.
  const double c = D(model.width) * D(element) / D(shape.tensor_rows);
  const double f = D(MlpWidth(model)) * D(element) / D(shape.TensorColumns());
  const double rows = model.experts > 0 ? D(model.experts_per_token) : 1;
  const double activation = D(MlpInputs(model) + 1) * f * rows;
  const double mask = dropout > 0 ? 2 * 2 * c : 0;  // two a block, read and write
  double block_forward = 2 * 4 * c + activation + mask;
  const double biases = model.family == "llama" ? 0 : 5 * c + f;
  double block_backward = 2 * 4 * c + 2 * activation + biases + mask;
  if (model.experts > 0) {
    // Rows are copied for their experts, and the results read and added up; backward the results
    // are read and written once more.
    block_forward += (3 * rows + 1) * c;
    block_backward += (5 * rows + 1) * c;
  }
  // Casts to FP8 read two bytes and write a code: inputs before the product, once more by columns
  // for the weights' gradients, gradients both ways at once.
  const double width = D(model.width), columns = D(shape.TensorColumns());
  const double part = width / columns, inner = D(MlpWidth(model)) / columns;
  const double inputs = cost.fp8_share * (width + part + rows * (width + inner));
  const double outputs = cost.fp8_share * (width + part + 2 * D(KvWidth(model)) / columns +
                                           rows * (width + D(MlpInputs(model)) * inner));
  block_forward += 3 * inputs;
  block_backward += 3 * inputs + 4 * outputs;
  const double embedding = shape.embeds ? 3 * 4 * D(EmbeddingWidth(model)) + c : 0;
  const double classifier = !shape.has_head ? 0
                                            : D(HeadRows(shape, tokens, sequence_length)) *
                                                  (3 * D(shape.PaddedClasses()) * D(element));
  cost.block_forward_memory_bytes = D(tokens) * block_forward;
  cost.memory_bytes = D(tokens) * (D(model.layers) * block_forward +
                                   backward_layers * block_backward + 2 * embedding + 8 * c) +
                      classifier;
  const StepWork work = StepWorkOf(shape);
  cost.step_f32_numbers = work.f32_numbers;
  cost.step_parameter_numbers = work.parameter_numbers;
  if (!work.products.empty()) {
    const RateModel f32 = rates.With(DType::kF32);
    for (const Gemm& gemm : work.products) {
      cost.step_product_seconds +=
          gemm.Flops() / f32.GemmFlopsPerSecond(gemm.m, gemm.n, gemm.k, threads);
    }
  }
  cost.weight_gradient_bytes = WeightGradientBytes(shape);
  return cost;
}

BlockSeconds SecondsOfBlock(const PassCost& pass, const ModelShape& shape, double bandwidth) {
  const double forward_memory = pass.block_forward_memory_bytes / bandwidth;
  const double backward =
      (pass.backward_gemm_seconds + pass.memory_bytes / bandwidth) / D(shape.spec.layers);
  return {pass.block_forward_gemm_seconds + forward_memory, pass.attention_forward_gemm_seconds,
          backward - forward_memory};
}

double TierLink(int64_t host_link_bytes_per_second, double bandwidth, const RateModel& rates) {
  if (rates.device() != nullptr) return rates.device()->HostLinkBytesPerSecond();
  return host_link_bytes_per_second > 0 ? D(host_link_bytes_per_second)
                                        : bandwidth * rates.calibration().host_link_share;
}

Wire WireOf(const StepInputs& inputs, const RateModel& rates, bool within_worker) {
  const double link = rates.LinkBytesPerSecond(within_worker);
  if (rates.device() != nullptr) return {link, rates.device()->stack().latency_seconds};
  // Processors copy what is sent.
  const double turns = rates.RanksPerProcessor(inputs.threads, inputs.ranks_on_worker);
  return {link / turns, rates.calibration().message_seconds * turns};
}

double TensorSeconds(const StepInputs& inputs, const RateModel& rates) {
  const ModelShape& shape = inputs.shape;
  if (shape.tensor == 1) return 0;
  const TensorPass pass{.shape = shape,
                        .tokens = inputs.tokens,
                        .element_bytes = ElementBytes(inputs.precision->activations),
                        .recomputed_blocks = inputs.recomputed_blocks,
                        .recomputed_attentions = inputs.recomputed_attentions};
  const auto seconds = [&](const TensorTraffic& traffic, int64_t ranks, int64_t span) {
    if (const DeviceModel* device = rates.device()) {
      // Ranks of a column stand apart, yet on no more machines than there are of them.
      const int64_t nodes =
          std::min(ranks, (span + inputs.ranks_on_worker - 1) / inputs.ranks_on_worker);
      const auto all_reduces = [&](int64_t count, int64_t bytes) {
        return count == 0 ? 0.0
                          : D(count) * device->AllReduceSeconds(ranks, nodes,
                                                                rates.LinkBytesPerSecond(false),
                                                                D(bytes) / D(count));
      };
      return all_reduces(traffic.sums, traffic.summed) +
             all_reduces(traffic.gathers, traffic.gathered) / 2;
    }
    const double others = D(ranks - 1);
    const Wire wire = WireOf(inputs, rates, span <= inputs.ranks_on_worker);
    return others / D(ranks) * D(2 * traffic.summed + traffic.gathered) / wire.bytes_per_second +
           others * D(2 * traffic.sums + traffic.gathers) * wire.message_seconds;
  };
  // The ranks of a row are successive ones.
  return seconds(TrafficOfRow(pass), shape.TensorColumns(), shape.TensorColumns()) +
         seconds(TrafficOfColumn(pass), shape.tensor_rows, shape.tensor);
}

double SummandSeconds(const StepInputs& inputs, const RateModel& rates) {
  const ModelShape& shape = inputs.shape;
  if (shape.summands == 0) return 0;
  const double bytes = 4 * D(shape.summands);
  const bool within = shape.tensor <= inputs.ranks_on_worker;
  if (const DeviceModel* device = rates.device()) {
    const int64_t nodes = (shape.tensor + inputs.ranks_on_worker - 1) / inputs.ranks_on_worker;
    return device->AllReduceSeconds(shape.tensor, nodes, rates.LinkBytesPerSecond(false), bytes);
  }
  return 2 * ScatterSeconds(shape.tensor, bytes, 1, WireOf(inputs, rates, within));
}

double ContextSeconds(const StepInputs& inputs, const PassCost& pass, const RateModel& rates) {
  if (inputs.context.ranks == 1) return 0;
  const ModelSpec& model = inputs.shape.spec;
  const int64_t element = ElementBytes(inputs.precision->activations);
  // On processors beside the other ranks.
  const double slower =
      rates.device() != nullptr ? 1 : rates.Slowdown(inputs.threads, inputs.ranks_on_worker);
  const double product = slower * pass.attention_product_seconds;
  // Those that share matrices stand between them.
  const int64_t span = inputs.context.ranks * inputs.shape.tensor;
  const Wire wire = WireOf(inputs, rates, span <= inputs.ranks_on_worker);
  const auto exposed = [&](const ContextTraffic& traffic, double products) {
    const double seconds =
        D(traffic.sent) / wire.bytes_per_second + D(traffic.messages) * wire.message_seconds;
    if (inputs.context.ulysses) return seconds;
    const double hidden = Overlap(inputs, rates) * products * product;
    return std::max(seconds - hidden, seconds / D(traffic.messages));
  };
  const double forward = D(model.layers + inputs.recomputed_blocks + inputs.recomputed_attentions);
  const double backward = D(model.layers - inputs.shape.first_trained_layer);
  // Which experts were chosen how often, where load is balanced.
  const bool balances = model.experts > 0 && RouterAuxLossOf(model) > 0;
  const double counts =
      balances ? D(model.layers * (inputs.context.ranks - 1)) * wire.message_seconds : 0;
  return counts +
         forward *
             exposed(ForwardTraffic(inputs.shape, inputs.context, inputs.tokens, element), 2) +
         backward *
             exposed(BackwardTraffic(inputs.shape, inputs.context, inputs.tokens, element), 5);
}

double ExpertSeconds(const StepInputs& inputs, const RateModel& rates) {
  const ModelSpec& model = inputs.shape.spec;
  const int64_t ranks = inputs.shape.expert_ranks;
  if (ranks == 1) return 0;
  const double others = D(ranks - 1);
  // Ranks that share matrices or sequences stand between them.
  const int64_t apart = inputs.shape.tensor * inputs.context.ranks;
  const double rows = D(inputs.tokens * model.experts_per_token * model.width *
                        ElementBytes(inputs.precision->activations));
  const double forward = D(model.layers + inputs.recomputed_blocks);
  if (const DeviceModel* device = rates.device()) {
    const auto seconds = [&](double bytes) {
      const int64_t near = std::max<int64_t>(inputs.ranks_on_worker / apart, 1);
      return device->AllToAllSeconds(ranks, std::min(ranks, near), rates.LinkBytesPerSecond(false),
                                     bytes);
    };
    return 2 * (forward + D(model.layers)) * seconds(rows) +
           forward * seconds(4 * D(model.experts));
  }
  const double bytes = others / D(ranks) * rows;
  const Wire wire = WireOf(inputs, rates, ranks * apart <= inputs.ranks_on_worker);
  // A message for each expert of another rank.
  const double messages = others * D(model.experts / ranks);
  return 2 * (forward + D(model.layers)) *
             (bytes / wire.bytes_per_second + messages * wire.message_seconds) +
         forward * others * wire.message_seconds;
}

double OuterStepBytes(const StepInputs& inputs) {
  // What was learned is made of two numbers, the momentum and the parameters of that; these are
  // copied to where they are trained.
  const double stored = D(ElementBytes(inputs.precision->matrices));
  return D(inputs.shape.trained) * ((stored + 4) + 3 * 4 + 5 * 4 + (4 + stored));
}

TimeBreakdown PredictStep(const StepInputs& inputs, const PassCost& alone, const RateModel& rates) {
  if (rates.device() != nullptr) {
    TimeBreakdown time =
        PredictDeviceStep(inputs, alone, *rates.device(), rates.LinkBytesPerSecond(false));
    const double exposed = TensorSeconds(inputs, rates) + ExpertSeconds(inputs, rates) +
                           ContextSeconds(inputs, alone, rates);
    time.exposed_communication_seconds +=
        D(inputs.accumulation_steps) * exposed + SummandSeconds(inputs, rates);
    AddHostTier(inputs, alone, rates, time);
    return time;
  }
  const TimeCalibration& calibration = rates.calibration();
  const double passes = D(inputs.accumulation_steps);
  const double copying = rates.MemoryBytesPerSecond(inputs.threads, inputs.ranks_on_worker);
  const double bandwidth = copying * calibration.memory_share;
  const PassCost pass = SlowedBy(alone, rates.Slowdown(inputs.threads, inputs.ranks_on_worker));
  const double trained = D(inputs.shape.trained);
  const double matrices = D(inputs.shape.packed);
  const double per_operation =
      (calibration.operation_seconds + kSecondsPerOperationAndThread * D(inputs.threads)) *
      rates.RanksPerProcessor(inputs.threads, inputs.ranks_on_worker);

  TimeBreakdown time;
  time.gemm_seconds = passes * pass.gemm_seconds;
  const double packed = D(ElementBytes(inputs.precision->products));
  const bool unpacked = rates.NeedsNoCopies();
  // Where the stored matrix is not of the products' type, the backward pass packs it once more.
  const double again =
      unpacked || inputs.precision->matrices == inputs.precision->products ? 0 : 2 * packed;
  time.memory_bound_seconds =
      (passes * (pass.memory_bytes + 2 * D(inputs.coded_bytes) + matrices * again) +
       (2 * passes - 1) * pass.weight_gradient_bytes) /
      bandwidth;
  const double recomputed = passes * D(inputs.recomputed_blocks);
  time.recompute_seconds =
      recomputed * (pass.block_forward_gemm_seconds + pass.block_forward_memory_bytes / bandwidth +
                    kForwardOperationsPerBlock * per_operation) +
      passes * D(inputs.recomputed_attentions) *
          (pass.attention_forward_gemm_seconds + kAttentionOperations * per_operation);
  time.overhead_seconds =
      passes * (D(inputs.shape.spec.layers) * kOperationsPerBlock + kOperationsPerPass) *
          per_operation +
      calibration.step_seconds;
  // AdamW reads gradient and moments, writes the moments and updates the parameter; the norm reads
  // the gradients; packing reads each matrix and writes its copy.
  const double stored = D(ElementBytes(inputs.precision->matrices));
  // Gathered parameters are packed in every pass, twice, and not after the update.
  const double packing = unpacked ? 0 : matrices * (stored + packed);
  if (inputs.SharesParameters()) time.memory_bound_seconds += 2 * passes * packing / bandwidth;
  const double optimizer_bytes = inputs.Updated() * (5 * 4 + 2 * stored + 4) +
                                 (inputs.SharesParameters() ? 0 : packing) +
                                 4 * pass.step_f32_numbers + stored * pass.step_parameter_numbers;
  const double updating = copying * calibration.update_share;
  time.optimizer_seconds = optimizer_bytes / updating + pass.step_product_seconds;
  time.optimizer_seconds = std::max(
      time.optimizer_seconds, FileSeconds(inputs, rates) - BesideSeconds(inputs, pass, bandwidth));

  const double link = TierLink(inputs.host_link_bytes_per_second, copying, rates);
  if (inputs.offloads_optimizer) {
    time.exposed_communication_seconds =
        StateLinkSeconds(inputs, pass, time.optimizer_seconds, link);
  }
  time.exposed_communication_seconds +=
      StepLinkSeconds(inputs, pass, time, bandwidth, link, FileRate(inputs, rates));
  const int64_t on_worker = inputs.ranks_on_worker / inputs.shape.tensor;
  const Wire wire = WireOf(inputs, rates, inputs.ranks <= on_worker);
  const Wire group_wire =
      WireOf(inputs, rates,
             inputs.Groups() == 1 ? inputs.ranks <= on_worker
                                  : on_worker > 0 && on_worker % inputs.sharers == 0);
  if (inputs.SharesParameters()) {
    const ShardedParameters& shared = inputs.sharded;
    const auto seconds = [&](int64_t ShardedTraffic::*payload, int64_t ShardedTraffic::*collectives,
                             double sent = 1) {
      const auto among = [&](int64_t ranks, const ShardedTraffic& traffic) {
        return ScatterSeconds(ranks, sent * D(traffic.*payload), D(traffic.*collectives),
                              group_wire);
      };
      return among(inputs.sharers, shared) + among(inputs.ExpertReplicas(), shared.experts);
    };
    // Once a step, after the reductions of the last pass.
    const double between =
        2 * ScatterSeconds(inputs.Groups(), inputs.sent_gradients * D(shared.gradients),
                           D(shared.reductions), wire);
    // Sums in the host tier are added between groups once all are there.
    const double beside = inputs.offloads_optimizer ? 0 : between;
    // Each unit is gathered beside the one before it, and reduced beside the one after it; the
    // first has nothing to hide behind.
    const double forward =
        seconds(&ShardedTraffic::forward_payload, &ShardedTraffic::forward_gathers);
    const double backward =
        seconds(&ShardedTraffic::backward_payload, &ShardedTraffic::backward_gathers) +
        seconds(&ShardedTraffic::reduced_payload, &ShardedTraffic::reductions,
                inputs.sent_gradients);
    const double units = D(DistinctBlocks(inputs.shape.spec) + 2);
    const double forward_gemm = pass.gemm_seconds - pass.backward_gemm_seconds;
    const auto exposed = [&](double communicating, double multiplying) {
      return std::max(communicating - Overlap(inputs, rates) * multiplying, communicating / units);
    };
    time.exposed_communication_seconds +=
        passes * exposed(forward, forward_gemm) +
        (passes - 1) * exposed(backward, pass.backward_gemm_seconds) +
        exposed(backward + beside, pass.backward_gemm_seconds) + (between - beside);
  } else if (inputs.local_steps > 1) {
    const double bytes = 4 * trained;
    const double buckets = std::max(1.0, bytes / D(inputs.bucket_bytes));
    // Of each step, among ranks that share sequences; the last bucket has nothing to hide behind.
    const int64_t sharers = inputs.context.ranks;
    const Wire within = WireOf(inputs, rates, sharers <= on_worker);
    const double reducing =
        2 * ScatterSeconds(sharers, inputs.sent_gradients * bytes, buckets, within);
    time.exposed_communication_seconds += std::max(
        reducing - Overlap(inputs, rates) * pass.backward_gemm_seconds, reducing / buckets);
    // Of an outer step. Nothing runs beside its sums, of which these ranks each have a part, over
    // the same link, and gather all.
    const double sums = 2 * ScatterSeconds(inputs.Workers(), bytes, buckets, wire) +
                        ScatterSeconds(sharers, bytes, buckets, within);
    const double weights = D(inputs.uploaded_weight_bytes) / link;
    time.exposed_communication_seconds += (sums + weights) / D(inputs.local_steps);
    time.optimizer_seconds += OuterStepBytes(inputs) / updating / D(inputs.local_steps);
  } else if (inputs.ranks > 1) {
    // Those of experts that ranks share are reduced among fewer ranks.
    const bool shares_experts = inputs.shape.expert_ranks > 1;
    const double of_experts = shares_experts ? 4 * D(inputs.shape.stored_trained_experts) : 0;
    const double bytes = 4 * trained - of_experts;
    const double buckets = std::max(1.0, bytes / D(inputs.bucket_bytes));
    // Of updates that are shared, parameters come back, with nothing beside them.
    const bool shares = inputs.sharers > 1;
    const auto scatter = [&](double sent) {
      return ScatterSeconds(shares ? inputs.sharers : inputs.ranks, sent * bytes, buckets,
                            shares ? group_wire : wire) +
             ScatterSeconds(inputs.ExpertReplicas(), sent * of_experts,
                            of_experts / D(inputs.bucket_bytes), wire);
    };
    const double gathering = shares ? scatter(1) : 0;
    const double reducing = (shares ? 1 : 2) * scatter(inputs.sent_gradients);
    const double between =
        2 *
        ScatterSeconds(inputs.Groups(),
                       inputs.sent_gradients * (bytes + of_experts * D(inputs.shape.expert_ranks)) /
                           D(inputs.sharers),
                       buckets, wire);
    // Where gradients are shared out too, every pass reduces, else the last one alone; its last
    // bucket has nothing to hide behind.
    const auto exposed = [&](double communicating) {
      return std::max(communicating - Overlap(inputs, rates) * pass.backward_gemm_seconds,
                      communicating / buckets);
    };
    const double earlier = inputs.zero_stage > 1 ? passes - 1 : 0;
    const double beside = inputs.offloads_optimizer ? 0 : between;
    const double last = exposed(reducing + beside) + (between - beside);
    time.exposed_communication_seconds += earlier * exposed(reducing) + last + gathering;
  }
  time.exposed_communication_seconds +=
      passes * (TensorSeconds(inputs, rates) + ExpertSeconds(inputs, rates) +
                ContextSeconds(inputs, alone, rates)) +
      SummandSeconds(inputs, rates);
  return time;
}

}  // namespace weft::planner
