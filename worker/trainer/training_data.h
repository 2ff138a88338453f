#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/env.h"
#include "common/spec/attempt_spec.h"
#include "worker/engine/data/batch_source.h"
#include "worker/engine/data/elastic_images.h"

namespace weft::trainer {

/// What a rank trains on.
struct TrainingData {
  std::unique_ptr<engine::BatchSource> train;
  std::unique_ptr<engine::BatchSource> validation;  ///< Null: nothing is held out.
  /// The sizes that a search among sizes of images has, in its order, within `train`; else null.
  engine::ElasticImages* image_sizes = nullptr;
  int64_t vocab_size = 0;            ///< Of the tokenizer; 0: images.
  std::vector<std::string> classes;  ///< Names of the labels, by number.
  std::string fingerprint;           ///< Hash over the tokens and how they are cut.
  std::string tokenizer_path;        ///< The tokenizer's file; empty when there is none.
  std::string padding;  ///< For people: the share of padding in an epoch; empty: there is none.
  std::vector<std::string> warnings;  ///< For people: what of the data was left out or is in doubt.
  double unigram_entropy = 0;         ///< Of the training tokens. Unit: nats per token.
};

/// The chunks of each sequence that this context-parallel rank has; without such ranks `whole`.
std::unique_ptr<engine::BatchSource> OwnChunks(std::unique_ptr<engine::BatchSource> whole,
                                               const AttemptSpec& spec);

/// Reads, tokenizes and cuts the job's text, or finds in spec.cache_dir that this was done before.
/// Classes that an imported classifier has names for keep these, as long as the data do not call
/// them otherwise. With search.image_sizes the training images have one of these in each step.
/// kInvalid or kNotFound when the job's files or tokenizer are at fault.
Result<TrainingData> OpenTrainingData(Env& env, const AttemptSpec& spec,
                                      const PhaseSearchSpec& search = {});

}  // namespace weft::trainer
