#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "worker/engine/nn/parameter_file.h"

namespace weft::engine {

/// Iterates over the parameters of a file, unit by unit in their order. Each unit is in memory
/// while it is read or changed.
class UnitIterator {
 public:
  virtual ~UnitIterator() = default;
  /// Returns once the parameters of `unit`, not before that of the last call, have their value()
  /// and gradients (ParameterFile::InMemory) in memory.
  virtual Status MoveTo(int64_t unit) = 0;
  /// Ends the iteration.
  virtual Status Finish() = 0;
};

/// Iterates over the parameters of a file in their order, unit by unit: the next unit is read
/// meanwhile, and changed units are written behind. No pass through the network is running.
class ParameterFileIterator : public UnitIterator {
 public:
  struct What {
    bool values = false;
    bool gradients = false;       ///< Of units without any that are trained there are none.
    bool trained_alone = false;   ///< Goes through units alone that have gradients.
    bool reads_values = true;     ///< Or they begin as zeros.
    bool changes_values = false;  ///< They are written.
  };
  ParameterFileIterator(ParameterFile* file, const What& what);
  /// Abandons what is in memory.
  ~ParameterFileIterator() override;
  ParameterFileIterator(const ParameterFileIterator&) = delete;
  ParameterFileIterator& operator=(const ParameterFileIterator&) = delete;

  /// Brings the values of `unit` into memory, and no others.
  Status MoveTo(int64_t unit) override;
  /// Visits the remaining units, and waits until all is written.
  Status Finish() override;

 private:
  /// Begins to read units_[at].
  Status Start(size_t at);
  /// Waits for it.
  Status Enter(size_t at);
  Status Leave(size_t at);
  Status Next();

  ParameterFile* const file_;
  const What what_;
  std::vector<int64_t> units_;  ///< The visited ones.
  size_t at_ = 0;
  bool entered_ = false;
};

/// What an update iterates over.
inline constexpr ParameterFileIterator::What kUpdateIteration = {
    .values = true, .gradients = true, .trained_alone = true, .changes_values = true};

}  // namespace weft::engine
