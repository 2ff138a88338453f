#include "worker/engine/growth/growth_operator.h"

#include <algorithm>
#include <string_view>

#include "common/model/model_sizes.h"
#include "common/model/parameter_list.h"
#include "common/spec/phases.h"

namespace weft::engine {
namespace {

/// The first positions of the new side as the old one has them, and nothing at the others.
AxisMap Corner(int64_t old_extent, int64_t new_extent) {
  return AxisMap::Written(old_extent, new_extent).Within(0, old_extent);
}

/// The table of positions of images of another size. A vit's first one is that of the class.
AxisMap ResizedPositions(const ModelSpec& from, const ModelSpec& to) {
  AxisMap rows = AxisMap::Identity(1);
  rows.Append(AxisMap::Resized(from.image_size / from.patch_size, to.image_size / to.patch_size));
  return rows;
}

/// All sides but the first.
int64_t ColumnCount(const ParameterInfo& parameter) {
  return parameter.Elements() / parameter.shape[0];
}

}  // namespace

GrowthOperator::GrowthOperator(const ModelSpec& from, const ModelSpec& to, const GrowthSpec& growth,
                               const ModelSpec* larger)
    : from_(from), to_(to), larger_(larger != nullptr ? *larger : to), growth_(growth) {
  std::map<int64_t, size_t> count;
  for (ParameterInfo& parameter : ParametersOf(from)) {
    const int64_t block = parameter.block;
    old_.emplace(Place(block, count[block]++), std::move(parameter));
  }
  count.clear();
  for (ParameterInfo& parameter : ParametersOf(to)) {
    const Place place(parameter.block, count[parameter.block]++);
    std::string name = parameter.name;
    new_.emplace(std::move(name), std::pair(place, std::move(parameter)));
  }
}

bool GrowthOperator::in_place(GrownNumbers numbers) const {
  return masked() ||
         (numbers != GrownNumbers::kValues && OptimizerStateOf(growth_) == "asymmetric");
}

GrowthOperator::BlockSource GrowthOperator::SourceOf(int64_t block) const {
  const int64_t before = DistinctBlocks(from_), now = DistinctBlocks(to_);
  const bool adjacent = growth_.depth_order == "adjacent";
  BlockSource source;
  if (before == 0) {
    source.added = source.random = true;
    return source;
  }
  if (now < before) {
    if (growth_.method == "none") {
      source.blocks.push_back(block * before / now);
      return source;
    }
    const int64_t merged = before / now;
    for (int64_t j = 0; j < merged; ++j) {
      source.blocks.push_back(adjacent ? block * merged + j : block + j * now);
    }
    return source;
  }
  const auto copied = [&](int64_t of) { return adjacent ? of * before / now : of % before; };
  source.blocks.push_back(copied(block));
  if (growth_.method == "decoalesce" || !IsAddedBlock(growth_, before, now, block)) return source;
  source.added = true;
  source.random = growth_.new_blocks == "random";
  source.silent = growth_.new_blocks == "identity";
  source.averaged = growth_.new_blocks == "averaged";
  return source;
}

AxisMap GrowthOperator::Side(GrownNumbers numbers, bool written, int64_t old_extent,
                             int64_t new_extent) const {
  const bool values = numbers == GrownNumbers::kValues;
  AxisMap map = written == values               ? AxisMap::Written(old_extent, new_extent)
                : growth_.method == "sparkling" ? AxisMap::ReadEvenly(old_extent, new_extent)
                                                : AxisMap::Read(old_extent, new_extent);
  return numbers == GrownNumbers::kSquaredGradients ? map.Squared() : map;
}

bool GrowthOperator::FeedsTiedClassifier(const ParameterInfo& parameter) const {
  if (to_.untied_classifier || FactorisedEmbedding(to_) || HeadOf(to_) == "classification") {
    return false;
  }
  if (parameter.role == ParameterRole::kHeadNorm) return true;
  // A bert has another norm between its blocks and the classifier.
  return parameter.role == ParameterRole::kNorm && parameter.block < 0 && parameter.unit > 0;
}

AxisMap GrowthOperator::RowsOf(const ParameterInfo& old, const ParameterInfo& parameter,
                               GrownNumbers numbers, RowSet set) const {
  if (parameter.role == ParameterRole::kPositionEmbedding && old.shape[0] != parameter.shape[0]) {
    // Moments reside where their parameters do.
    return ResizedPositions(from_, to_);
  }
  // The table repeats its columns, as what writes into the residual stream does. Each product of
  // the two would be there several times, if the norm in between did not divide what it writes.
  const bool written = !FeedsTiedClassifier(parameter);
  const std::vector<int64_t> old_parts = RowPartsOf(from_, old), parts = RowPartsOf(to_, parameter);
  AxisMap rows;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (in_place(numbers)) {
      rows.Append(Corner(old_parts[i], parts[i]));
      continue;
    }
    const AxisMap map = Side(numbers, written, old_parts[i], parts[i]);
    const int64_t kept = std::min(old_parts[i], parts[i]);
    switch (set) {
      case RowSet::kAll:
        rows.Append(map);
        break;
      case RowSet::kKept:
        rows.Append(map.Within(0, kept));
        break;
      case RowSet::kAdded:
        rows.Append(map.Within(kept, parts[i]));
        break;
    }
  }
  return rows;
}

