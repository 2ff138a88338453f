#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "worker/engine/testing/tiny_run.h"

namespace weft::engine {

/// A method that merges adapters into weights, with some of its settings.
struct MergingMethod {
  const char* name;
  std::function<void(PeftSpec&)> change;
};

inline std::vector<MergingMethod> MergingMethods() {
  return {
      {"loha", [](PeftSpec& spec) { spec.method = "loha"; }},
      {"lokr", [](PeftSpec& spec) { spec.method = "lokr"; }},
      {"lokr of matrices",
       [](PeftSpec& spec) {
         spec.method = "lokr";
         spec.rank = 16;
         spec.decompose_factor = 4;
       }},
      {"lokr of factors",
       [](PeftSpec& spec) {
         spec.method = "lokr";
         spec.rank = 1;
         spec.decompose_both = true;
       }},
      {"oft",
       [](PeftSpec& spec) {
         spec.method = "oft";
         spec.oft_block_size = 8;
       }},
      {"vera", [](PeftSpec& spec) { spec.method = "vera"; }},
  };
}

/// Blocks of oft divide the sides of TinyModel.
inline ModelSpec MergingModel(const MergingMethod& method,
                              std::vector<std::string> targets = {"all-linear"}) {
  ModelSpec spec = TinyModel();
  spec.peft.rank = 3;
  spec.peft.alpha = 6;
  method.change(spec.peft);
  spec.peft.target_modules = std::move(targets);
  return spec;
}

}  // namespace weft::engine
