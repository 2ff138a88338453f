#include "worker/engine/techniques/parallel/sharded_data_parallel.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "common/number.h"
#include "kernels/elementwise/elementwise.h"
#include "worker/engine/comm/sum_scalars.h"
#include "worker/engine/nn/parameter_file.h"
#include "worker/engine/nn/parameter_file_iterator.h"
#include "worker/engine/tensor/host_memory_pool.h"
#include "worker/engine/tensor/transfer.h"

namespace weft::engine {
namespace {

constexpr int64_t kAlignElements = 16;  // 64 bytes

size_t BytesOf(std::span<const ParameterPart> parts) {
  size_t bytes = 0;
  for (const ParameterPart& part : parts) bytes += part.value.Bytes();
  return bytes;
}

}  // namespace

ShardedDataParallel::ShardedDataParallel(Context& context, Collective* group,
                                         ParameterSet* parameters, int64_t bucket_bytes,
                                         Collective* same_experts)
    : BucketReducer(group, parameters, bucket_bytes, context.stream, same_experts),
      context_(&context),
      parameters_(parameters),
      shards_(group),
      expert_shards_(same_experts),
      memory_(static_cast<size_t>(bucket_count())),
      unit_of_(static_cast<size_t>(bucket_count())),
      summed_(static_cast<size_t>(bucket_count())),
      sums_of_groups_(static_cast<size_t>(bucket_count())),
      copies_for_groups_(static_cast<size_t>(bucket_count())),
      gathers_(static_cast<size_t>(bucket_count())),
      through_device_(parameters->offloaded() && DeviceStaging::IsNeededBy(context)) {}

Result<std::unique_ptr<ShardedDataParallel>> ShardedDataParallel::New(
    Context& context, Collective* group, int64_t shard_ranks, ParameterSet* parameters,
    int64_t bucket_bytes, DType products, Collective* same_experts) {
  std::unique_ptr<ShardedDataParallel> made(
      new ShardedDataParallel(context, group, parameters, bucket_bytes, same_experts));
  WEFT_RETURN_IF_ERROR(made->SplitGroup(shard_ranks));
  const Collective& shards = made->shards();
  if (parameters->values_sharded() && parameters->shard_rank() != shards.rank()) {
    return InvalidError("rank " + std::to_string(shards.rank()) + " has the parameters of rank " +
                        std::to_string(parameters->shard_rank()));
  }
  Context state = parameters->offloaded() ? InHostMemoryPool(context) : context;
  if (parameters->places_gradients() && parameters->file() == nullptr) {
    WEFT_RETURN_IF_ERROR(made->MakeSums(state));
  }
  made->MakeParts();
  if (parameters->values_sharded()) {
    made->gatherer_ = std::make_unique<ParameterGatherer>(
        context, made->shards_, made->expert_shards_, parameters, products);
    return made;
  }
  WEFT_RETURN_IF_ERROR(made->MakeStaging(state));
  return made;
}

ShardedDataParallel::~ShardedDataParallel() {
  WaitForAll();
  for (const Work& sum : sums_of_groups_) (void)sum.Wait(stream());
  for (const Work& gather : gathers_) (void)gather.Wait(stream());
}

Status ShardedDataParallel::SplitGroup(int64_t shard_ranks) {
  if (shard_ranks == group()->size()) return OkStatus();
  if (shard_ranks < 1 || group()->size() % shard_ranks != 0) {
    return InvalidError("plan.zero_shard_ranks " + std::to_string(shard_ranks) +
                        " does not divide the " + std::to_string(group()->size()) +
                        " data-parallel ranks");
  }
  const int64_t expert_ranks = parameters_->expert_ranks();
  if (shard_ranks % expert_ranks != 0) {
    return InvalidError("plan.zero_shard_ranks " + std::to_string(shard_ranks) +
                        " is no multiple of the " + std::to_string(expert_ranks) +
                        " expert-parallel ranks");
  }
  const int64_t rank = group()->rank();
  WEFT_ASSIGN_OR_RETURN(owned_shards_, group()->Split(rank / shard_ranks, "shards"));
  WEFT_ASSIGN_OR_RETURN(replicas_, group()->Split(rank % shard_ranks, "replicas of a shard"));
  shards_ = owned_shards_.get();
  if (expert_ranks == 1) return OkStatus();
  // Those of a group that have the same experts; ranks with the same parts have the same of them.
  expert_shards_ = nullptr;
  if (shard_ranks == expert_ranks) return OkStatus();
  WEFT_ASSIGN_OR_RETURN(owned_expert_shards_,
                        same_experts()->Split(rank / shard_ranks, "shards of experts"));
  expert_shards_ = owned_expert_shards_.get();
  return OkStatus();
}

int64_t ShardedDataParallel::ShardGroupSize(int64_t bucket) const {
  const Collective* const shard_group = ShardGroupOf(bucket);
  return shard_group == nullptr ? 1 : shard_group->size();
}

int64_t ShardedDataParallel::OwnPart(int64_t bucket) const {
  const Collective* const shard_group = ShardGroupOf(bucket);
  return shard_group == nullptr ? 0 : shard_group->rank();
}

Status ShardedDataParallel::SumOverParts(std::span<double> values) {
  Collective* const ranks = parameters_->expert_ranks() > 1 ? expert_shards_ : shards_;
  return ranks == nullptr ? OkStatus() : engine::SumScalars(*ranks, values);
}

// Parts of a bucket, and of a flat parameter, follow each other by rank.
Result<std::vector<float>> ShardedDataParallel::GatherParts(int64_t index,
                                                            std::span<const float> own) {
  const Parameter& parameter = (*parameters_)[index];
  Collective* const ranks = parameter.of_shared_expert ? expert_shards_ : shards_;
  if (ranks == nullptr) return std::vector<float>(own.begin(), own.end());
  const std::string_view bytes(reinterpret_cast<const char*>(own.data()), own.size_bytes());
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> parts, ranks->AllGather(bytes));
  size_t gathered = 0;
  for (const std::string& part : parts) gathered += part.size() / sizeof(float);
  std::vector<float> whole(static_cast<size_t>(parameter.shape.Elements()));
  if (gathered != whole.size()) {
    return InternalError("ranks have parts of " + parameter.name + " with " +
                         std::to_string(gathered) + " numbers of " + std::to_string(whole.size()));
  }
  auto* to = reinterpret_cast<char*>(whole.data());
  for (const std::string& part : parts) to = std::copy(part.begin(), part.end(), to);
  return whole;
}

