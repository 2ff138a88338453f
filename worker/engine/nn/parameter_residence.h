#pragma once

#include <cstdint>

#include "common/status.h"
#include "worker/engine/autograd/tape.h"

namespace weft::engine {

class ParameterSet;

/// What is made of parameters for products with them.
class DerivedCopies {
 public:
  virtual ~DerivedCopies() = default;
  /// Some of these parameters are not frozen.
  virtual bool trained() const = 0;
  /// Takes the memory that Make writes, which otherwise does it the first time: all of it where
  /// values are offloaded. Once until they are dropped.
  virtual Status Reserve(Context& context) = 0;
  /// Makes them of the values as they are placed now.
  virtual Status Make(Context& context) = 0;
  /// They are not used until they are made again.
  virtual void Drop() = 0;
};

enum class Pass : uint8_t { kForward, kBackward };

/// Brings the parameters of a model, where they are not all in memory at all times, before a part
/// of the network computes with them. Units are those of ParameterSet::StartUnit. Passes go through
/// the units in rising order, then, when they differentiate, in falling order.
class ParameterResidence {
 public:
  virtual ~ParameterResidence() = default;

  /// The values of `unit`, and all copies of them, are there once this returns. Those of the unit
  /// that will be next may be on their way.
  virtual Status Fetch(Context& context, int64_t unit, Pass pass) = 0;

  /// The unit has been computed with.
  virtual Status Release(int64_t unit) = 0;

  /// The values have changed, or are about to: what is there of them is not used again.
  virtual Status Forget() { return OkStatus(); }

  /// Whether Release gives memory back, so that one unit at a time is there.
  virtual bool drops() const { return true; }
};

/// What a part of a network does before its forward pass, so that its parameters are there, now and
/// in the backward pass. Nothing where all parameters are in memory.
Status EnterUnit(Context& context, Tape& tape, const ParameterSet& parameters, int64_t unit);

/// The same after it. `differentiated`: a backward pass through it will come. `stays`: it begins
/// with this unit.
Status LeaveUnit(Context& context, Tape& tape, const ParameterSet& parameters, int64_t unit,
                 bool differentiated, bool stays = false);

}  // namespace weft::engine
