#include "coordinator/store/store.h"

#include <future>

namespace weft::coordinator {

Result<CommitResult> CommitAndWait(Store& store, Transaction transaction) {
  std::promise<Result<CommitResult>> promise;
  std::future<Result<CommitResult>> future = promise.get_future();
  store.Commit(std::move(transaction),
               [&](Result<CommitResult> result) { promise.set_value(std::move(result)); });
  return future.get();
}

}  // namespace weft::coordinator