int64_t ShardedDataParallel::held_bytes() const {
  int64_t bytes = BucketReducer::held_bytes();
  if (owned_shards_ != nullptr) bytes += owned_shards_->held_bytes();
  if (replicas_ != nullptr) bytes += replicas_->held_bytes();
  if (owned_expert_shards_ != nullptr) bytes += owned_expert_shards_->held_bytes();
  return bytes;
}

// Where reductions are settled one by one, what is enqueued depends on what is still under way.
std::vector<CollectiveRecorder*> ShardedDataParallel::recorders() const {
  if (places_gradients() || gatherer_ != nullptr || replicas_ != nullptr) return {};
  return BucketReducer::recorders();
}

std::vector<AxisAccount> ShardedDataParallel::Accounts() const {
  std::vector<AxisAccount> accounts;
  if (owned_shards_ != nullptr) accounts.push_back({"data", &owned_shards_->account()});
  if (replicas_ != nullptr) accounts.push_back({"data", &replicas_->account()});
  if (owned_expert_shards_ != nullptr) {
    accounts.push_back({"data", &owned_expert_shards_->account()});
  }
  return accounts;
}

ParameterSet::Range ShardedDataParallel::PartOfBucket(int64_t bucket, int64_t rank) const {
  const GradientBucket& all = this->bucket(bucket);
  const int64_t length = (all.end - all.begin) / ShardGroupSize(bucket);
  WEFT_CHECK(length * ShardGroupSize(bucket) == all.end - all.begin, "ranks shard a bucket evenly");
  return {all.begin + rank * length, all.begin + (rank + 1) * length};
}

