#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/env.h"
#include "common/json.h"
#include "common/spec/job_spec.h"
#include "worker/engine/data/dataset.h"

namespace weft::engine {

/// The files of a job, opened and recognised, before they become a dataset.
class DatasetInput {
 public:
  virtual ~DatasetInput() = default;

  /// Everything that what Write makes depends on: contents and options.
  virtual Json Key() const = 0;

  /// Writes train.tokens, validation.tokens when there are files for it, the labels and the
  /// tokenizer into an empty folder, and says in `info` all but the split. Held out, when there are
  /// no files for it, is what CutSpan leaves of the training documents.
  virtual Status Write(Env& env, const std::string& folder, int threads, DatasetInfo& info) = 0;

  /// A border of documents may be moved into one when none is near.
  virtual bool may_cut_documents() const = 0;

  /// This many successive documents are on the same side of that border.
  virtual int64_t documents_together() const { return 1; }
};

/// Opens the files that the job names, in the form it says or they show. kInvalid or kNotFound when
/// they are at fault, or the job asks of them what they do not have.
Result<std::unique_ptr<DatasetInput>> OpenDatasetInput(Env& env, const JobSpec& job);

// One for each kind of files.
Result<std::unique_ptr<DatasetInput>> OpenTextInput(Env& env, const JobSpec& job);
Result<std::unique_ptr<DatasetInput>> OpenTokenInput(Env& env, const JobSpec& job,
                                                     const std::string& format);
Result<std::unique_ptr<DatasetInput>> OpenImageInput(Env& env, const JobSpec& job,
                                                     const std::string& format);

/// Writes the labels of a shard's documents in their order.
Status WriteLabels(Env& env, const std::string& path, const std::vector<int32_t>& labels,
                   size_t classes, const std::string& tokenizer_hash);

/// What stands for the hash of a tokenizer where there is none.
std::string NoTokenizerHash();

/// A fixed order of `count` examples that puts those of one class everywhere: the end is held out,
/// and files are often sorted by class.
std::vector<size_t> ScatteredOrder(size_t count);

}  // namespace weft::engine