AxisMap GrowthOperator::ColumnsOf(const ParameterInfo& old, const ParameterInfo& parameter,
                                  GrownNumbers numbers) const {
  if (in_place(numbers)) return Corner(ColumnCount(old), ColumnCount(parameter));
  // A row of a table is written into the residual stream; a row of another matrix reads it.
  return Side(numbers, parameter.looked_up(), ColumnCount(old), ColumnCount(parameter));
}

void GrowthOperator::AddTerm(const ParameterInfo& parameter, GrownFrom from, const Place& place,
                             double factor, GrownNumbers numbers, RowSet set,
                             GrownTensor& tensor) const {
  const ParameterInfo& old = old_.at(place);
  tensor.terms.push_back({from, old.name, factor, RowsOf(old, parameter, numbers, set),
                          ColumnsOf(old, parameter, numbers)});
}

Result<GrownTensor> GrowthOperator::Of(const std::string& name, GrownNumbers numbers) const {
  const auto found = new_.find(name);
  if (found == new_.end()) return InvalidError("the grown model has no parameter " + name);
  const auto& [place, parameter] = found->second;
  const BlockSource source = place.first < 0 ? BlockSource{{-1}} : SourceOf(place.first);
  GrownTensor tensor;
  const bool state = numbers != GrownNumbers::kValues;
  if (source.random || (state && source.added && in_place(numbers))) {
    tensor.random = numbers == GrownNumbers::kValues;
    return tensor;
  }
  const bool ends_branch =
      EndsSubLayer(parameter.role) || (parameter.bias && IsBranchScale(parameter.role));
  if (source.silent && ends_branch) return tensor;
  // Moments of what is new are zero.
  tensor.random = masked() && !state;
  double share = 1;
  if (numbers == GrownNumbers::kValues && growth_.method == "decoalesce") {
    share = growth_.alpha;
    if (share < 1) {
      // The token of the class has that role, too, and one row for images of any size.
      const bool resized = parameter.role == ParameterRole::kPositionEmbedding &&
                           parameter.shape[0] > 1 && larger_.image_size != to_.image_size;
      tensor.terms.push_back(
          {GrownFrom::kLargerModel, name, 1 - share,
           resized ? ResizedPositions(larger_, to_) : AxisMap::Identity(parameter.shape[0]),
           AxisMap::Identity(ColumnCount(parameter))});
    }
  }
  const GrownFrom from = source.averaged && numbers == GrownNumbers::kValues
                             ? GrownFrom::kAverages
                             : GrownFrom::kPhaseBefore;
  const bool product = IsAttention(parameter.role) || IsMlp(parameter.role);
  const int64_t next = source.blocks.front() + 1;
  if (growth_.method == "aki" && !in_place(numbers) && product && next < DistinctBlocks(from_)) {
    AddTerm(parameter, from, Place(next - 1, place.second), 1, numbers, RowSet::kKept, tensor);
    AddTerm(parameter, from, Place(next, place.second), 1, numbers, RowSet::kAdded, tensor);
    return tensor;
  }
  share /= static_cast<double>(source.blocks.size());
  for (const int64_t block : source.blocks) {
    AddTerm(parameter, from, Place(block, place.second), share, numbers, RowSet::kAll, tensor);
  }
  return tensor;
}

Result<std::vector<double>> Evaluate(const GrownTensor& tensor, const OldTensors& old,
                                     std::span<const float> start) {
  std::vector<double> sum(start.begin(), start.end());
  for (const GrownTerm& term : tensor.terms) {
    WEFT_ASSIGN_OR_RETURN(const std::vector<double> values, old(term.from, term.parameter));
    const int64_t width = term.columns.old_size(), columns = term.columns.size();
    if (std::ssize(values) != term.rows.old_size() * width) {
      return InvalidError("the tensor " + term.parameter + " has " + std::to_string(values.size()) +
                          " numbers, growth is from " +
                          std::to_string(term.rows.old_size() * width));
    }
    sum.resize(static_cast<size_t>(term.rows.size() * columns));
    for (int64_t i = 0; i < term.rows.size(); ++i) {
      double* const to = sum.data() + i * columns;
      // A tensor with random numbers has one term, which replaces them where it has a place.
      for (int64_t j = 0; tensor.random && !term.rows[i].empty() && j < columns; ++j) {
        if (!term.columns[j].empty()) to[j] = 0;
      }
      for (const AxisMap::Term& row : term.rows[i]) {
        const double* const from = values.data() + row.old * width;
        for (int64_t j = 0; j < columns; ++j) {
          double read = 0;
          for (const AxisMap::Term& column : term.columns[j]) {
            read += column.factor * from[column.old];
          }
          to[j] += term.factor * row.factor * read;
        }
      }
    }
  }
  return sum;
}

}  // namespace weft::engine