// Derived matrices have no state, so a part of what is stacked with them is a part of each tensor.
ParameterSet::Range ShardedDataParallel::PartOfParameter(int64_t index, int64_t rank) const {
  const int64_t bucket = layout().bucket_of[static_cast<size_t>(index)];
  const int64_t begin = parameters_->GradientOffset(index);
  const int64_t end = begin + (*parameters_)[index].shape.Elements();
  if (this->bucket(bucket).of_derived) {
    const int64_t ranks = ShardGroupSize(bucket);
    const int64_t length = RoundUp(end - begin, kAlignElements * ranks) / ranks;
    return {std::min(begin + rank * length, end), std::min(begin + (rank + 1) * length, end)};
  }
  const ParameterSet::Range part = PartOfBucket(bucket, rank);
  return {std::clamp(part.begin, begin, end), std::clamp(part.end, begin, end)};
}

std::vector<ParameterPart> ShardedDataParallel::PartsOf(int64_t bucket, int64_t rank) const {
  std::vector<ParameterPart> parts;
  for (int64_t i = 0; i < parameters_->size(); ++i) {
    if (!(*parameters_)[i].updated()) continue;
    if (layout().bucket_of[static_cast<size_t>(i)] != bucket) continue;
    const ParameterSet::Range part = PartOfParameter(i, rank);
    if (part.size() == 0) continue;
    parts.push_back(
        PartOf(*parameters_, i, part.begin - parameters_->GradientOffset(i), part.size(), nullptr));
  }
  return parts;
}

void ShardedDataParallel::MakeParts() {
  parts_.clear();
  for (int64_t i = 0; i < parameters_->size(); ++i) {
    if (!(*parameters_)[i].updated()) continue;
    const int64_t bucket = layout().bucket_of[static_cast<size_t>(i)];
    const ParameterSet::Range part = PartOfParameter(i, OwnPart(bucket));
    float* gradient = nullptr;
    if (parameters_->file() == nullptr && part.size() > 0) gradient = SumOf(i, part);
    parts_.push_back(PartOf(*parameters_, i, part.begin - parameters_->GradientOffset(i),
                            part.size(), gradient));
  }
}

// What is stacked with derived matrices is reduced in other parts than it is updated in.
Status ShardedDataParallel::MakeSums(Context& state) {
  int64_t count = 0;
  for (int64_t b = 0; b < bucket_count(); ++b) {
    first_sum_.push_back(count);
    count += PartOfBucket(b, 0).size();
  }
  stacked_sum_.resize(static_cast<size_t>(parameters_->size()));
  for (int64_t i = 0; i < parameters_->size(); ++i) {
    if (!(*parameters_)[i].updated()) continue;
    const int64_t b = layout().bucket_of[static_cast<size_t>(i)];
    if (!bucket(b).of_derived) continue;
    stacked_sum_[static_cast<size_t>(i)] = count;
    count += RoundUp(PartOfParameter(i, OwnPart(b)).size(), kAlignElements);
  }
  WEFT_ASSIGN_OR_RETURN(sums_, Tensor::New(state, Component::kGradients, DType::kF32, {count}));
  return Clear(state.stream, sums_);
}

float* ShardedDataParallel::SumOf(int64_t index, const ParameterSet::Range& part) const {
  const int64_t b = layout().bucket_of[static_cast<size_t>(index)];
  if (sums_ && bucket(b).of_derived) {
    return sums_.As<float>() + stacked_sum_[static_cast<size_t>(index)];
  }
  return Sums(b).As<float>() + (part.begin - Kept(b).begin);
}

TensorView ShardedDataParallel::Sums(int64_t bucket) const {
  const ParameterSet::Range own = Kept(bucket);
  if (const ParameterFile* const file = parameters_->file()) {
    return {file->GradientAt(static_cast<size_t>(bucket), own.begin), DType::kF32, {own.size()}};
  }
  const int64_t begin = sums_ ? first_sum_[static_cast<size_t>(bucket)] : own.begin;
  return (sums_ ? sums_ : parameters_->gradients()).Elements(begin, own.size());
}

