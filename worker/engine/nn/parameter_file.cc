#include "worker/engine/nn/parameter_file.h"

#include <algorithm>
#include <utility>

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

Status ParameterFile::CutGradients(std::vector<ParameterSet::Range> buckets) {
  buckets_ = std::move(buckets);
  unit_buckets_.assign(unit_buckets_.size(), {});
  std::vector<int64_t> bytes;
  for (size_t b = 0; b < buckets_.size(); ++b) {
    bytes.push_back(buckets_[b].size() * static_cast<int64_t>(sizeof(float)));
    for (int64_t i = 0; i < parameters_->size(); ++i) {
      const Parameter& parameter = (*parameters_)[i];
      if (parameter.gradient_offset != buckets_[b].begin) continue;
      std::vector<size_t>& of_unit = unit_buckets_[static_cast<size_t>(parameter.unit)];
      of_unit.insert(of_unit.begin(), b);
      break;
    }
  }
  WEFT_ASSIGN_OR_RETURN(gradients_,
                        FileImages::New(below_, Component::kGradients, lanes_.get(), bytes));
  return OkStatus();
}

std::shared_ptr<StoredNumbers> ParameterFile::Stored(int64_t index) {
  return std::make_shared<Value>(this, index);
}

}  // namespace weft::engine
