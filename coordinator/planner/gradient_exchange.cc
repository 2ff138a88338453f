#include "coordinator/planner/gradient_exchange.h"

#include <algorithm>

#include "common/model/model_counts.h"
#include "common/number.h"
#include "coordinator/planner/rank_groups.h"

namespace weft::planner {
namespace {

constexpr double kGradientBytes = 4;  // f32

/// Groups of data-parallel ranks, between which tensor-parallel ranks are.
class DataGroups {
 public:
  explicit DataGroups(const StepInputs& inputs) : inputs_(inputs) {}

  /// Any `ranks` successive ranks.
  RankGroup Successive(int64_t ranks) const {
    return GroupOf(inputs_, ranks, ranks * inputs_.shape.tensor);
  }
  /// A shard group, or all ranks where they share nothing.
  RankGroup Shards() const {
    return Successive(inputs_.shard_ranks > 1 ? inputs_.shard_ranks : inputs_.ranks);
  }
  /// Ranks of these that have the same experts.
  RankGroup ExpertReplicas() const { return Apart(inputs_.ExpertReplicas(), Shards()); }
  /// Ranks that have the same shards.
  RankGroup Replicas() const { return Apart(inputs_.Groups(), Successive(inputs_.ranks)); }
  /// Workers of local steps.
  RankGroup Workers() const { return Apart(inputs_.Workers(), Successive(inputs_.ranks)); }

 private:
  /// `ranks` of those that are `among`, as far apart as they can be and over its worst link.
  static RankGroup Apart(int64_t ranks, const RankGroup& among) {
    return {.ranks = ranks,
            .on_worker = std::max<int64_t>(ranks * among.on_worker / among.ranks, 1),
            .link = among.link};
  }

  const StepInputs& inputs_;
};

/// What the exchanges of one step have in common.
struct Exchange {
  const StepInputs& inputs;
  const PassCost& pass;
  const StepRates& rates;
  RankPlace place = inputs.place();
  DataGroups groups = DataGroups(inputs);