ParameterSet::Range ShardedDataParallel::Kept(int64_t bucket) const {
  const GradientBucket& all = this->bucket(bucket);
  return all.of_derived && !places_gradients() ? ParameterSet::Range{all.begin, all.end}
                                               : PartOfBucket(bucket, OwnPart(bucket));
}

// In place: the sums may be those of earlier micro-batches.
Work ShardedDataParallel::Scatter(int64_t bucket, const TensorView& values) {
  Collective* const shard_group = ShardGroupOf(bucket);
  if (shard_group == nullptr) return Work();
  const int64_t begin = this->bucket(bucket).begin;
  const ParameterSet::Range own = Kept(bucket);
  const TensorView part(static_cast<char*>(values.data) +
                            static_cast<size_t>(own.begin - begin) * DTypeSize(values.dtype),
                        values.dtype, {own.size()}, values.device);
  return shard_group->ReduceScatter(stream(), values, part, Reduction::kSum,
                                    "reduce-scatter gradients");
}

Result<Work> ShardedDataParallel::ReduceAt(int64_t bucket, const Tensor& memory) {
  return Scatter(bucket, memory);
}

// Where gradients are placed, before they are added to the sums.
TensorView ShardedDataParallel::Reduced(int64_t bucket) const {
  if (!places_gradients()) return Sums(bucket);
  const ParameterSet::Range own = Kept(bucket);
  return memory_[static_cast<size_t>(bucket)].Elements(own.begin - this->bucket(bucket).begin,
                                                       own.size());
}

Result<Work> ShardedDataParallel::Reduce(int64_t bucket) {
  if (this->bucket(bucket).of_derived && !places_gradients()) {
    WEFT_ASSIGN_OR_RETURN(const TensorView values, ToWire(Sums(bucket), CopyOf(bucket)));
    return group()->AllReduce(stream(), values, Reduction::kSum,
                              "all-reduce gradients of derived weights");
  }
  if (!places_gradients()) {
    if (replicas_ != nullptr) {
      while (!in_flight_.empty() && IsReduced(in_flight_.front().bucket)) {
        WEFT_RETURN_IF_ERROR(Settle());
      }
      in_flight_.push_back({bucket, true});
    }
  } else {
    in_flight_.push_back({bucket, last_micro_batch_});
  }
  if (ShardGroupOf(bucket) == nullptr) return Work();
  const GradientBucket& all = this->bucket(bucket);
  const Tensor gradients = places_gradients()
                               ? memory_[static_cast<size_t>(bucket)]
                               : parameters_->gradients().Elements(all.begin, all.end - all.begin);
  WEFT_ASSIGN_OR_RETURN(const TensorView values, ToWire(gradients, CopyOf(bucket)));
  return Scatter(bucket, values);
}

Status ShardedDataParallel::SumInTree(int64_t micro_batches) {
  WEFT_CHECK(sums_, "gradients are placed, and their sums are in memory");
  WEFT_ASSIGN_OR_RETURN(
      MicroBatchTree tree,
      MicroBatchTree::New(*context_, sums_.view().shape.Elements(), micro_batches));
  tree_ = std::make_unique<MicroBatchTree>(std::move(tree));
  return OkStatus();
}

Status ShardedDataParallel::Begin(bool last_micro_batch) {
  placed_ = false;
  last_micro_batch_ = last_micro_batch;
  return BucketReducer::Begin(last_micro_batch);
}

