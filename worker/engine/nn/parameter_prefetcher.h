#pragma once

#include <cstdint>

#include "common/status.h"
#include "worker/engine/autograd/tape.h"

namespace weft::engine {

class ParameterSet;

/// Copies derived from parameters for products with them.
class DerivedCopies {
 public:
  virtual ~DerivedCopies() = default;
  /// Some of these parameters are not frozen.
  virtual bool trained() const = 0;
  /// Allocates the memory that Make writes, which otherwise allocates it the first time; all of it
  /// where values are offloaded. Call it once until they are dropped.
  virtual Status Reserve(Context& context) = 0;
  /// Makes them of the values as they are placed now.
  virtual Status Make(Context& context) = 0;
  /// Whether products read the values besides them, after Reserve.
  virtual bool read_values() const = 0;
  /// Marks them unused until the next Make.
  virtual void Drop() = 0;
};

enum class Pass : uint8_t {
  kForward,
  kBackward,
  kTrained,  ///< After the passes of a step: what is trained of each unit, in rising order, without
             ///< copies.
};

/// Fetches the parameters of a model, where not all are in memory at all times, before a part of
/// the network computes with them. Units are those of ParameterList::StartUnit. Passes go through
/// the units in rising order, then, when they differentiate, in falling order.
class ParameterPrefetcher {
 public:
  virtual ~ParameterPrefetcher() = default;

  /// Returns once the values of `unit`, and all copies of them, are in memory. Those of the next
  /// unit may be in transfer.
  virtual Status Fetch(Context& context, int64_t unit, Pass pass) = 0;

  /// Ends the computation with the unit.
  virtual Status Release(int64_t unit) = 0;

  /// Drops what is in memory: the values have changed, or are about to.
  virtual Status Forget() { return OkStatus(); }

  /// Whether Release frees memory, so that one unit at a time is in memory.
  virtual bool drops() const { return true; }
};

/// Called before the forward pass of a part of the network: fetches its parameters, now and in the
/// backward pass. Does nothing where all parameters are in memory.
Status EnterUnit(Context& context, Tape& tape, const ParameterSet& parameters, int64_t unit);

/// Called after it. `differentiated`: a backward pass through it will come. `stays`: that pass
/// begins with this unit.
Status LeaveUnit(Context& context, Tape& tape, const ParameterSet& parameters, int64_t unit,
                 bool differentiated, bool stays = false);

}  // namespace weft::engine
