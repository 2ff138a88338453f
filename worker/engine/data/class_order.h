#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "common/env.h"
#include "common/spec/model_spec.h"
#include "common/status.h"

namespace weft::engine {

/// The names of classes by number: those of `of_model` when it has all of `names`, each once (it
/// may have more). Where these are LABEL_0, LABEL_1, ... and all of `names` are whole numbers below
/// their count: these numbers, as many. Else `names` by value when all are whole numbers ("10" is
/// after "9"), and otherwise alphabetically.
std::vector<std::string> OrderClasses(const std::set<std::string>& names,
                                      const std::vector<std::string>& of_model);

/// For data of a classifier that numbers its `classes` classes and does not name them. kInvalid:
/// one of `names` is the number of a class that it does not have, as "LABEL_5" or "5" of three.
Status CheckNumbersOfClasses(const std::vector<std::string>& names, int64_t classes);

/// Names of the classes of the classifier that `model` goes on with, LABEL_0, LABEL_1, ... when it
/// does not name them; none when its classifier is a new one.
Result<std::vector<std::string>> ClassesOfModel(Env& env, const ModelSpec& model);

}  // namespace weft::engine