Result<TensorView> ShardedDataParallel::PlaceGradient(int64_t index) {
  // The reductions of the micro-batch before had a forward pass to overlap with.
  while (!placed_ && !in_flight_.empty()) WEFT_RETURN_IF_ERROR(Settle());
  placed_ = true;
  // One reduction overlaps with the backward pass of the next bucket; another may wait behind it.
  // With sharded values, those of the unit before may be in flight, however many its buckets are.
  constexpr size_t kMostInFlight = 2;
  const int64_t unit = (*parameters_)[index].unit;
  const auto too_many = [&] {
    if (gatherer_ == nullptr) return in_flight_.size() >= kMostInFlight;
    return !in_flight_.empty() &&
           unit_of_[static_cast<size_t>(in_flight_.front().bucket)] > unit + 1;
  };
  const int64_t bucket = layout().bucket_of[static_cast<size_t>(index)];
  Tensor& memory = memory_[static_cast<size_t>(bucket)];
  // What is there of the micro-batch before has to go.
  while (std::any_of(in_flight_.begin(), in_flight_.end(),
                     [bucket](const InFlight& other) { return other.bucket == bucket; })) {
    WEFT_RETURN_IF_ERROR(Settle());
  }
  if (!memory) {
    while (too_many()) WEFT_RETURN_IF_ERROR(Settle());
    unit_of_[static_cast<size_t>(bucket)] = unit;
    const GradientBucket& all = this->bucket(bucket);
    WEFT_ASSIGN_OR_RETURN(
        memory, Tensor::New(*context_, Component::kGradients, DType::kF32, {all.end - all.begin}));
    parameters_->PlaceGradients({all.begin, all.end}, memory.As<float>());
  }
  return parameters_->gradient(index);
}

Status ShardedDataParallel::Settle() {
  const auto [bucket, last] = in_flight_.front();
  in_flight_.pop_front();
  WEFT_RETURN_IF_ERROR(WaitFor(bucket));
  if (sums_) WEFT_RETURN_IF_ERROR(AddPlaced(bucket));
  return last ? StartSumOverGroups(bucket) : OkStatus();
}

Status ShardedDataParallel::StartSumOverGroups(int64_t bucket) {
  if (replicas_ == nullptr) return OkStatus();
  const auto b = static_cast<size_t>(bucket);
  WEFT_ASSIGN_OR_RETURN(const TensorView values, ToWire(Sums(bucket), copies_for_groups_[b]));
  sums_of_groups_[b] = SumOfGroups(values);
  return OkStatus();
}

Work ShardedDataParallel::SumOfGroups(const TensorView& values) {
  return replicas_->AllReduce(stream(), values, Reduction::kSum, "all-reduce gradients of groups");
}

Status ShardedDataParallel::WaitForGroups() {
  for (size_t b = 0; b < sums_of_groups_.size(); ++b) {
    WEFT_RETURN_IF_ERROR(sums_of_groups_[b].Wait(stream()));
    WEFT_RETURN_IF_ERROR(FromWire(copies_for_groups_[b], 0, Sums(static_cast<int64_t>(b))));
  }
  return OkStatus();
}

Status ShardedDataParallel::SumOverGroups() {
  ParameterFile* const file = parameters_->file();
  if (replicas_ == nullptr) return OkStatus();
  if (through_device_) {
    DeviceStaging staging(*context_);
    for (int64_t b = 0; b < bucket_count(); ++b) {
      WEFT_RETURN_IF_ERROR(
          staging.Pass(Sums(b), [&](const TensorView& sums) { return SumOfGroups(sums); }));
    }
    return staging.Finish();
  }
  for (int64_t b = 0; b < bucket_count(); ++b) {
    const auto image = static_cast<size_t>(b);
    if (file != nullptr) {
      WEFT_RETURN_IF_ERROR(file->gradients().FinishWrites(1));
      WEFT_RETURN_IF_ERROR(file->gradients().Start(image));
      WEFT_RETURN_IF_ERROR(file->gradients().Await(image));
    }
    WEFT_RETURN_IF_ERROR(StartSumOverGroups(b));
    if (file == nullptr) continue;
    WEFT_RETURN_IF_ERROR(WaitForGroups());
    file->WriteGradients(image);
  }
  WEFT_RETURN_IF_ERROR(WaitForGroups());
  return file == nullptr ? OkStatus() : file->gradients().FinishWrites();
}

