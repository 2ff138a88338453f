#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "worker/engine/tensor/named_tensor.h"
#include "worker/engine/tensor/transfer.h"
#include "worker/engine/testing/parameter_values.h"

namespace weft::engine {

/// A training state by the names of its tensors, put together from what ranks save of it.
struct SavedState {
  std::map<std::string, std::vector<float>> tensors;
  std::map<std::string, int64_t> parts;  ///< How many parts each came in ...
  std::map<std::string, int64_t> saved;  ///< ... with how many numbers.

  /// Adds what one rank saves. `stream`: of its device.
  void Add(const std::vector<NamedTensor>& own, const Stream& stream = {}) {
    for (const NamedTensor& tensor : own) {
      if (!tensor.saved) continue;
      const auto copy = HostCopy::Of(tensor.stored == nullptr ? stream : Stream(), tensor.view);
      WEFT_CHECK(copy.ok(), copy.status().message());
      const std::vector<float> values =
          tensor.stored == nullptr ? ValuesOf(copy->view()) : ValuesOf(tensor);
      const NamedTensor::Place place =
          tensor.part.value_or(NamedTensor::Place{.whole = tensor.view.shape});
      std::vector<float>& whole = tensors[tensor.name];
      whole.resize(static_cast<size_t>(place.whole.Elements()));
      place.ForEachRun(tensor.view.shape.Elements(), [&](int64_t from, int64_t to, int64_t count) {
        std::copy_n(values.begin() + from, count, whole.begin() + to);
      });
      parts[tensor.name] += values.empty() ? 0 : 1;
      saved[tensor.name] += std::ssize(values);
    }
  }

  /// Adds what another has, whose parts are others.
  void Add(const SavedState& other) {
    for (const auto& [name, values] : other.tensors) {
      std::vector<float>& whole = tensors[name];
      whole.resize(values.size());
      for (size_t i = 0; i < values.size(); ++i) whole[i] += values[i];
      parts[name] += other.parts.at(name);
      saved[name] += other.saved.at(name);
    }
  }
};

}  // namespace weft::engine
