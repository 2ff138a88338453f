#include "worker/engine/nn/parameter_file.h"

#include <algorithm>
#include <utility>

#include "worker/engine/nn/update_pipeline.h"

namespace weft::engine {

class ParameterFile::Value : public StoredNumbers {
 public:
  Value(ParameterFile* file, int64_t index) : file_(file), index_(index) {}

  Status Read(int64_t first, std::span<std::byte> to) override {
    return file_->values_->Read(Unit(), ByteOf(first), to);
  }
  Status Write(int64_t first, std::span<const std::byte> from) override {
    return file_->values_->Write(Unit(), ByteOf(first), from);
  }

 private:
  const Parameter& Owner() const { return (*file_->parameters_)[index_]; }
  size_t Unit() const { return static_cast<size_t>(Owner().unit); }
  size_t ByteOf(int64_t element) const {
    return file_->parameters_->OffsetInUnit(index_) +
           static_cast<size_t>(element) * DTypeSize(Owner().dtype);
  }

  ParameterFile* file_;
  int64_t index_;
};

Result<std::unique_ptr<ParameterFile>> ParameterFile::New(const Context& context,
                                                          ParameterSet* parameters,
                                                          const std::vector<int64_t>& unit_bytes) {
  std::unique_ptr<ParameterFile> made(new ParameterFile(context, parameters));
  WEFT_ASSIGN_OR_RETURN(made->values_, FileImages::New(made->below_, Component::kParameters,
                                                       made->lanes_.get(), unit_bytes));
  made->unit_buckets_.resize(unit_bytes.size());
  return made;
}

ParameterFile::ParameterFile(const Context& context, ParameterSet* parameters)
    : below_(InHostMemoryPool(context)),
      parameters_(parameters),
      update_pipeline_(std::make_unique<UpdatePipeline>(this)) {}

ParameterFile::~ParameterFile() = default;

Status ParameterFile::Start(int64_t unit, bool reads) {
  const auto u = static_cast<size_t>(unit);
  WEFT_RETURN_IF_ERROR(values_->Start(u, reads));
  parameters_->PlaceUnit(unit, values_->memory(u));
  return OkStatus();
}

void ParameterFile::Drop(int64_t unit) {
  parameters_->PlaceUnit(unit, nullptr);
  values_->Drop(static_cast<size_t>(unit));
}

void ParameterFile::WriteBehind(int64_t unit) {
  parameters_->PlaceUnit(unit, nullptr);
  values_->WriteBehind(static_cast<size_t>(unit));
}

Status ParameterFile::CutGradients(std::vector<Bucket> buckets,
                                   std::vector<ParameterSet::Range> counted) {
  buckets_ = std::move(buckets);
  norm_ = PiecewiseNorm(std::move(counted));
  unit_buckets_.assign(unit_buckets_.size(), {});
  std::vector<int64_t> bytes;
  for (size_t b = 0; b < buckets_.size(); ++b) {
    bytes.push_back(buckets_[b].range.size() * static_cast<int64_t>(sizeof(float)));
    unit_buckets_[static_cast<size_t>(buckets_[b].unit)].push_back(b);
  }
  for (std::vector<size_t>& of_unit : unit_buckets_) {
    std::sort(of_unit.begin(), of_unit.end(), [this](size_t a, size_t b) {
      return buckets_[a].range.begin < buckets_[b].range.begin;
    });
  }
  WEFT_ASSIGN_OR_RETURN(gradients_,
                        FileImages::New(below_, Component::kGradients, lanes_.get(), bytes));
  return OkStatus();
}

void ParameterFile::WriteGradients(size_t b, std::function<Status()> before) {
  const ParameterSet::Range& range = buckets_[b].range;
  gradients_->WriteBehind(
      b, [this, &range, at = GradientAt(b, range.begin), before = std::move(before)]() -> Status {
        if (before) WEFT_RETURN_IF_ERROR(before());
        return norm_.Take(range, at);
      });
}

size_t ParameterFile::BucketOf(const ParameterPart& part) const {
  const Parameter& parameter = (*parameters_)[part.index];
  const int64_t element = parameters_->GradientOffset(part.index) + part.first;
  const std::vector<size_t>& of_unit = BucketsOf(parameter.unit);
  const auto found = std::find_if(of_unit.begin(), of_unit.end(), [&](size_t b) {
    return element >= buckets_[b].range.begin && element < buckets_[b].range.end;
  });
  WEFT_CHECK(found != of_unit.end(), "a bucket has the gradients of " + parameter.name);
  return *found;
}

size_t ParameterFile::GradientByte(const ParameterPart& part) const {
  const int64_t element = parameters_->GradientOffset(part.index) + part.first;
  return static_cast<size_t>(element - buckets_[BucketOf(part)].range.begin) * sizeof(float);
}

ParameterPart ParameterFile::InMemory(const ParameterPart& part) const {
  ParameterPart placed = part;
  placed.value.data = nullptr;
  placed.gradient = {nullptr, DType::kF32, part.value.shape};
  if (part.count() == 0) return placed;
  const ParameterSet::HeldValue held = parameters_->held_value(part.index);
  if (held.view.data != nullptr) {
    placed.value.data = static_cast<std::byte*>(held.view.data) +
                        static_cast<size_t>(part.first - held.first) * DTypeSize(held.view.dtype);
  }
  const size_t bucket = BucketOf(part);
  if (std::byte* const gradients = gradients_->memory(bucket)) {
    placed.gradient.data = gradients + GradientByte(part);
  }
  return placed;
}

Status ParameterFile::ReadGradient(const ParameterPart& part, const TensorView& to) {
  return gradients_->Read(BucketOf(part), GradientByte(part),
                          {static_cast<std::byte*>(to.data), to.Bytes()});
}

Status ParameterFile::WriteGradient(const ParameterPart& part, const TensorView& from) {
  norm_.Stop();
  return gradients_->Write(BucketOf(part), GradientByte(part),
                           {static_cast<const std::byte*>(from.data), from.Bytes()});
}

std::shared_ptr<StoredNumbers> ParameterFile::Stored(int64_t index) {
  return std::make_shared<Value>(this, index);
}

}  // namespace weft::engine