Status ShardedDataParallel::AddPlaced(int64_t bucket) {
  const GradientBucket& all = this->bucket(bucket);
  const ParameterSet::Range own = Kept(bucket);
  const Tensor part =
      memory_[static_cast<size_t>(bucket)].Elements(own.begin - all.begin, own.size());
  const TensorView sums = Sums(bucket);
  int64_t& summed = summed_[static_cast<size_t>(bucket)];
  if (tree_ != nullptr) {
    WEFT_RETURN_IF_ERROR(
        tree_->Add(stream(), summed, first_sum_[static_cast<size_t>(bucket)], part, sums));
  } else if (summed > 0) {
    WEFT_RETURN_IF_ERROR(kernels::Add(stream(), {sums, part, sums}));
  } else {
    WEFT_RETURN_IF_ERROR(kernels::Cast(stream(), {part, sums}));
  }
  ++summed;
  memory_[static_cast<size_t>(bucket)] = {};
  parameters_->PlaceGradients({all.begin, all.end}, nullptr);
  return OkStatus();
}

Status ShardedDataParallel::Finish() {
  while (!in_flight_.empty()) WEFT_RETURN_IF_ERROR(Settle());
  summed_.assign(summed_.size(), 0);
  WEFT_RETURN_IF_ERROR(WaitForGroups());
  return BucketReducer::Finish();
}

std::vector<ShardedDataParallel::Packed> ShardedDataParallel::PackedOf(int64_t bucket,
                                                                       int64_t rank) const {
  int64_t at = rank * part_bytes_[static_cast<size_t>(bucket)];
  if (parameters_->values_follow_gradients()) {
    return {{parameters_->ValuesAlong(PartOfBucket(bucket, rank)), at}};
  }
  std::vector<Packed> packed;
  for (const ParameterPart& part : PartsOf(bucket, rank)) {
    packed.push_back({part.value, at});
    at += static_cast<int64_t>(part.value.Bytes());
  }
  return packed;
}

Status ShardedDataParallel::MakeStaging(Context& context) {
  constexpr size_t kAlign = 64;
  part_bytes_.resize(static_cast<size_t>(bucket_count()));
  const bool follow = parameters_->values_follow_gradients();
  int64_t most = 0;
  for (int64_t b = 0; b < bucket_count(); ++b) {
    if (ShardGroupOf(b) == nullptr || !bucket(b).updated || bucket(b).of_derived) continue;
    int64_t& bytes = part_bytes_[static_cast<size_t>(b)];
    for (int64_t rank = 0; rank < ShardGroupSize(b); ++rank) {
      const size_t own = follow ? static_cast<size_t>(PartOfBucket(b, rank).size()) * sizeof(float)
                                : RoundUp(BytesOf(PartsOf(b, rank)), kAlign);
      bytes = std::max(bytes, static_cast<int64_t>(own));
    }
    most = std::max(most, bytes * ShardGroupSize(b));
  }
  if (follow || through_device_) return OkStatus();
  WEFT_ASSIGN_OR_RETURN(staging_,
                        Tensor::New(context, Component::kCommunication, DType::kU8, {most}));
  return OkStatus();
}

Status ShardedDataParallel::GatherStaged(int64_t bucket) {
  Collective* const shard_group = ShardGroupOf(bucket);
  if (shard_group == nullptr) return OkStatus();
  const int64_t bytes = part_bytes_[static_cast<size_t>(bucket)];
  const auto copy = [&](int64_t rank, bool to_staging) -> Status {
    for (const Packed& packed : PackedOf(bucket, rank)) {
      TensorView staged = packed.values;
      staged.data = staging_.As<uint8_t>() + packed.at;
      WEFT_RETURN_IF_ERROR(to_staging ? CopyRows(stream(), packed.values, staged)
                                      : CopyRows(stream(), staged, packed.values));
    }
    return OkStatus();
  };
  const int own = shard_group->rank();
  WEFT_RETURN_IF_ERROR(copy(own, true));
  WEFT_RETURN_IF_ERROR(shard_group
                           ->AllGather(stream(), staging_.Elements(own * bytes, bytes),
                                       staging_.Elements(0, shard_group->size() * bytes),
                                       "all-gather parameters")
                           .Wait(stream()));
  for (int64_t rank = 0; rank < shard_group->size(); ++rank) {
    if (rank != own) WEFT_RETURN_IF_ERROR(copy(rank, false));
  }
  return OkStatus();
}