  /// What products that take `multiplying` do not hide of collectives that take `seconds`: at least
  /// one part of `parts`, which has nothing to overlap with.
  double Exposed(double seconds, double multiplying, double parts) const {
    return std::max(seconds - rates.HiddenSeconds(place, seconds, multiplying), seconds / parts);
  }
  /// Seconds of an exchange that takes `seconds` between ranks, where the host keeps `bytes` of it.
  double Staged(double seconds, double bytes) const {
    return inputs.offloads_optimizer ? rates.StagedSeconds(seconds, bytes) : seconds;
  }
  /// Seconds to sum `parts` bytes of each rank over the replicas of its shard group.
  double BetweenGroups(double parts, double collectives) const {
    return Staged(rates.AllReduceSeconds(place, groups.Replicas(), inputs.sent_gradients * parts,
                                         rates.CollectivesOf(collectives)),
                  parts);
  }
};

/// Ranks have shards of the parameters: each unit is gathered during the one before it, and reduced
/// during the one after it; the first has nothing to overlap with.
double ParameterShardSeconds(const Exchange& exchange) {
  const StepInputs& inputs = exchange.inputs;
  const PassCost& pass = exchange.pass;
  const StepRates& rates = exchange.rates;
  const RankPlace& place = exchange.place;
  const DataGroups& groups = exchange.groups;
  const ShardedParameters& sharded = inputs.sharded;
  const auto seconds = [&](int64_t ShardedTraffic::*payload, int64_t ShardedTraffic::*collectives,
                           double sent = 1) {
    const auto among = [&](const RankGroup& group, const ShardedTraffic& traffic) {
      return rates.GatherSeconds(place, group, sent * D(traffic.*payload), D(traffic.*collectives));
    };
    return among(groups.Shards(), sharded) + among(groups.ExpertReplicas(), sharded.experts);
  };
  const double forward =
      seconds(&ShardedTraffic::forward_payload, &ShardedTraffic::forward_gathers);
  const double backward =
      seconds(&ShardedTraffic::backward_payload, &ShardedTraffic::backward_gathers) +
      seconds(&ShardedTraffic::reduced_payload, &ShardedTraffic::reductions, inputs.sent_gradients);
  // Once a step, after the reductions of the last pass. The host sums its parts once all are there.
  const double between = exchange.BetweenGroups(D(sharded.gradients), D(sharded.reductions));
  const double overlapped = inputs.offloads_optimizer ? 0 : between;
  // What techniques bring after the passes, which nothing hides.
  const double trained = seconds(&ShardedTraffic::after_payload, &ShardedTraffic::after_gathers);
  const double units = D(DistinctBlocks(inputs.shape.spec) + 2);
  const double passes = D(inputs.accumulation_steps);
  const double multiplying = pass.backward_gemm_seconds;
  return passes * exchange.Exposed(forward, pass.gemm_seconds - multiplying, units) +
         (passes - 1) * exchange.Exposed(backward, multiplying, units) +
         exchange.Exposed(backward + overlapped, multiplying, units) + (between - overlapped) +
         trained;
}

/// Each worker makes steps of its own, in which context-parallel ranks alone reduce gradients. In
/// an outer step workers sum what they learned, each context-parallel rank its part, and these
/// ranks then gather all parts. Nothing overlaps with an outer step.
double LocalStepSeconds(const Exchange& exchange) {
  const auto& [inputs, pass, rates, place, groups] = exchange;
  const double bytes = kGradientBytes * D(inputs.shape.trained);
  const double buckets = std::max(1.0, bytes / D(inputs.bucket_bytes));
  const double collectives = rates.CollectivesOf(buckets);
  const int64_t context = inputs.context.ranks;
  const RankGroup worker = groups.Successive(context);
  const double reducing =
      rates.AllReduceSeconds(place, worker, inputs.sent_gradients * bytes, collectives);
  const double outer =
      rates.AllReduceSeconds(place, groups.Workers(), bytes / rates.LinksOf(context), collectives) +
      rates.GatherSeconds(place, worker, bytes, collectives);
  return exchange.Exposed(reducing, pass.backward_gemm_seconds, buckets) +
         outer / D(inputs.local_steps);
}

/// Ranks reduce gradients, all or with a shard group's optimizer each its shard, and then gather
/// the updated parameters with nothing to overlap with. Where gradients are sharded too, every pass
/// reduces, else the last one alone; its last bucket has nothing to overlap with.
double DataParallelSeconds(const Exchange& exchange) {
  const StepInputs& inputs = exchange.inputs;
  const PassCost& pass = exchange.pass;
  const StepRates& rates = exchange.rates;
  const RankPlace& place = exchange.place;
  const DataGroups& groups = exchange.groups;
  const ModelShape& shape = inputs.shape;
  // Gradients of expert-parallel ranks' experts are reduced among fewer ranks.
  const bool own_experts = shape.expert_ranks > 1;
  const double of_experts = own_experts ? kGradientBytes * D(shape.stored_trained_experts) : 0;
  const bool sharded = inputs.shard_ranks > 1;
  const double of_derived = sharded ? kGradientBytes * D(shape.ReducedWhole()) : 0;
  // Where gradients are sharded, ranks gather these sums after the last pass.
  const bool sums_parts = inputs.zero_stage > 1;
  const double reduced_whole = sums_parts ? 0 : of_derived;
  const double bytes = kGradientBytes * D(shape.trained) - of_experts - reduced_whole;
  const auto buckets_of = [&](double all) { return std::max(1.0, all / D(inputs.bucket_bytes)); };
  const double buckets = buckets_of(bytes + reduced_whole);
  // A reduce-scatter or an all-gather of these bytes and of all experts.
  const auto half = [&](double all, double sent) {
    const double collectives =
        own_experts ? rates.CollectivesOf(of_experts / D(inputs.bucket_bytes)) : 0;
    return rates.GatherSeconds(place, groups.Shards(), sent * all,
                               rates.CollectivesOf(buckets_of(all))) +
           rates.GatherSeconds(place, groups.ExpertReplicas(), sent * of_experts, collectives);
  };
  double reducing = (sharded ? 1 : 2) * half(bytes, inputs.sent_gradients);
  // All ranks have the sums of what the gradients of sources follow from.
  if (reduced_whole > 0) {
    reducing += rates.AllReduceSeconds(place, groups.Successive(inputs.ranks),
                                       inputs.sent_gradients * reduced_whole,
                                       rates.CollectivesOf(buckets_of(reduced_whole)));
  }
  const double stored = D(ElementBytes(inputs.precision->matrices));
  const double others = D(inputs.shard_ranks - 1) / D(inputs.shard_ranks);
  const double updated = kGradientBytes * D(shape.Updated()) - of_experts;
  const double gathering =
      sharded ? exchange.Staged(half(updated, 1), stored * D(shape.trained) * others) : 0;
  const double splitting = sums_parts && of_derived > 0
                               ? rates.GatherSeconds(place, groups.Shards(), of_derived,
                                                     rates.CollectivesOf(buckets_of(of_derived)))
                               : 0;
  const double parts = (bytes + of_experts * D(shape.expert_ranks)) / D(inputs.shard_ranks);
  // The host sums its parts once all are there.
  const double between = exchange.BetweenGroups(parts, buckets_of(bytes));
  const double overlapped = inputs.offloads_optimizer ? 0 : between;
  const auto exposed = [&](double seconds) {
    return exchange.Exposed(seconds, pass.backward_gemm_seconds, buckets);
  };
  const double earlier = inputs.zero_stage > 1 ? D(inputs.accumulation_steps - 1) : 0;
  const double last = exposed(reducing + overlapped) + (between - overlapped);
  return earlier * exposed(reducing) + last + splitting + gathering;
}

/// The hosts of a shard group gather what they rank, before or after the passes.
double RankedSeconds(const Exchange& exchange) {
  if (exchange.inputs.shard_ranks <= 1) return 0;
  const RankedNumbers& ranked = exchange.pass.ranked;
  MatrixNumbers gathered = ranked.gradients;
  if (exchange.inputs.SharesParameters()) gathered.Add(ranked.values, 1);
  return exchange.rates.HostGatherSeconds(exchange.place, exchange.groups.Shards(),
                                          4 * gathered.numbers, gathered.matrices);
}

}  // namespace

double GradientExchangeSeconds(const StepInputs& inputs, const PassCost& pass,
                               const StepRates& rates) {
  const Exchange exchange{inputs, pass, rates};
  if (inputs.SharesParameters()) return ParameterShardSeconds(exchange) + RankedSeconds(exchange);
  if (inputs.local_steps > 1) return LocalStepSeconds(exchange);
  return inputs.ranks > 1 ? DataParallelSeconds(exchange) + RankedSeconds(exchange) : 0;
}

}  // namespace weft::planner