Status ShardedDataParallel::GatherThrough(DeviceStaging& staging, int64_t bucket) {
  Collective* const shard_group = ShardGroupOf(bucket);
  if (shard_group == nullptr) return OkStatus();
  const int64_t bytes = part_bytes_[static_cast<size_t>(bucket)];
  const int own = shard_group->rank();
  std::vector<Packed> others;
  for (int64_t rank = 0; rank < shard_group->size(); ++rank) {
    if (rank == own) continue;
    for (const Packed& packed : PackedOf(bucket, rank)) others.push_back(packed);
  }
  return staging.Pass(
      DType::kU8, shard_group->size() * bytes,
      [packed = PackedOf(bucket, own)](TransferQueue& lane, std::byte* above) {
        for (const auto& [values, at] : packed) lane.Copy(above + at, values.data, values.Bytes());
      },
      [&](const TensorView& all) {
        const TensorView part(all.As<uint8_t>() + own * bytes, all.dtype, {bytes}, all.device);
        return shard_group->AllGather(stream(), part, all, "all-gather parameters");
      },
      [others = std::move(others)](TransferQueue& lane, std::byte* above) {
        for (const auto& [values, at] : others) lane.Copy(values.data, above + at, values.Bytes());
      });
}

Work ShardedDataParallel::GatherInPlace(int64_t bucket) {
  Collective* const shard_group = ShardGroupOf(bucket);
  if (shard_group == nullptr) return {};
  const GradientBucket& all = this->bucket(bucket);
  return shard_group->AllGather(
      stream(), parameters_->ValuesAlong(PartOfBucket(bucket, shard_group->rank())),
      parameters_->ValuesAlong({all.begin, all.end}), "all-gather parameters");
}

// Parts of different ranks differ in length, and between them are derived matrices.
Work ShardedDataParallel::ExchangeParts(int64_t bucket) {
  Collective* const shard_group = ShardGroupOf(bucket);
  if (shard_group == nullptr) return {};
  const std::vector<ParameterPart> own = PartsOf(bucket, shard_group->rank());
  std::vector<Transfer> sends, receives;
  for (int peer = 0; peer < shard_group->size(); ++peer) {
    if (peer == shard_group->rank()) continue;
    for (const ParameterPart& part : own) sends.push_back({part.value, peer});
    for (const ParameterPart& part : PartsOf(bucket, peer)) receives.push_back({part.value, peer});
  }
  return shard_group->Exchange(stream(), std::move(sends), std::move(receives),
                               "all-gather parameters");
}

// Images of gradients are the buckets.
Status ShardedDataParallel::GatherInFile() {
  ParameterFile* const file = parameters_->file();
  ParameterFileIterator walk(file, {.values = true, .trained_alone = true, .changes_values = true});
  for (int64_t unit = 0; unit < parameters_->units(); ++unit) {
    for (const size_t b : file->BucketsOf(unit)) {
      WEFT_RETURN_IF_ERROR(walk.MoveTo(unit));
      const auto bucket = static_cast<int64_t>(b);
      WEFT_RETURN_IF_ERROR(staging_ ? GatherStaged(bucket) : GatherInPlace(bucket).Wait(stream()));
    }
  }
  return walk.Finish();
}

Status ShardedDataParallel::GatherParameters() {
  if (gatherer_) return OkStatus();
  if (parameters_->file() != nullptr) return GatherInFile();
  if (through_device_) {
    DeviceStaging staging(*context_);
    for (int64_t b = 0; b < bucket_count(); ++b) {
      WEFT_RETURN_IF_ERROR(GatherThrough(staging, b));
    }
    return staging.Finish();
  }
  for (int64_t b = 0; b < bucket_count(); ++b) {
    if (!bucket(b).updated) continue;
    if (bucket(b).of_derived) {
      gathers_[static_cast<size_t>(b)] = ExchangeParts(b);
    } else if (staging_) {
      WEFT_RETURN_IF_ERROR(GatherStaged(b));
    } else {
      gathers_[static_cast<size_t>(b)] = GatherInPlace(b);
    }
  }
  for (const Work& gather : gathers_) WEFT_RETURN_IF_ERROR(gather.Wait(stream()));
  return OkStatus();
}

}  // namespace weft::engine
